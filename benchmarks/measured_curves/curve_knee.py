"""The largest batch within a TPOT objective, or the last that still raises throughput, of a line or a measured curve.

Apart from the product's own knee, which has a line and an objective. Must not: apply bounds or step limits.
"""

import math
from typing import Final

from benchmarks.measured_curves.batch_curve import BatchCurve
from vllm_autotuner.performance import knee
from vllm_autotuner.performance.step_time import StepTime

__all__ = ["FURTHEST", "LEAST_GAIN", "largest_batch_within", "largest_batch_worthwhile"]

LEAST_GAIN: Final = 0.005
"""Throughput that one more sequence adds, against what the first one brings, inside what was seen. On a line
a + c * batch, throughput is then 1 - sqrt(0.005) = 93 % of what an endless batch would reach. The sweep F4 gains 0.046
from 64 to 128 sequences and loses from there on. Our choice."""
LEAST_GAIN_UNSEEN: Final = 0.05
"""The same beyond the largest batch seen (78 % on a line): the next bottleneck may lie there, and the gain is only
promised. Above F4's 0.046, whose next step is preemption. Our choice."""
FURTHEST: Final = 2**20
"""Sequences. No engine runs more; a flat curve must end somewhere."""


def largest_batch_within(model: StepTime | BatchCurve, *, target: float) -> int | None:
    """As `performance.knee`. A measured curve keeps a margin beyond its last point that grows with the distance."""
    match model:
        case StepTime():
            return knee.largest_batch_within(model, target=target)
        case BatchCurve():
            return _on_curve(model, target)


def largest_batch_worthwhile(model: StepTime | BatchCurve, *, ceiling: float = FURTHEST) -> int:
    """The largest whole batch up to `ceiling` at which more sequences still pay, when no objective ends it before.

    Inside what was seen each step up must add `LEAST_GAIN` per sequence of what the first one brings, beyond it
    `LEAST_GAIN_UNSEEN`. On a line throughput is batch / (a + c * batch), and its slope against that at 0 is
    (a / (a + c * batch))^2. Worked: a = 14.4 ms, c = 0.182 ms, 128 seen: 14.4 / 0.182 * (4.47 - 1) = 274.
    """
    match model:
        case StepTime():
            line, seen = model, min(model.high, _pays_until(model, LEAST_GAIN))
        case BatchCurve():
            line, seen = model.line, _worthwhile_point(model)
    if seen == model.high:
        seen = max(seen, _pays_until(line, LEAST_GAIN_UNSEEN))
    return max(1, math.floor(min(seen, ceiling, FURTHEST) + 1e-9))


def _pays_until(line: StepTime, gain: float) -> float:
    """Return the batch from which one more sequence adds less than `gain`; without a slope, the largest seen."""
    if line.per_sequence <= 0:
        return line.high
    return line.base / line.per_sequence * (1 / math.sqrt(gain) - 1)


def _worthwhile_point(curve: BatchCurve) -> float:
    """Return the last of the measured batches that is worth its step, from any smaller one.

    Seen from a point, the next worth going to is the one that adds most per sequence; that skips points that noise
    has pushed down, and stops where nothing above adds enough.
    """
    batches = curve.batches
    tokens = [batch / itl for batch, itl in zip(batches, curve.itls, strict=True)]
    least, at = LEAST_GAIN * tokens[0] / batches[0], 0
    while at + 1 < len(batches):
        slopes = [(tokens[to] - tokens[at]) / (batches[to] - batches[at]) for to in range(at + 1, len(batches))]
        if max(slopes) < least:
            break
        at += 1 + slopes.index(max(slopes))
    return batches[at]


def _on_curve(curve: BatchCurve, target: float) -> int | None:
    if curve.at_most(1) > target:
        return None
    if curve.line.per_sequence <= 0 and curve.at_most(curve.high) <= target:
        return max(1, math.floor(curve.high))
    low, high = 1, 2
    while high < FURTHEST and curve.at_most(high) <= target * (1 + 1e-9):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if curve.at_most(middle) <= target * (1 + 1e-9) else (low, middle)
    return low
