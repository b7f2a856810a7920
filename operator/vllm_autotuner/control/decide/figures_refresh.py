"""When to refresh the figures of a status that has no other change: once they have moved for good.

Apart from `status_report`, because this is about the number of writes. In steady state nothing is written, however the
figures fluctuate; they are written once every recent window is on the same side of the shown value. When the load of
the whole fleet moves at once, these writes must not delay others: each service gets a slot, rarer in a larger fleet.
Must not: decide anything by a figure.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, Measurement
from vllm_autotuner.change.measured_window import LATENCIES, level_of
from vllm_autotuner.observation.noise import NOISE

__all__ = ["RefreshSlots", "have_moved", "latencies", "typical_latencies"]

WINDOWS: Final = MEASUREMENTS_LENGTH
"""Windows that must agree (five minutes at 30 s each). TTFT p95 of a steady load differs by a quarter from one window
to the next (docs/verdicts.md): two in a row agree by chance, ten hardly ever. Our choice."""
WRITES_PER_SECOND: Final = 2.0
"""Refreshes per second of a whole fleet: a fiftieth of the write limit (`cluster.throttle`). 30 services have a slot in
each tick of 15 s, 600 services every 5 minutes, 10,000 every 83 minutes. Our choice."""
_HASHES: Final = 2**32


def have_moved(shown: Measurement | None, recent: Sequence[Measurement]) -> bool:
    """Whether the shown figures are outdated. `recent`: the last windows, each complete."""
    if len(recent) < WINDOWS:
        return False
    return any(
        _is_beside(None if shown is None else level_of(shown, each), [level_of(window, each) for window in recent])
        for each in LATENCIES
    )


def latencies(found: Measurement) -> Measurement:
    """The part of a measurement that the status shows."""
    return Measurement(at=found.at, ttft_seconds=found.ttft_seconds, tpot_seconds=found.tpot_seconds)


def typical_latencies(recent: Sequence[Measurement]) -> Measurement:
    """The latencies to show: medians of the recent windows, so that the next outlier does not cause a write."""
    ttft, tpot = ([level for window in recent if (level := level_of(window, each)) is not None] for each in LATENCIES)
    return Measurement(
        at=recent[-1].at,
        ttft_seconds=median(ttft) if ttft else None,
        tpot_seconds=median(tpot) if tpot else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSlots:
    """Which services may refresh their figures in this tick: each has one slot per period, at a fixed offset."""

    services: int
    since: datetime
    """The tick before."""
    now: datetime

    @property
    def period(self) -> float:
        """Seconds from one slot of a service to its next one."""
        return max(1, self.services) / WRITES_PER_SECOND

    def has(self, uid: str, *, since: datetime | None = None) -> bool:
        """Whether the slot of this service lies between `since`, else the last tick, and this one."""
        own = zlib.crc32(uid.encode()) / _HASHES * self.period
        begin = self.since if since is None else min(since, self.since)
        return (self.now.timestamp() - own) // self.period > (begin.timestamp() - own) // self.period


def _is_beside(shown: float | None, recent: Sequence[float | None]) -> bool:
    """Whether every window is clearly above the shown value, or every one clearly below. False when one is unknown."""
    known = [value for value in recent if value is not None]
    if len(known) < len(recent):
        return False
    if shown is None:
        return True
    return min(known) > shown * (1 + NOISE) or max(known) < shown * (1 - NOISE)
