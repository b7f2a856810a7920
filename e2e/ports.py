"""TCP ports of the bed's servers: which are free, and whose they are.

Apart from the servers, because ports taken one by one could be the same.
Must not: take an answer on a port for ours; only the kernel knows who listens.
"""

import os
import random
import socket
from pathlib import Path
from typing import Final

RANGE: Final = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections: none of those takes a port between our look and its use."""


_given: Final[set[int]] = set()
"""Ports that this process has chosen before: whoever asked may be seconds away from listening."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody on this machine listens on at this moment, and none of them twice.

    In a random order, so that beds started at the same time do not choose alike: not that of `random`, which a test may
    have seeded.
    """
    found: list[int] = []
    for candidate in random.SystemRandom().sample(RANGE, len(RANGE)):
        if len(found) == count:
            break
        if candidate not in _given and is_free(candidate):
            found.append(candidate)
    _given.update(found)
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of every address."""
    with socket.socket() as listener:
        # As Go's servers do; connections of a former server that are still closing do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def listens(pid: int, *, port: int) -> bool:
    """Whether this very process listens on a port: a stranger on it would answer our health checks as well."""
    listening = set()
    for table in ("tcp", "tcp6"):
        # Columns: 1 local address, 3 state (0A is LISTEN), 9 inode; the address ends in the port, in hex.
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                listening.add(f"socket:[{columns[9]}]")
    return any(_target(entry) in listening for entry in Path(f"/proc/{pid}/fd").iterdir())


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except (FileNotFoundError, ProcessLookupError):  # closed, or ended, at this moment
        return ""
