"""The step-time model: a line of inter-token latency over batch size, fitted to this service's own windows.

Inside one length mix a line `a + c * batch` describes measured curves to about 1-4 % (24 curves of six
model and GPU groups); it is valid for the length mix of the fitted windows. After a change of the mix, the earlier
windows are left out: a line through both mixes fits neither. Pure; numpy only.
Must not: extrapolate silently. `covers` says whether a batch was observed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.outliers import LEAST, outlying
from vllm_autotuner.performance.prompt_share import with_newest_prompts

__all__ = [
    "FEWEST_POINTS",
    "NEWEST_STRETCHES",
    "SHORTEST_STEP",
    "NoFit",
    "StepTime",
    "StepTimeFit",
    "at_quantile",
    "fit_step_time",
    "fit_windows",
    "windows_of_newest_mix",
]

FEWEST_POINTS: Final = 3
"""Two points always lie on a line; the third can contradict."""
SHORTEST_STEP: Final = 1e-6
"""Seconds. No engine computes a token faster; what claims so is a broken clock, and dividing by it would overflow."""
LEAST_SPREAD: Final = 1.5
"""Largest batch seen over smallest. Below it the slope is noise divided by noise. Our choice, unmeasured."""
NEWEST_STRETCHES: Final = (300.0, 600.0)
"""Seconds. The stretches up to now that the line has to describe. Five windows of a minute: their median stands against
two odd ones and sees a jump after three; ten see what is small beside the noise of five. Our choice."""
TOLERANCE: Final = 0.05
"""By how much (relative) the line may miss the newest windows, in the median and beyond what their own line misses, or
fall, before something else than the batch must have changed. Above the 1-4 % by which a line misses a curve of one mix.
Our choice."""
TURNED: Final = 1.5
"""Times their own scatter that the line may miss the newest windows by to both sides, beside `TOLERANCE`: the line of a
few windows follows their noise, so that any other one misses them by more. Our choice."""
ROUNDING: Final = 1e-12
"""Part of a latency below which a difference is no more than how numbers are kept (1e-16 each, a few dozen of them)."""
LEFT_OUT: Final = 0.25
"""Share of the oldest windows that one attempt leaves out. Our choice: seven attempts from 30 min down to 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Mean inter-token latency (seconds) = base + per_sequence * batch, for batches from `low` to `high`."""

    base: float
    per_sequence: float
    low: float
    high: float
    points: int
    error: float
    """Mean absolute relative residual (0..1) of the points it was fitted on."""

    def predict(self, batch: float) -> float:
        """The mean inter-token latency in seconds at `batch` running sequences."""
        return self.base + self.per_sequence * batch

    def covers(self, batch: float) -> bool:
        """Whether `batch` lies inside what was seen."""
        return self.low <= batch <= self.high

    def through(self, batch: float, itl: float) -> "StepTime":
        """Return the line of what is measured now, where tokens come later than this one can err; else this one.

        Longer prompts lengthen what each sequence adds, and leave the step of none as it is: weights are read all the
        same. Worked: 10 ms + 0.5 ms each foresees 20 ms at 20; measured are 30, so each adds 1 ms.
        """
        late = itl > self.predict(batch) * (1 + outlying(self.error))
        if not late or batch < 1:
            return self
        return replace(self, per_sequence=(itl - self.base) / batch, low=batch, high=batch)


@dataclass(frozen=True, slots=True)
class NoFit:
    """There is no model, and this is why."""

    why: str


FloatArray: TypeAlias = NDArray[np.float64]
StepTimeFit: TypeAlias = StepTime | NoFit


def fit_step_time(points: Sequence[StepPoint]) -> StepTimeFit:
    """Fit the line by weighted least squares on relative error, then once more without the worst outliers.

    Weight is the number of tokens behind a point. Negative parts are physically impossible and become NoFit or zero.
    Only windows of the newest length mix are fitted, see `windows_of_newest_mix`.
    """
    return fit_windows(windows_of_newest_mix(points))


def at_quantile(model: StepTime, *, tail: float, seen_at: float) -> StepTime:
    """Return the line of a quantile that is `tail` times the mean at a batch of `seen_at`.

    A single sequence has no tail: the quantile lies above the mean by what the batch adds, and shrinks with it.
    Worked: 10 ms + 0.1 ms each, at 100 a mean of 20 ms and a tail of 2: the batch adds 30 ms to the quantile, 0.3 each.
    """
    if tail <= 1 or model.per_sequence * seen_at <= 0:
        return replace(model, base=model.base * max(tail, 1.0), per_sequence=model.per_sequence * max(tail, 1.0))
    return replace(model, per_sequence=(tail * model.predict(seen_at) - model.base) / seen_at)


def windows_of_newest_mix(points: Sequence[StepPoint]) -> list[StepPoint]:
    """Return the usable points less the old ones that no line through them and the newest describes.

    Windows of other prompts are brought to those of now first, where prompts explain the difference.
    The longest stretch up to now wins whose line neither falls nor misses the newest windows. All points when there
    is none (a model of before beats none), when too few are new to tell, or when they have no times.
    """
    usable = [point for point in points if point.running >= 1 and point.itl >= SHORTEST_STEP and point.tokens > 0]
    usable = with_newest_prompts(usable)
    times = sorted({point.time for point in usable if point.time is not None})
    kept = usable
    while len(_since(kept, times, NEWEST_STRETCHES[0])) >= FEWEST_POINTS:
        if _describes(kept, times):
            return kept
        if times[0] > times[-1] - NEWEST_STRETCHES[0]:
            break
        times = times[math.ceil(LEFT_OUT * len(times)) :]
        kept = [point for point in kept if point.time is None or point.time >= times[0]]
    return usable


def _since(points: Sequence[StepPoint], times: Sequence[float], seconds: float) -> list[StepPoint]:
    return [point for point in points if point.time is not None and point.time > times[-1] - seconds]


def _describes(points: Sequence[StepPoint], times: Sequence[float]) -> bool:
    """Whether the line of `points` can be true of now: it does not fall, and goes through the newest."""
    batch, itl, weight = _columns(points)
    if batch.max() < LEAST_SPREAD * batch.min():
        return False
    base, slope, _ = _robust_line(batch, itl, weight)
    low, high = base + slope * batch.min(), base + slope * batch.max()
    if slope < 0:
        # Noise tilts a flat line a little; more is two mixes, the slow one seen at smaller batches.
        return bool(high >= (1 - TOLERANCE) * low)
    stretches = [_since(points, times, seconds) for seconds in NEWEST_STRETCHES]
    return all(_goes_through(newest, base, slope) for newest in stretches)


def _goes_through(newest: Sequence[StepPoint], base: float, slope: float) -> bool:
    """Whether the line is off by no more than noise: neither to one side, nor to both by clearly more than their own.

    Another mix moves all windows to one side, or turns their line; noise moves as many up as down.
    """
    missed, scatter = _residuals(newest, base, slope), _scatter(newest)
    aside, off = abs(median(missed)), median(abs(each) for each in missed)
    return aside <= scatter + TOLERANCE and off <= TURNED * scatter + TOLERANCE


def _scatter(points: Sequence[StepPoint]) -> float:
    """By how much the points miss the best that can be said of them alone, to either side."""
    batch, itl, weight = _columns(points)
    spread = batch.max() >= LEAST_SPREAD * batch.min()
    missed = _residuals(points, *(_line(batch, itl, weight) if spread else (median(itl.tolist()), 0.0)))
    return median(abs(each) for each in missed)


def _residuals(points: Sequence[StepPoint], base: float, slope: float) -> list[float]:
    batch, itl, _ = _columns(points)
    missed: list[float] = ((base + slope * batch) / itl - 1).tolist()
    return missed


def fit_windows(usable: Sequence[StepPoint]) -> StepTimeFit:
    """Fit the line to the windows of one mix, as `fit_step_time` does after it has selected them."""
    if len(usable) < FEWEST_POINTS:
        return NoFit(f"only {len(usable)} windows with load ({FEWEST_POINTS} needed)")
    batch, itl, weight = _columns(usable)
    if batch.max() < LEAST_SPREAD * batch.min():
        return NoFit(f"the batch size only varied between {batch.min():.1f} and {batch.max():.1f}")
    base, slope, keep = _robust_line(batch, itl, weight)
    if slope < 0:
        return NoFit("inter-token latency does not grow with the batch size")
    batch, itl = batch[keep], itl[keep]
    error = float(np.mean(np.abs(base + slope * batch - itl) / itl))
    # A window that began with one batch and ended with another has the mean of both and the latency of the larger: of a
    # few windows none outvotes it, and all of them miss the line as outliers of noise do.
    if error > outlying(LEAST):
        return NoFit(f"a line misses the {len(batch)} windows with load by {error:.0%} in the mean")
    return StepTime(
        base=base, per_sequence=slope, low=float(batch.min()), high=float(batch.max()), points=len(batch), error=error
    )


def _columns(points: Sequence[StepPoint]) -> tuple[FloatArray, FloatArray, FloatArray]:
    rows = np.array([(point.running, point.itl, point.tokens) for point in points])
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _robust_line(batch: FloatArray, itl: FloatArray, weight: FloatArray) -> tuple[float, float, NDArray[np.bool_]]:
    """Return base, slope and which points they are of: all but the worst outliers."""
    base, slope = _line(batch, itl, weight)
    residual = np.abs(base + slope * batch - itl) / itl
    keep = residual <= outlying(median(residual.tolist()))
    if keep.sum() >= FEWEST_POINTS and batch[keep].max() >= LEAST_SPREAD * batch[keep].min():
        batch, itl, weight = batch[keep], itl[keep], weight[keep]
        base, slope = _line(batch, itl, weight)
    else:
        keep = np.ones(len(batch), dtype=np.bool_)
    if base < 0 <= slope:
        # A line through the origin: all of the step is per sequence. Refit the slope alone.
        base, slope = 0.0, float(np.sum(weight * batch / itl) / np.sum(weight * (batch / itl) ** 2))
    return base, slope, keep


def _line(batch: FloatArray, itl: FloatArray, weight: FloatArray) -> tuple[float, float]:
    # Relative error: divide by itl, squared. Around the means, so that nothing large is subtracted from its like.
    share = weight / weight.max() / (itl / itl.min()) ** 2
    share /= share.sum()
    centre, level = float(share @ batch), float(share @ itl)
    away = share * (batch - centre)
    spread = float(away @ (batch - centre))
    slope = float(away @ (itl - level)) / spread if spread > 0 else 0.0
    if abs(slope) * float(batch.max() - batch.min()) < ROUNDING * level:
        slope = 0.0  # equal latencies: which way they tilt is up to the last bit of a number
    return level - slope * centre, slope
