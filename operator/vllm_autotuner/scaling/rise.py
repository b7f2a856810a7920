"""Whether a load that rises will be too much for the replicas there are, by the time that another one serves.

Apart from scale-out for what is late already: a replica takes minutes to start, and a load that rises for an hour is
late for as long before each of them. Apart from `scale_in`, which has to be sure that fewer do: here what is likely
counts. Pure. Must not: take for a rise what chance does to a steady load, or the first minutes of a new one.
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
"""Windows more than the lines need, in the whole and in its later half: without them they have no error. Our choice."""
SURELY: Final = 3.0
"""Standard deviations that the slope is above none: asked every 15 s, two of them would come by chance some time. Our
choice: 1 in 700."""
LASTING: Final = 0.5
"""Share of the whole slope that the later half has to have. Our choice: a straight rise has all, a step none."""


def too_much_soon(case: Case, *, replicas: int, over: timedelta, since: float | None, within: float) -> str | None:
    """Say how tokens will be late on so many replicas `within` so many seconds; None where they may not be.

    None as well when something that the answer needs is not known. Only tokens are asked: first tokens that are late
    by a queue have causes that cost no replica. `over` and `since`: as for `growth`.
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
        f"{replicas} would be at a batch of {batch:.0f} each then, {told_seconds(tpot)} per token"
    )


def growth(
    observation: Observation, *, within: float, over: timedelta, since: float | None, deviations: float = SURELY
) -> float | None:
    """Return how many times as many requests as now will come in so many seconds; None where not surely more.

    By what the same engines served in one window of the time `over` after another: who comes meanwhile takes from the
    others, and who goes takes along what he told. `since`: Unix seconds before which somebody did. In the later half
    they have to become more as well: of a load that has only just come they do not.
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
    """Relative to the level in the middle: by which share requests become more in a second, and how sure that is."""

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
