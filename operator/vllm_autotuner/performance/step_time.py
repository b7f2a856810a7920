"""The step-time model: a line of inter-token latency over batch size, fitted to this service's own windows.

Inside one length mix a line `a + c * batch` describes measured curves to about 1-4 % (24 curves of six
model and GPU groups; a sweep of an 8B from 1 to 256 clients to 9 % in the median); it is valid for the length mix of
the fitted windows. After a change of the mix, the earlier windows are left out: a line through both mixes fits neither.
A mixture of experts bends the line: each further sequence reads fewer experts that no other has read. With a part in
proportion to the experts read, half of the points of 36 curves of three mixtures foretell those between them to 1.6 %
in the median and 5.1 % in nine of ten, where a line misses by 4.3 % and 15.2 %. Pure; numpy only.
Must not: extrapolate silently. `covers` says whether a batch was observed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.non_negative import non_negative
from vllm_autotuner.performance.outliers import outlying
from vllm_autotuner.performance.prompt_share import with_newest_prompts

__all__ = [
    "FEWEST_POINTS",
    "NEWEST_STRETCHES",
    "SHORTEST_STEP",
    "NoFit",
    "StepCurve",
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
The weight, too, of what is assumed of a mixture of experts. Our choice."""
TURNED: Final = 1.5
"""Times their own scatter that the line may miss the newest windows by to both sides, beside `TOLERANCE`: the line of a
few windows follows their noise, so that any other one misses them by more. Our choice."""
ROUNDING: Final = 1e-12
"""Part of a latency below which a difference is no more than how numbers are kept (1e-16 each, a few dozen of them)."""
LEFT_OUT: Final = 0.25
"""Share of the oldest windows that one attempt leaves out. Our choice: seven attempts from 30 min down to 5."""


