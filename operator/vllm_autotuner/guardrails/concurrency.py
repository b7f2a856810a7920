"""Concurrency limits of the fleet: how many changes run at once, and which waiting service begins next. Pure.

G12, G43 and G51. Separate from the chain, which looks at one service: here all waiting services are compared. The one
that waits longest begins first; a service that begins loses its place, so after a failure it queues behind all others.
So do the other services of its namespace: one tenant with many failing services would hold up all others otherwise.
Places are timestamps in status, so another leader finds the same queue. Must not: keep state.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

__all__ = ["CHANGES_AT_ONCE", "EXTRA_GPUS", "Asking", "Running", "Share", "next_to_begin", "parse_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A number, or a percentage of a whole; at least one in any case. Exactly one of the two is given."""

    number: int | None = None
    percent: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid share."""
        given = [each for each in (self.number, self.percent) if each is not None]
        if len(given) != 1 or given[0] < 1 or (self.percent or 0) > 100:
            raise ValueError("write a number of at least 1, or a percentage from 1% to 100%")

    def of(self, whole: int) -> int:
        """The share of a whole as a number. Worked: 5 % of 19 is 1, of 40 it is 2."""
        return self.number if self.number is not None else max(1, whole * (self.percent or 0) // 100)

    def among(self, many: int) -> "Share":
        """What each of so many gets, so that together they have no more. Raises ValueError when there is not one each.

        A percentage stays what it is: each takes it of its own part.
        """
        if self.number is None:
            return self
        if self.number < many:
            raise ValueError(f"{self.number} is not one for each of {many}: write at least {many}, or a percentage")
        return Share(number=self.number // many)

    @property
    def text(self) -> str:
        """The text form, as in a flag."""
        return f"{self.percent}%" if self.percent is not None else str(self.number)


CHANGES_AT_ONCE: Final = Share(percent=5)
"""Concurrent changes of all services. Research G12: one, or 5 %, so that a systematic fault affects only few."""
EXTRA_GPUS: Final = Share(percent=10)
"""Extra GPUs used by active changes, as a share of all GPUs of the fleet. Research G43: at most 10 %."""
_NO_FAILURES: Final[Mapping[str, datetime]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A service that is ready to begin a change."""

    key: str
    since: datetime
    """When it joined the queue."""
    gpus: int = 1
    """GPUs that its change adds while it runs."""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An active change."""

    gpus: int = 1
    parked: bool = False
    """Paused by a user: keeps its GPUs, but does not count against the number of concurrent changes."""


def parse_share(text: str) -> Share:
    """Parse `3` or `5%`. Raises ValueError with the expected format."""
    number = text.strip().removesuffix("%")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError("write a number of at least 1, or a percentage from 1% to 100%")
    return Share(percent=int(number)) if text.strip().endswith("%") else Share(number=int(number))


def next_to_begin(
    asking: Iterable[Asking],
    *,
    running: Sequence[Running],
    changes: int,
    gpus: int,
    failed: Mapping[str, datetime] = _NO_FAILURES,
) -> tuple[Asking, ...]:
    """Return the services that begin now, longest waiting first: at most `changes` active and `gpus` extra GPUs.

    `failed`: by namespace, when one of its changes last ended without being kept. Its services then stand behind those
    that were waiting; among themselves they keep their order. Worked: 20 services of one tenant wait, a minute later
    one of another. The first of the 20 begins and fails after 5 min; then the other tenant begins, not the next of 20.

    One change may always run, however many GPUs it needs. No overtaking: small changes could otherwise delay a large
    one for ever. A paused change keeps its GPUs but does not count, as a pause may last a day; once resumed it goes on
    at once, even above the limit, so that the verdict on a value that already serves comes sooner.
    """
    begins: list[Asking] = []
    parked = sum(one.gpus for one in running if one.parked)
    for each in sorted(asking, key=lambda one: _place(one, failed=failed.get(one.namespace))):
        used = [one.gpus for one in running if not one.parked] + [one.gpus for one in begins]
        if len(used) >= changes or (used and parked + sum(used) + each.gpus > gpus):
            break
        begins.append(each)
    return tuple(begins)


def _place(asking: Asking, *, failed: datetime | None) -> tuple[datetime, datetime, str]:
    # Ties within a second are broken by hash, so that no name is always first.
    since = asking.since.replace(microsecond=0)
    behind = since if failed is None else max(since, failed.replace(microsecond=0))
    return behind, since, hashlib.sha256(f"{asking.key}/{since.isoformat()}".encode()).hexdigest()
