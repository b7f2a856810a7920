"""Writes a file as a whole or not at all, and never through a link that somebody else has put in its place.

Separate from those who write (reports, recordings, exports), because a folder such as /tmp is everybody's.
Must not: create a folder, or keep what was begun and not finished.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty file that takes the place of `path` when the block ends well. Raises OSError.

    A link at `path` is replaced, not followed; the new file's name cannot be guessed. What is no file, such as
    /dev/stdout, is written itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    part.touch(exist_ok=False)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