FloatArray: TypeAlias = NDArray[np.float64]
Batch = TypeVar("Batch", float, FloatArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """Mean inter-token latency (seconds) = base + per_sequence * batch, and for a mixture the time to read experts."""

    base: float
    per_sequence: float
    experts: Experts | None = None
    """None: dense, or not known. Then it is a line."""
    reading: float = 0.0
    """Seconds in which all experts are read; a step reads those that its tokens choose. 0 without any."""

    def read(self, batch: Batch) -> Batch:
        """Return the seconds in which a step of `batch` sequences reads experts, by one token a sequence.

        Of tokens that choose evenly and each for itself. Worked: 8 of 128 a token and 14 ms for all: ten sequences read
        1 - (120/128)^10, 48 %, of them in 6.7 ms.
        """
        return batch * 0.0 if self.experts is None else self.reading * (1 - self.experts.unread**batch)

    def added(self, batch: Batch) -> Batch:
        """Return the seconds by which `batch` sequences lengthen a step without any."""
        alike = self.per_sequence * batch
        return alike if self.experts is None else alike + self.read(batch)

    def predict(self, batch: Batch) -> Batch:
        """The mean inter-token latency in seconds at `batch` running sequences."""
        line = self.base + self.per_sequence * batch
        return line if self.experts is None else line + self.read(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(StepCurve):
    """The curve of a service, for batches from `low` to `high`."""

    low: float
    high: float
    points: int
    error: float
    """Mean absolute relative residual (0..1) of the points it was fitted on."""

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
        return replace(self, per_sequence=(itl - self.base - self.read(batch)) / batch, low=batch, high=batch)

    def scaled_through(self, batch: float, itl: float, *, base: float) -> "StepTime":
        """Return the curve from `base` to `itl` at `batch`: all that the batch adds is scaled alike.

        Worked: 10 ms + 0.1 ms a sequence through 50 ms at 100 from 10 ms: 0.4 ms a sequence.
        """
        if not self.reading:
            return replace(self, base=base, per_sequence=(itl - base) / batch)
        times = (itl - base) / self.added(batch)
        return replace(self, base=base, per_sequence=self.per_sequence * times, reading=self.reading * times)


@dataclass(frozen=True, slots=True)
class NoFit:
    """There is no model, and this is why."""

    why: str


StepTimeFit: TypeAlias = StepTime | NoFit


def fit_step_time(points: Sequence[StepPoint]) -> StepTimeFit:
    """Fit the curve by weighted least squares on relative error, then once more without the worst outliers.

    Weight is the number of tokens behind a point. Negative parts are physically impossible and become NoFit or zero.
    Only windows of the newest length mix are fitted, see `windows_of_newest_mix`.
    """
    return fit_windows(windows_of_newest_mix(points))


def at_quantile(model: StepTime, *, tail: float, seen_at: float) -> StepTime:
    """Return the line of a quantile that is `tail` times the mean at a batch of `seen_at`.

    A single sequence has no tail: the quantile lies above the mean by what the batch adds, and shrinks with it.
    Worked: 10 ms + 0.1 ms each, at 100 a mean of 20 ms and a tail of 2: the batch adds 30 ms to the quantile, 0.3 each.
    """
    if tail <= 1 or model.added(seen_at) <= 0:
        times = max(tail, 1.0)
        return replace(
            model, base=model.base * times, per_sequence=model.per_sequence * times, reading=model.reading * times
        )
    return model.scaled_through(seen_at, tail * model.predict(seen_at), base=model.base)


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
    curve, _ = _robust(batch, itl, weight, points[0].experts)
    low, high = curve.predict(float(batch.min())), curve.predict(float(batch.max()))
    if curve.per_sequence < 0:
        # Noise tilts a flat line a little; more is two mixes, the slow one seen at smaller batches.
        return bool(high >= (1 - TOLERANCE) * low)
    stretches = [_since(points, times, seconds) for seconds in NEWEST_STRETCHES]
    return all(_goes_through(newest, curve) for newest in stretches)


def _goes_through(newest: Sequence[StepPoint], curve: StepCurve) -> bool:
    """Whether the line is off by no more than noise: neither to one side, nor to both by clearly more than their own.

    Another mix moves all windows to one side, or turns their line; noise moves as many up as down.
    """
    missed, scatter = _residuals(newest, curve), _scatter(newest)
    aside, off = abs(median(missed)), median(abs(each) for each in missed)
    return aside <= scatter + TOLERANCE and off <= TURNED * scatter + TOLERANCE


def _scatter(points: Sequence[StepPoint]) -> float:
    """By how much the points miss the best that can be said of them alone, to either side."""
    batch, itl, weight = _columns(points)
    spread = batch.max() >= LEAST_SPREAD * batch.min()
    level = StepCurve(base=median(itl.tolist()), per_sequence=0.0)
    missed = _residuals(points, _curve(batch, itl, weight, points[0].experts) if spread else level)
    return median(abs(each) for each in missed)


def _residuals(points: Sequence[StepPoint], curve: StepCurve) -> list[float]:
    batch, itl, _ = _columns(points)
    missed: list[float] = (curve.predict(batch) / itl - 1).tolist()
    return missed


def fit_windows(usable: Sequence[StepPoint]) -> StepTimeFit:
    """Fit the curve to the windows of one mix, as `fit_step_time` does after it has selected them."""
    if len(usable) < FEWEST_POINTS:
        return NoFit(f"only {len(usable)} windows with load ({FEWEST_POINTS} needed)")
    batch, itl, weight = _columns(usable)
    if batch.max() < LEAST_SPREAD * batch.min():
        return NoFit(f"the batch size only varied between {batch.min():.1f} and {batch.max():.1f}")
    curve, keep = _robust(batch, itl, weight, usable[0].experts)
    if curve.per_sequence < 0:
        return NoFit("inter-token latency does not grow with the batch size")
    batch, itl = batch[keep], itl[keep]
    error = float(np.mean(np.abs(curve.predict(batch) - itl) / itl))
    # A window that began with one batch and ended with another has the mean of both and the latency of the larger: of a
    # few windows none outvotes it, and all of them miss the line as outliers of noise do.
    if error > outlying(NOISE):
        what = "a line" if curve.experts is None else "the curve of a mixture of experts"
        return NoFit(f"{what} misses the {len(batch)} windows with load by {error:.0%} in the mean")
    return StepTime(
        base=curve.base,
        per_sequence=curve.per_sequence,
        experts=curve.experts,
        reading=curve.reading,
        low=float(batch.min()),
        high=float(batch.max()),
        points=len(batch),
        error=error,
    )


def _columns(points: Sequence[StepPoint]) -> tuple[FloatArray, FloatArray, FloatArray]:
    rows = np.array([(point.running, point.itl, point.tokens) for point in points])
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _robust(
    batch: FloatArray, itl: FloatArray, weight: FloatArray, experts: Experts | None
) -> tuple[StepCurve, NDArray[np.bool_]]:
    """Return the curve and which points it is of: all but the worst outliers."""
    curve = _curve(batch, itl, weight, experts)
    residual = np.abs(curve.predict(batch) - itl) / itl
    keep = residual <= outlying(median(residual.tolist()))
    if keep.sum() >= FEWEST_POINTS and batch[keep].max() >= LEAST_SPREAD * batch[keep].min():
        batch, itl, weight = batch[keep], itl[keep], weight[keep]
        curve = _curve(batch, itl, weight, experts)
    else:
        keep = np.ones(len(batch), dtype=np.bool_)
    if curve.base < 0 <= curve.per_sequence:
        # A line through the origin: all of the step is per sequence. Refit the slope alone.
        slope = float(np.sum(weight * batch / itl) / np.sum(weight * (batch / itl) ** 2))
        curve = replace(curve, base=0.0, per_sequence=slope)
    return curve, keep


def _curve(batch: FloatArray, itl: FloatArray, weight: FloatArray, experts: Experts | None) -> StepCurve:
    """Fit all points: a line, which may fall, and a mixture whose line does not by parts of which none is negative.

    Batches close together do not tell a slope from a bend. There the time to read all experts is that of an empty step:
    0.5 to 4.7 times that on some thirty curves of four mixtures. A difference of the shortest step counts as much as
    one window that is missed by `TOLERANCE`.
    """
    base, slope = _line(batch, itl, weight)
    if experts is None or slope <= 0:
        return StepCurve(base=base, per_sequence=slope)
    parts = np.column_stack([np.ones(len(batch)), batch, 1 - experts.unread**batch])
    root = np.sqrt(weight / weight.max())
    rows = np.vstack([parts * (root / itl)[:, None], TOLERANCE / itl.min() * np.array([-1.0, 0.0, 1.0])])
    base, slope, reading = non_negative(rows, np.append(root, 0.0)).tolist()
    if slope * float(batch.max()) < ROUNDING * float(itl.min()):
        slope = 0.0  # no part of the step; a knee of 1e19 sequences with it
    return StepCurve(base=base, per_sequence=slope, experts=experts, reading=reading)


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
