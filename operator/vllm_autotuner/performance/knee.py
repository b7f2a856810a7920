"""The TPOT knee: the largest batch within the TPOT objective, or the last one that still raises throughput.

Must not: apply bounds, step limits or max-num-seqs (planning limits what is found here).
"""

import math
from typing import Final

from vllm_autotuner.performance.batch_curve import BatchCurve
from vllm_autotuner.performance.step_time import StepTime, at_quantile

__all__ = ["FURTHEST", "LEAST_GAIN", "largest_batch_at_quantile", "largest_batch_within", "largest_batch_worthwhile"]

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
    """The largest whole batch whose predicted mean inter-token latency is at most `target` seconds.

    None when not even one sequence meets it (the step itself is too slow). Without a slope the batch is unlimited as
    far as the model knows: then the largest batch seen, rounded down, is returned. A measured curve keeps a margin
    beyond its last point that grows with the distance.
    """
    match model:
        case StepTime():
            return _on_line(model, target)
        case BatchCurve():
            return _on_curve(model, target)


def largest_batch_at_quantile(model: StepTime, *, target: float, tail: float, seen_at: float) -> int | None:
    """The same for a quantile that is `tail` times the mean, as seen at a batch of `seen_at`.

    Worked, with the line of `at_quantile`: inside 25 ms a batch may add 15 of the 30 ms that it adds at 100: 50, where
    half of 25 ms for the mean would allow 25.
    """
    return largest_batch_within(at_quantile(model, tail=tail, seen_at=seen_at), target=target)


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


def _on_line(line: StepTime, target: float) -> int | None:
    if line.predict(1) > target:
        return None
    if line.per_sequence <= 0:
        return max(1, math.floor(line.high))
    # The tolerance keeps a target that is met exactly from losing its last sequence to rounding.
    return max(1, math.floor((target - line.base) / line.per_sequence + 1e-9))


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
