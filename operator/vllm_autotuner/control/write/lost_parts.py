"""What of a stored status is not in what is written over it: lists that are cut, and fields of another version. Pure.

Apart from `status_writer`, which logs it once for each object: an upgrade or a downgrade loses nothing in silence.
Must not: judge. A list is cut for its size, a field is left out because this version does not know it.
"""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["MOST_TOLD", "lost_parts"]

MOST_TOLD: Final = 20
"""Parts that are named; whoever edits a status by hand can write any number of fields."""
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
"""How a text ends that was cut."""


def lost_parts(stored: Any, kept: Any, path: str = "status") -> Iterator[str]:
    """Yield what `kept` lacks of `stored`, each with its place. A value that is only written otherwise is not lost."""
    if isinstance(stored, dict) and isinstance(kept, dict):
        for name, value in stored.items():
            if name in kept:
                yield from lost_parts(value, kept[name], f"{path}.{name}")
            elif value not in (None, [], {}):
                yield f"{path}.{name[:80]}"
    elif isinstance(stored, list) and isinstance(kept, list):
        if len(kept) < len(stored):
            yield f"{path}: {len(stored) - len(kept)} of {len(stored)} entries"
        else:
            for index, (one, other) in enumerate(zip(stored, kept, strict=False)):
                yield from lost_parts(one, other, f"{path}[{index}]")
    elif isinstance(stored, str) and isinstance(kept, str) and len(kept) < len(stored) and kept.endswith(_CUT):
        yield f"{path}: {len(stored) - len(kept)} characters"
