"""Whose turn it is: how many changes run at once in the fleet, and which service begins next (G12, G43, G51). Pure.

Apart from the chain, which asks about one service: here all who would begin in this tick are asked at once. The oldest
waiting first, and a place is lost by beginning, so that a service that fails and asks again stands behind all others.
The place is a time in the status: another leader finds the same queue. Must not: remember, or know why one asks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

__all__ = ["CHANGES_AT_ONCE", "EXTRA_GPUS", "Asking", "Running", "Share", "next_to_begin", "parse_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A number, or a percentage of a whole; at least one in any case. Exactly one of the two is given."""

    number: int | None = None
    percent: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would mean nothing."""
        given = [each for each in (self.number, self.percent) if each is not None]
        if len(given) != 1 or given[0] < 1 or (self.percent or 0) > 100:
            raise ValueError("write a number from 1, or a percentage from 1% to 100%")

    def of(self, whole: int) -> int:
        """How many of so many. Worked: 5 % of 19 is 1, of 40 it is 2."""
        return self.number if self.number is not None else max(1, whole * (self.percent or 0) // 100)

    @property
    def text(self) -> str:
        """As it is written in a flag."""
        return f"{self.percent}%" if self.percent is not None else str(self.number)


CHANGES_AT_ONCE: Final = Share(percent=5)
"""Changes under way at once, of all services. Research G12: one, or 5 %; what is wrong in all of them hurts so few."""
EXTRA_GPUS: Final = Share(percent=10)
"""GPUs that changes take beside those that serve, of all GPUs of the fleet. Research G43: at most 10 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A service that would begin a change now."""

    key: str
    since: datetime
    """When it first stood in the queue."""
    gpus: int = 1
    """Those of the pods that a change adds while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A change under way."""

    gpus: int = 1
    parked: bool = False
    """Nothing of it moves before a person says so: it keeps its GPUs, and no turn."""


def parse_share(text: str) -> Share:
    """Read `3` or `5%`. Raises ValueError with what to write instead."""
    number = text.strip().removesuffix("%")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError("write a number from 1, or a percentage from 1% to 100%")
    return Share(percent=int(number)) if text.strip().endswith("%") else Share(number=int(number))


def next_to_begin(
    asking: Iterable[Asking], *, running: Sequence[Running], changes: int, gpus: int
) -> tuple[Asking, ...]:
    """Return who begins now, at most `changes` under way and `gpus` added; the longest waiting first.

    One change may always run, however many GPUs it needs. Nobody overtakes: one that waits for many GPUs would
    otherwise wait for as long as small ones come. A change that a person paused keeps its GPUs but no turn, for he may
    take a day; when he lets it go on it does so at once, beside whoever has begun since: what is already served with an
    untried value comes to its verdict sooner.
    """
    begins: list[Asking] = []
    parked = sum(one.gpus for one in running if one.parked)
    for each in sorted(asking, key=_place):
        used = [one.gpus for one in running if not one.parked] + [one.gpus for one in begins]
        if len(used) >= changes or (used and parked + sum(used) + each.gpus > gpus):
            break
        begins.append(each)
    return tuple(begins)


def _place(asking: Asking) -> tuple[datetime, str]:
    # Of those who came in the same second the order is arbitrary, but no name is always the first.
    since = asking.since.replace(microsecond=0)
    return since, hashlib.sha256(f"{asking.key}/{since.isoformat()}".encode()).hexdigest()
