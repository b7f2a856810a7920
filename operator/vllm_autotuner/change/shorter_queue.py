"""Whether a shorter queue alone explains a shorter TTFT: then it is no merit of the candidate. Used by both verdicts.

Separate from `objective_effect`, which looks at no window. Of two equal pods with queues, one has the shorter queue for
many minutes, and the queue of one service comes and goes. Must not: judge anything but this.
"""

from collections.abc import Sequence
from dataclasses import replace

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.measured_window import mean_queue
from vllm_autotuner.change.objective_effect import Merits
from vllm_autotuner.observation.noise import NOISE

__all__ = ["is_shorter_queue_alone", "without_luck"]


def is_shorter_queue_alone(
    objective: ChangeTarget, ours: Sequence[Measurement], theirs: Sequence[Measurement], *, served: float | None
) -> bool:
    """Whether requests wait on both sides, fewer of them on the candidate's (`ours`), and it serves no more tokens.

    `served`: tokens per second of the candidate over those of the reference; None if unknown. A candidate that serves
    more, or leaves no queue, has a better reason.
    """
    if objective is not ChangeTarget.TTFT or not 1 <= mean_queue(ours) < mean_queue(theirs) * (1 - NOISE):
        return False
    return served is None or served <= 1 + NOISE


def without_luck(merits: Merits) -> Merits:
    """What is left where the latency is lower for another reason than the change: it does no harm."""
    return replace(merits, helped=False, cured=False)
