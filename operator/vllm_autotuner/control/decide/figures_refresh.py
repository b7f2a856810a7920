"""When the figures of a status are taken anew although nothing else is written: once they say something else for good.

Apart from `reporting`, because this is about writes. A steady state writes nothing, however its figures swing; one that
has moved is written once it is beyond what is shown, and to the same side, in each window that is kept. A fleet whose
load moves at once must not keep its other writes waiting: each service has a turn, the fewer the more there are.
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

__all__ = ["RefreshSlots", "have_moved", "latencies", "usual"]

WINDOWS: Final = MEASUREMENTS_LENGTH
"""So many windows (at 30 s each, five minutes) must agree. TTFT p95 of a steady load differs by 30 % from one to the
next (docs/verdicts.md): two in a row agree by chance, ten hardly ever. Our choice."""
WRITES_PER_SECOND: Final = 2.0
"""Of figures only, of a whole fleet: a tenth of the pace of writes (`cluster.throttle`). Up to 30 services have a turn
in each tick of 15 s, 600 every 5 minutes, 10,000 every 83. Our choice."""
_HASHES: Final = 2**32


def have_moved(shown: Measurement | None, recent: Sequence[Measurement]) -> bool:
    """Whether what is shown is not what the service is like any more. `recent`: the last windows, each complete."""
    if len(recent) < WINDOWS:
        return False
    return any(
        _is_beside(None if shown is None else level_of(shown, each), [level_of(window, each) for window in recent])
        for each in LATENCIES
    )


def latencies(found: Measurement) -> Measurement:
    """What of a measurement is shown."""
    return Measurement(at=found.at, ttft_seconds=found.ttft_seconds, tpot_seconds=found.tpot_seconds)


def usual(recent: Sequence[Measurement]) -> Measurement:
    """The latencies to show: of a usual window, so that the next odd one does not bring the next write."""
    ttft, tpot = ([level for window in recent if (level := level_of(window, each)) is not None] for each in LATENCIES)
    return Measurement(
        at=recent[-1].at,
        ttft_seconds=median(ttft) if ttft else None,
        tpot_seconds=median(tpot) if tpot else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSlots:
    """Whose turn lies between two ticks: each service has one in a period, at a moment of its own."""

    services: int
    since: datetime
    """The tick before."""
    now: datetime

    def has(self, uid: str) -> bool:
        """Whether this service has."""
        period = max(1, self.services) / WRITES_PER_SECOND
        own = zlib.crc32(uid.encode()) / _HASHES * period
        return (self.now.timestamp() - own) // period > (self.since.timestamp() - own) // period


def _is_beside(shown: float | None, recent: Sequence[float | None]) -> bool:
    """Whether every window is clearly above what is shown, or every one clearly below. Unknown is neither."""
    known = [value for value in recent if value is not None]
    if len(known) < len(recent):
        return False
    if shown is None:
        return True
    return min(known) > shown * (1 + NOISE) or max(known) < shown * (1 - NOISE)
