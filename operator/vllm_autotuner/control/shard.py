"""Which part of the fleet a process looks after, where one is not enough for all of it.

A shard has whole namespaces: a question to Prometheus names namespaces, and what services have to do with each other
(one Deployment claimed twice, the queue of a tenant) is within one. Every process finds its part by itself.
Must not: know how many services there are.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final

__all__ = ["WHOLE", "Shard", "parse_shard"]

_TEXT: Final = re.compile(r"(\d{1,3})/(\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `number`, from 0 on, of `of`. Raises ValueError for one that does not exist."""

    number: int
    of: int

    def __post_init__(self) -> None:
        """Refuse what no process could be."""
        if not 0 <= self.number < self.of:
            raise ValueError("--shard: write NUMBER/OF, with NUMBER from 0 to OF - 1, such as 0/3, 1/3 and 2/3")

    def has(self, namespace: str) -> bool:
        """Whether this shard looks after a namespace: exactly one of `of` does."""
        return zlib.crc32(namespace.encode()) % self.of == self.number

    def named(self, name: str) -> str:
        """The name of something that each shard has of its own, such as its Lease."""
        return name if self.of == 1 else f"{name}-{self.number}"


WHOLE: Final = Shard(0, 1)
"""The whole fleet."""


def parse_shard(text: str) -> Shard:
    """Parse `1/3`. Raises ValueError with the expected format."""
    found = _TEXT.fullmatch(text)
    return Shard(int(found[1]), int(found[2])) if found else Shard(-1, 1)
