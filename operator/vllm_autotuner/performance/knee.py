"""The largest batch that is worth running: the last one inside the TPOT objective."""

import math

from vllm_autotuner.performance.step_time import StepTime

__all__ = ["largest_batch_within"]


def largest_batch_within(model: StepTime, *, target: float) -> int | None:
    """The largest whole batch whose predicted mean inter-token latency is at most `target` seconds.

    None when not even one sequence meets it (the step itself is too slow). Without a slope the batch is unlimited as
    far as the model knows: then the largest batch seen, rounded down, is returned.
    """
    if model.predict(1) > target:
        return None
    if model.per_sequence <= 0:
        return max(1, math.floor(model.high))
    # The tolerance keeps a target that is met exactly from losing its last sequence to rounding.
    return max(1, math.floor((target - model.base) / model.per_sequence + 1e-9))
