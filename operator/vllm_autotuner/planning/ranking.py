"""Ranks outcomes: one order for predicted candidates and for measured results.

Objectives first, then GPUs, then the margin of the profile. Every key prefers faster, more tokens and fewer GPUs, so
that an outcome that is at least as good in all respects and better in one wins in every profile. An inverted sign would
choose the worst candidate.
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
    """Whether `one` beats `other` beyond noise, by the first key of `rank` that differs clearly.

    Differences below `NOISE` are a tie, and the next key decides. GPU counts are exact.
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
