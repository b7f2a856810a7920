"""One process at a time, across processes: a lock that the kernel drops when its holder dies.

Apart from the builds, because the Go toolchain and every tool take the same kind of lock.
Must not: remove the lock file (a waiter would hold a lock on a file that nobody else sees any more).
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[int | None], None]) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block.

    While another process holds it, `on_wait` is called every 0.2 s with that process's id (None when unknown).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        while not try_lock(file.fileno()):
            file.seek(0)
            holder = file.read().strip()
            on_wait(int(holder) if holder.isdecimal() else None)
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def try_lock(descriptor: int) -> bool:
    """Take the lock without waiting; False when another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
