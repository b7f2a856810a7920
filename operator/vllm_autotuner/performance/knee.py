"""The TPOT knee: the largest batch within the TPOT objective.

Must not: apply bounds, step limits or max-num-seqs (planning limits what is found here).
"""

import math

from vllm_autotuner.performance.step_time import StepTime, at_quantile

__all__ = ["largest_batch_at_quantile", "largest_batch_within"]


def largest_batch_within(model: StepTime, *, target: float) -> int | None:
    """The largest whole batch whose predicted mean inter-token latency is at most `target` seconds.

    None when not even one sequence meets it (the step itself is too slow). Without a slope the batch is unlimited as
    far as the model knows: then the largest batch seen, rounded down, is returned.
    """
    if model.predict(1) > target:
        return None
    # The tolerances keep a target that is met exactly from losing its last sequence to rounding.
    inside = target * (1 + 1e-9)
    if model.per_sequence <= 0 and model.base + model.reading <= inside:
        return max(1, math.floor(model.high))
    if not model.reading:
        return max(1, math.floor((target - model.base) / model.per_sequence + 1e-9))
    meets, misses = 1, 2
    while model.predict(float(misses)) <= inside:
        meets, misses = misses, 2 * misses
    while misses - meets > 1:
        middle = (meets + misses) // 2
        meets, misses = (middle, misses) if model.predict(float(middle)) <= inside else (meets, middle)
    return meets


def largest_batch_at_quantile(model: StepTime, *, target: float, tail: float, seen_at: float) -> int | None:
    """The same for a quantile that is `tail` times the mean, as seen at a batch of `seen_at`.

    Worked, with the line of `at_quantile`: inside 25 ms a batch may add 15 of the 30 ms that it adds at 100: 50, where
    half of 25 ms for the mean would allow 25.
    """
    return largest_batch_within(at_quantile(model, tail=tail, seen_at=seen_at), target=target)
