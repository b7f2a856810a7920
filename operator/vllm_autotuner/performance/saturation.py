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
LEAST_JUMP: Final = 1.3
"""TTFT against the point before: a smaller step says nothing, however close the two points are. Our choice."""
FLATTEST_TPOT: Final = 1 / 6
"""Slope of TPOT against the slope before. Full: 0.05-0.14 on measured curves; a kink without a queue: 0.25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One point of a curve; seconds."""

    load: float
    """Clients, or requests in the system."""
    tpot: float
    ttft: float | None = None


@dataclass(frozen=True, slots=True)
class SaturationSign:
    """The index of the first saturated point, and what gave it away."""

    index: int
    why: str


def first_saturation_sign(points: Sequence[LoadPoint]) -> SaturationSign | None:
    """Return the first sign along rising load, or None. The first point of a curve has nothing to be compared with."""
    for index in range(1, len(points)):
        if (why := _jumps(points[index - 1], points[index]) or _flattens(points[: index + 1])) is not None:
            return SaturationSign(index, why)
    return None


def _jumps(before: LoadPoint, after: LoadPoint) -> str | None:
    if before.ttft is None or after.ttft is None or after.ttft < LEAST_JUMP * before.ttft:
        return None
    steepness = math.log(after.ttft / before.ttft) / math.log(after.load / before.load)
    if steepness <= STEEPEST_TTFT:
        return None
    return (
        f"TTFT grows from {before.ttft:.3g} to {after.ttft:.3g} s while the load grows from {before.load:g} to "
        f"{after.load:g}: a queue"
    )


def _flattens(points: Sequence[LoadPoint]) -> str | None:
    if len(points) < 3:
        return None
    first, second, third = points[-3:]
    before = (second.tpot - first.tpot) / (second.load - first.load)
    after = (third.tpot - second.tpot) / (third.load - second.load)
    if before <= 0 or after >= FLATTEST_TPOT * before:
        return None
    return f"TPOT stays at {third.tpot * 1e3:.3g} ms while the load grows to {third.load:g}: the batch no longer grows"
