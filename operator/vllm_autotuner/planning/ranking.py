"""Which of two outcomes is better. One order for predicted candidates and for measured results.

Objectives first, then GPUs, then the margin that the profile cares for. Every later key points the same way as common
sense (faster, more tokens, fewer GPUs), so that an outcome that is at least as good everywhere and better somewhere
wins in every profile: an inverted sign here would apply the worst candidate of all, as has happened elsewhere.
"""

from dataclasses import dataclass
from typing import assert_never

from vllm_autotuner.api.spec import Profile
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["Effect", "clearly_better", "rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a configuration does: latencies in seconds at the objectives' quantiles, output tokens per second, GPUs."""

    ttft: float
    tpot: float
    tokens_per_second: float
    gpus: int


def rank(effect: Effect, *, targets: Targets) -> tuple[float, ...]:
    """The sort key; smaller is better."""
    ttft, tpot = effect.ttft / targets.ttft.seconds, effect.tpot / targets.tpot.seconds
    missed = max(0.0, ttft - 1) + max(0.0, tpot - 1)
    match targets.profile:
        case Profile.LATENCY:
            margin = (tpot, ttft, -effect.tokens_per_second)
        case Profile.THROUGHPUT:
            margin = (-effect.tokens_per_second, tpot, ttft)
        case Profile.BURSTY:
            margin = (ttft, -effect.tokens_per_second, tpot)
        case unreachable:
            assert_never(unreachable)
    return (missed, float(effect.gpus), *margin)


def clearly_better(one: Effect, other: Effect, *, targets: Targets) -> bool:
    """Whether `one` beats `other` by more than noise, in the order of `rank`: by the first key that differs clearly.

    Predictions are no finer than `NOISE`: what differs by less is a tie, and the next key decides. GPUs are counted.
    """
    ours, theirs = rank(one, targets=targets), rank(other, targets=targets)
    if abs(ours[0] - theirs[0]) > NOISE * max(ours[0], theirs[0]):
        return ours[0] < theirs[0]
    if ours[1] != theirs[1]:
        return ours[1] < theirs[1]
    for mine, its in zip(ours[2:], theirs[2:], strict=True):
        if abs(mine - its) > NOISE * max(abs(mine), abs(its)):
            return mine < its
    return False
