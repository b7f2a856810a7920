"""Predicts whether a rising load will exceed the current replicas before another one can serve.

Separate from scale-out on latencies that are late already: a replica takes minutes to start, and with a load that rises
for an hour requests would be late for minutes before each scale-out. Separate from `scale_in`, which has to be certain
that fewer replicas are enough: here the likely value counts.
Pure. Must not: treat random changes of a steady load, or the first minutes of a new load, as a rise.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np

from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.case import Case, tpot_tail
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.batch_curve import fit_batch_curve
from vllm_autotuner.performance.step_time import NoFit
from vllm_autotuner.scaling.carrying import batch_for
from vllm_autotuner.scaling.lateness import begin_of, first_tokens_since

__all__ = ["growth", "too_much_soon"]

FEWEST: Final = 2
"""Degrees of freedom that the fits need, for the whole and for its later half, to estimate their error. Our choice."""
SURELY: Final = 3.0
"""Standard deviations by which the slope must exceed zero: evaluated every 15 s, two would occur by chance. Our choice:
1 in 700."""
LASTING: Final = 0.5
"""Share of the whole slope that the later half must have. Our choice: a linear rise has all of it, a step none."""


def too_much_soon(case: Case, *, replicas: int, over: timedelta, since: float | None, within: float) -> str | None:
    """Say why TPOT will be late on the current replicas `within` so many seconds; None if it may not be.

    None as well if an input is not known. Only TPOT is predicted: a TTFT that is late by a queue can have causes that
    need no replica. `over` and `since`: as for `growth`.
    """
    observation = case.observation
    grows = growth(observation, within=within, over=over, since=since)
    if grows is None:
        return None
    curve, load = fit_batch_curve(observation.steps), observation.generated_per_second
    if isinstance(curve, NoFit) or load is None:
        return None
    batch = batch_for(load * grows / replicas, curve, itl=curve.predict)
    if batch is None:
        return None
    tpot = curve.predict(batch) * tpot_tail(case)
    if tpot <= case.targets.tpot.seconds:
        return None
    return (
        f"the load rises by {grows - 1:.0%} in the {within:.0f} s that a replica takes to start: "
        f"{replicas} replica(s) would reach batch size {batch:.0f} and a TPOT of {told_seconds(tpot)}"
    )


def growth(
    observation: Observation, *, within: float, over: timedelta, since: float | None, deviations: float = SURELY
) -> float | None:
    """Return the ratio of the request rate in so many seconds to the current one; None if it does not surely grow.

    From the requests that the same engines served in successive windows of the time `over`: a new engine takes load
    from the others, and one that ends takes its metrics with it. `since`: Unix seconds of the last scale-in. The later
    half must grow as well, so that a step to a new level does not count.
    Worked: windows of 30 s, each with 2 requests more than the one before, 138 now: 240 s from the end of this one are
    255 s from its middle, 17 more: 1.12.
    """
    by_time: dict[float, list[float]] = defaultdict(list)
    for one in first_tokens_since(begin_of(observation, over=over, since=since), observation):
        by_time[one.time].append(one.requests)
    windows = [_Window(time=time, engines=len(each), requests=sum(each)) for time, each in sorted(by_time.items())]
    whole, later = _line(windows), _line(windows[len(windows) // 2 :])
    if whole is None or later is None or later.slope < whole.slope * LASTING:
        return None
    if whole.slope <= deviations * whole.error:
        return None
    # The last window counts what came half a window ago, on average.
    return whole.at(observation.at + observation.window / 2 + within) / whole.at(observation.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    time: float
    engines: int
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A fitted line relative to the level in the middle: relative growth per second, and its standard error."""

    middle: float
    slope: float
    error: float

    def at(self, time: float) -> float:
        return 1 + self.slope * (time - self.middle)


def _line(windows: Sequence[_Window]) -> _Line | None:
    """Fit one slope, and a level for each number of engines; None for too few windows, or none that are loaded.

    Scatter is what is left over, and that of independent arrivals at least.
    """
    groups: dict[int, list[_Window]] = defaultdict(list)
    for window in windows:
        groups[window.engines].append(window)
    free = len(windows) - len(groups) - 1
    if free < FEWEST:
        return None
    x, y = np.empty(0), np.empty(0)
    for members in groups.values():
        times, counts = np.array([one.time for one in members]), np.array([one.requests for one in members])
        x, y = np.append(x, times - times.mean()), np.append(y, counts / counts.mean() - 1)
    # Two engines that come and go by turns leave no two windows of a kind.
    spread = float((x**2).sum())
    if spread <= 0:
        return None
    slope = float((x * y).sum()) / spread
    left = max(float(((y - slope * x) ** 2).sum()) / free, len(windows) / sum(window.requests for window in windows))
    middle = sum(window.time for window in windows) / len(windows)
    return _Line(middle=middle, slope=slope, error=math.sqrt(left / spread))
