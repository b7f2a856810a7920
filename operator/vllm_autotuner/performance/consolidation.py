"""Predicts how much slower tokens become when fewer engines carry the same load.

Separate from the fitted models, which need the batch size: here it is not known, because slower tokens keep sequences
running longer, which makes the batch larger still. Planning uses the most likely line; this uses the steepest line that
the windows do not contradict, because batch sizes sampled a few times per window make a fit too flat.
Pure. Must not: predict more than this engine or any measured engine has shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.observation.noise import DEVIATIONS
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import FEWEST_POINTS, windows_of_newest_mix

__all__ = ["MISS_UNKNOWN", "Slowdown", "slowdown"]

MISS_UNKNOWN: Final = 0.15
"""Relative, per doubling beyond the largest batch seen: how much slower than the line tokens may be. 42 extrapolations
by one doubling of 23 measured curves missed by 0.01 in the median, 0.09 in nine of ten, 0.18 at worst."""
LARGEST_SHARE: Final = 0.2
"""By how much of the step of a single sequence each further one lengthens it, where this engine has not shown less.
24 measured curves of 8B to 70B models: 0.004 to 0.08, and 0.13 to 0.17 for prompts of 32 times the output. vLLM on two
CPU cores: 0.05 to 0.4, which is why an answer from here is told apart from one that was measured."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Tokens come `factor` times slower; `measured` when this engine's own windows say so."""

    factor: float
    measured: bool


def slowdown(points: Sequence[StepPoint], *, running: float, itl: float, more: float) -> Slowdown:
    """Return how much slower tokens come at `more` times the load than now, with `running` sequences and `itl` seconds.

    On a line, itl = alone + slope * running, and what arrives fixes running / itl; solved for the ratio of both itl.
    Worked, unseen: 1 sequence, twice the load. A step is 1.2 with a slope of 0.2: (1.2 - 0.2) / (1.2 - 2 * 0.2) = 1.25.
    Unseen it is never above `more`, as if all of a step were the batch's and the batch followed the load.
    """
    assumed = LARGEST_SHARE * itl / (1 + LARGEST_SHARE * running)
    windows = windows_of_newest_mix(points)
    line = _slopes(windows)
    if line is None or line.likeliest <= assumed < line.steepest:
        return Slowdown(min(more, _ratio(assumed, running=running, itl=itl, more=more)), measured=False)
    factor = _ratio(line.steepest, running=running, itl=itl, more=more)
    beyond = running * more * factor / max(point.running for point in windows)
    doublings = math.log2(beyond) if 1 < beyond < math.inf else 0.0
    return Slowdown(factor * (1 + MISS_UNKNOWN * doublings), measured=True)


def _ratio(slope: float, *, running: float, itl: float, more: float) -> float:
    left = itl - slope * running * more
    return (itl - slope * running) / left if left > 0 else math.inf


@dataclass(frozen=True, slots=True)
class _Slopes:
    """Seconds per sequence."""

    likeliest: float
    steepest: float


def _slopes(points: Sequence[StepPoint]) -> _Slopes | None:
    """Return the slope if all noise is in the latencies, and if all is in the batches. None: nothing rises.

    Source of the second: Frisch's bound for a regression with errors in its variables, the slope over R squared.
    """
    if len(points) < FEWEST_POINTS:
        return None
    weight = sum(point.tokens for point in points)
    batch = sum(point.tokens * point.running for point in points) / weight
    level = sum(point.tokens * point.itl for point in points) / weight
    spread = sum(point.tokens * (point.running - batch) ** 2 for point in points) / weight
    noise = sum(point.tokens * (point.itl - level) ** 2 for point in points) / weight
    both = sum(point.tokens * (point.running - batch) * (point.itl - level) for point in points) / weight
    if spread <= 0 or both <= 0:
        return None
    slope, reverse = both / spread, noise / both
    independent = weight**2 / sum(point.tokens**2 for point in points)
    error = math.sqrt(max(0.0, noise / spread - slope**2) / max(1.0, independent - 2))
    return _Slopes(likeliest=slope, steepest=max(reverse, slope + DEVIATIONS * error))
