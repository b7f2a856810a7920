"""The first point of a measured curve at which something other than the batch limits: a full KV pool, no free seat.

Apart from the models, because they hold only below it: above, x counts a queue and no longer a batch.
Must not: know why it saturates. TPOT alone never shows a queue; TTFT does, and a flat TPOT confirms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LoadPoint", "SaturationSign", "first_saturation_sign"]

STEEPEST_TTFT: Final = 1.0
"""Growth of TTFT against growth of load, both in logarithms. Without a queue the prompts that arrive together grow no
faster than the load: at most 0.83 on 24 measured curves; with one 1.04 and more."""
SURELY_STEEP_TTFT: Final = 1.2
"""From here on one step is enough; less may be noise (2 % on each of two points a doubling apart make 0.06), and
counts when the next step is this steep. Our choice; measured queues beyond their first sign: 2.4 and more."""
LEAST_JUMP: Final = 1.3
"""TTFT against the point before: a smaller step says nothing, however close the two points are. Our choice."""
FLATTEST_TPOT: Final = 1 / 6
"""Slope of TPOT against the slope before. Full: 0.05-0.14 on measured curves; a kink without a queue: 0.25."""
LEAST_RISE: Final = 0.1
"""Relative rise of TPOT that the slope before must stand on: a small one is noise to compare with. Our choice."""
LEAST_FALL: Final = 0.02
"""Throughput below the best of the lighter loads, relative: more load that yields less has met a limit (F4 from 256
sequences on: 0.045). Repeated points of measured curves differ by up to 2 %."""

LEAST_WAITING: Final = 1.0
"""Requests. Where it was measured that fewer wait, TTFT grew for another reason than a queue: with the clients of a
mixture of experts on H200 from 4 to 8 it grew from 27 to 92 ms while nothing waited and 120 slots were free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One point of a curve; seconds."""

    load: float
    """Clients, or requests in the system."""
    tpot: float
    ttft: float | None = None
    throughput: float | None = None
    """Output tokens per second."""
    waiting: float | None = None
    """Mean number of requests that wait, where it was measured."""


@dataclass(frozen=True, slots=True)
class SaturationSign:
    """The index of the first saturated point, and what gave it away."""

    index: int
    why: str


def first_saturation_sign(points: Sequence[LoadPoint]) -> SaturationSign | None:
    """Return the first sign along rising load, or None. The first point of a curve has nothing to be compared with."""
    for index in range(1, len(points)):
        why = _jumps(points, index) or _flattens(points[: index + 1]) or _falls(points[: index + 1])
        if why is not None:
            return SaturationSign(index, why)
    return None


def _jumps(points: Sequence[LoadPoint], index: int) -> str | None:
    before, after = points[index - 1], points[index]
    steepness = _steepness(before, after)
    if steepness <= STEEPEST_TTFT or before.ttft is None or after.ttft is None:
        return None
    if after.waiting is not None and after.waiting < LEAST_WAITING:
        return None
    sure = steepness >= SURELY_STEEP_TTFT
    if not sure and (index + 1 == len(points) or _steepness(after, points[index + 1]) < SURELY_STEEP_TTFT):
        return None
    return (
        f"TTFT grows from {before.ttft:.3g} to {after.ttft:.3g} s while the load grows from {before.load:g} to "
        f"{after.load:g}: a queue"
    )


def _steepness(before: LoadPoint, after: LoadPoint) -> float:
    """Return how fast TTFT grows against the load; 0 where it was not measured or hardly moved."""
    if before.ttft is None or after.ttft is None or after.ttft < LEAST_JUMP * before.ttft:
        return 0.0
    return math.log(after.ttft / before.ttft) / math.log(after.load / before.load)


def _flattens(points: Sequence[LoadPoint]) -> str | None:
    if len(points) < 3:
        return None
    first, second, third = points[-3:]
    before = (second.tpot - first.tpot) / (second.load - first.load)
    after = (third.tpot - second.tpot) / (third.load - second.load)
    if second.tpot < first.tpot * (1 + LEAST_RISE) or after >= FLATTEST_TPOT * before:
        return None
    return f"TPOT stays at {third.tpot * 1e3:.3g} ms while the load grows to {third.load:g}: the batch no longer grows"


def _falls(points: Sequence[LoadPoint]) -> str | None:
    known = [point.throughput for point in points if point.throughput is not None]
    last = points[-1].throughput
    if last is None or last >= max(known) * (1 - LEAST_FALL):
        return None
    return f"throughput falls to {last:.4g} tokens/s while the load grows to {points[-1].load:g}"
