"""Inter-token latency as a function of batch size: measured points where available, the fitted line elsewhere.

Separate from the line, which models few or noisy windows. Points that are long means (a sweep, or many binned windows)
curve in ways that no line has, and within their range the nearest points are more accurate than any model. One or two
minutes far off the line are not a long mean: while a batch grows or drains, its mean lags behind that of its tokens.
Must not: be flat or falling. A larger batch never makes tokens faster; points that suggest so are noise.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.consolidation import MISS_UNKNOWN
from vllm_autotuner.performance.outliers import outlying
from vllm_autotuner.performance.step_time import (
    FEWEST_POINTS,
    NoFit,
    StepTime,
    fit_step_time,
    fit_windows,
    windows_of_newest_mix,
)

__all__ = ["BatchCurve", "BatchCurveFit", "fit_batch_curve"]

BIN: Final = 2**0.25
"""Points whose batches lie closer than this factor are one: four to a doubling. Our choice."""
MISS_LEAST: Final = 0.05
"""Relative, per doubling beyond the largest batch seen , of a curve whose own last point the line of
the others foresaw. Those missed by 0.06 at most, but for the kinks and full pools that no earlier point announces. Our
choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """Seconds at each batch, rising; between them straight, beyond them the line's slope."""

    batches: tuple[float, ...]
    itls: tuple[float, ...]
    line: StepTime
    miss: float
    """Relative error to expect per doubling beyond the largest batch: that of foreseeing its own last point."""

    @property
    def high(self) -> float:
        """The largest batch seen."""
        return self.batches[-1]

    def covers(self, batch: float) -> bool:
        """Whether `batch` lies inside what was seen."""
        return self.batches[0] <= batch <= self.batches[-1]

    def predict(self, batch: float) -> float:
        """The mean inter-token latency in seconds."""
        if batch > self.high:
            return self.itls[-1] + self.line.per_sequence * (batch - self.high)
        if batch < self.batches[0]:
            return max(self.itls[0] - self.line.per_sequence * (self.batches[0] - batch), self.itls[0] / 2)
        return float(np.interp(batch, self.batches, self.itls))

    def at_most(self, batch: float) -> float:
        """The latency to plan with: the prediction, and beyond what was seen also what it may miss."""
        doublings = max(0.0, math.log2(batch / self.high))
        return self.predict(batch) * (1 + self.miss * doublings)


BatchCurveFit: TypeAlias = BatchCurve | NoFit


def fit_batch_curve(points: Sequence[StepPoint]) -> BatchCurveFit:
    """Bin the points by batch, weighted by the tokens behind them, leave out what is chance, and make the bins rise."""
    windows = windows_of_newest_mix(points)
    line = fit_windows(windows)
    if isinstance(line, NoFit):
        return line
    bins: list[list[StepPoint]] = []
    for point in sorted(windows, key=lambda point: point.running):
        if bins and point.running < bins[-1][0].running * BIN:
            bins[-1].append(point)
        else:
            bins.append([point])
    # The line goes through some of them, so that something is left.
    means = [_mean(members) for members in bins if not _is_chance(members, line)]
    return BatchCurve(batches=tuple(mean.running for mean in means), itls=_rising(means), line=line, miss=_miss(means))


def _is_chance(points: Sequence[StepPoint], line: StepTime) -> bool:
    """Whether these are a window or two that the line of all calls outliers. Points of no window are long means."""
    if len(points) >= FEWEST_POINTS or any(point.time is None for point in points):
        return False
    mean = _mean(points)
    return abs(line.predict(mean.running) / mean.itl - 1) > outlying(line.error)


def _miss(points: Sequence[StepPoint]) -> float:
    """Return how far the line of all points but the last misses the last, per doubling; unknown for too few."""
    line = fit_step_time(points[:-1])
    if isinstance(line, NoFit):
        return MISS_UNKNOWN
    before, last = points[-2], points[-1]
    foreseen = before.itl + line.per_sequence * (last.running - before.running)
    return max(MISS_LEAST, (last.itl / foreseen - 1) / math.log2(last.running / before.running))


def _mean(points: Sequence[StepPoint]) -> StepPoint:
    tokens = sum(point.tokens for point in points)
    running = sum(point.running * point.tokens for point in points) / tokens
    return StepPoint(running=running, itl=sum(point.itl * point.tokens for point in points) / tokens, tokens=tokens)


def _rising(points: Sequence[StepPoint]) -> tuple[float, ...]:
    """Return the closest rising latencies: neighbours that fall are replaced by their weighted mean."""
    pools: list[tuple[float, float, int]] = []
    for point in points:
        itl, tokens, count = point.itl, point.tokens, 1
        while pools and pools[-1][0] > itl:
            other, weight, members = pools.pop()
            itl = (other * weight + itl * tokens) / (weight + tokens)
            tokens, count = tokens + weight, count + members
        pools.append((itl, tokens, count))
    return tuple(itertools.chain.from_iterable([itl] * count for itl, _, count in pools))
