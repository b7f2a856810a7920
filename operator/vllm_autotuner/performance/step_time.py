"""How the time between tokens grows with the batch, fitted to this service's own windows.

Inside one length mix a line `a + c * batch` describes measured curves to about 1-4 % (24 curves of six
model and GPU groups); the mix of the fitted hours is the mix it is valid for. Pure; numpy only.
Must not: extrapolate silently. `covers` says whether a batch was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.observation.observation import StepPoint

__all__ = ["NoFit", "StepTime", "StepTimeFit", "fit_step_time"]

FEWEST_POINTS: Final = 3
"""Two points always lie on a line; the third can contradict."""
SHORTEST_STEP: Final = 1e-6
"""Seconds. No engine computes a token faster; what claims so is a broken clock, and dividing by it would overflow."""
LEAST_SPREAD: Final = 1.5
"""Largest batch seen over smallest. Below it the slope is noise divided by noise. Our choice, unmeasured."""


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


@dataclass(frozen=True, slots=True)
class NoFit:
    """There is no model, and this is why."""

    why: str


FloatArray: TypeAlias = NDArray[np.float64]
StepTimeFit: TypeAlias = StepTime | NoFit


def fit_step_time(points: Sequence[StepPoint]) -> StepTimeFit:
    """Fit the line by weighted least squares on relative error, then once more without the worst outliers.

    Weight is the number of tokens behind a point. Negative parts are physically impossible and become NoFit or zero.
    """
    usable = [point for point in points if point.running >= 1 and point.itl >= SHORTEST_STEP and point.tokens > 0]
    if len(usable) < FEWEST_POINTS:
        return NoFit(f"{len(usable)} windows with load, {FEWEST_POINTS} needed")
    batch = np.array([point.running for point in usable])
    itl = np.array([point.itl for point in usable])
    weight = np.array([point.tokens for point in usable])
    if batch.max() < LEAST_SPREAD * batch.min():
        return NoFit(f"the batch only moved between {batch.min():.1f} and {batch.max():.1f}")
    base, slope = _line(batch, itl, weight)
    residual = np.abs(base + slope * batch - itl) / itl
    keep = residual <= max(0.1, 3 * float(np.median(residual)))
    if keep.sum() >= FEWEST_POINTS and batch[keep].max() >= LEAST_SPREAD * batch[keep].min():
        batch, itl, weight = batch[keep], itl[keep], weight[keep]
        base, slope = _line(batch, itl, weight)
    if slope < 0:
        return NoFit("tokens do not come slower with a larger batch")
    if base < 0:
        # A line through the origin: all of the step is per sequence. Refit the slope alone.
        base, slope = 0.0, float(np.sum(weight * batch / itl) / np.sum(weight * (batch / itl) ** 2))
    error = float(np.mean(np.abs(base + slope * batch - itl) / itl))
    return StepTime(
        base=base, per_sequence=slope, low=float(batch.min()), high=float(batch.max()), points=len(batch), error=error
    )


def _line(batch: FloatArray, itl: FloatArray, weight: FloatArray) -> tuple[float, float]:
    # Relative error: divide by itl. The root, because least squares squares the rows.
    scale = np.sqrt(weight) / itl
    rows = np.stack([scale, batch * scale], axis=1)
    (base, slope), *_ = np.linalg.lstsq(rows, itl * scale, rcond=None)
    return float(base), float(slope)
