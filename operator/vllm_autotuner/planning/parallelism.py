"""Proposals for tensor-parallel-size: more or fewer GPUs per replica.

The rule: the smallest size that fits and meets TPOT, then replicas. A larger size is only worth its GPUs if the same
GPUs as additional replicas would serve fewer tokens within the objectives, or if replicas cannot help (a step that is
too slow for a single sequence).
Must not: propose a size that cannot start, or trust its prediction beyond the GPUs that it was measured on.
"""

from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.classes import SLOW_TOKENS
from vllm_autotuner.performance.kv_capacity import PoolEstimate
from vllm_autotuner.performance.tensor_parallel import measured_links
from vllm_autotuner.planning.bounds import opted_in
from vllm_autotuner.planning.capped_value import LARGEST_STEP, STEP_LIMIT
from vllm_autotuner.planning.context_length import length_within
from vllm_autotuner.planning.feasibility import (
    Infeasible,
    Unsure,
    heads_divide,
    not_failed,
    placeable,
    pool_starts,
    rolls_out,
    verdict,
)
from vllm_autotuner.planning.forecast import longest_length, pool_with
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import RUNS_AWAY, Situation
from vllm_autotuner.planning.unused_slots import Spare, fewer_slots

__all__ = ["larger_degree", "smaller_degree"]

PRESENT_UNKNOWN: Final = "the present one is not known; pass the engine's flags with --engine-args"
NOT_OURS: Final = "spec.accelerator is not set, so the operator does not set the GPUs of a replica"


def larger_degree(situation: Situation) -> Proposal | NothingToGain:
    """The next larger degree, at most doubled. Not for outputs that run to their token limit."""
    if situation.runs_away:
        return NothingToGain(f"a larger tensor-parallel size: {RUNS_AWAY}")
    if _is_unknown(situation):
        return NothingToGain(f"a larger tensor-parallel size: {PRESENT_UNKNOWN}")
    now = situation.knobs.tensor_parallel_size or 1
    degree = min((each for each in _degrees(situation) if now < each <= now * LARGEST_STEP), default=None)
    if degree is None:
        return _none(situation, f"larger size up to twice the current {now}")
    target = ChangeTarget.TPOT if situation.diagnosis.primary in SLOW_TOKENS else ChangeTarget.TTFT
    return _proposal(situation, degree, target=target, reason=f"{situation.diagnosis.message} {degree} GPUs per "
                     "replica read weights and KV cache faster and leave more memory for the KV cache.")  # fmt: skip


def smaller_degree(situation: Situation) -> Proposal | NothingToGain:
    """The next smaller degree, at most halved: where communication costs more than the additional GPUs gain."""
    if _is_unknown(situation):
        return NothingToGain(f"a smaller tensor-parallel size: {PRESENT_UNKNOWN}")
    now = situation.knobs.tensor_parallel_size or 1
    if now == 1:
        return NothingToGain("a smaller tensor-parallel size: a replica already uses one GPU, the least there is")
    degree = max((each for each in _degrees(situation) if now > each >= now / LARGEST_STEP), default=None)
    if degree is None:
        return _none(situation, f"smaller size down to half the current {now}")
    return _proposal(situation, degree, target=ChangeTarget.TPOT, reason=f"{situation.diagnosis.message} With {degree} "
                     "GPU(s) per replica, less of each step is communication.")  # fmt: skip


def _is_unknown(situation: Situation) -> bool:
    """Whether the present degree is not known: what is above one may be below the other."""
    return situation.knobs.tensor_parallel_size is None and not situation.flags_known


def _none(situation: Situation, size: str) -> NothingToGain:
    if situation.tuning.tensor_parallel_size is None:
        return NothingToGain(f"tensor-parallel size: 1, 2, 4, 8 and 16 are looked at, and there is no {size}")
    return NothingToGain(f"spec.tuning.tensorParallelSize allows no {size}")


def _degrees(situation: Situation) -> tuple[int, ...]:
    """The degrees to choose from: the listed ones, else the powers of two that we may only recommend."""
    allowed = situation.tuning.tensor_parallel_size
    return tuple(sorted(allowed.allowed)) if allowed is not None else (1, 2, 4, 8, 16)


def _proposal(situation: Situation, degree: int, *, target: ChangeTarget, reason: str) -> Proposal | NothingToGain:
    platform, knobs = situation.platform, situation.knobs
    if (cores := situation.cores) > 1:
        return NothingToGain(
            f"tensor-parallel size {degree}: a pod runs {cores} engine cores, whose GPUs are not known"
        )
    longest = longest_length(situation)
    free_gpus = placeable(platform.free_gpus, devices=degree)
    pool, shorter, slots = pool_with(situation, degree=degree), None, None
    if degree < (knobs.tensor_parallel_size or 1) and situation.tuning.max_num_seqs is not None:
        spare = fewer_slots(situation, degree=degree)
        if isinstance(spare, Spare):
            slots, pool = spare.slots, pool_with(situation, degree=degree, max_num_seqs=spare.slots)
            # Without the number: it moves with the load, and an approval is for the one that was shown.
            reason += f" Fewer slots leave the KV cache about {spare.tokens:,.0f} tokens more, in the same change."
    if isinstance(pool, PoolEstimate) and longest is not None and pool.low < longest:
        shorter = length_within(situation, tokens=pool.low)
        if shorter is not None:
            held = "would hold" if pool.tokens < longest else "may hold"
            reason += (
                f" max-model-len becomes {shorter} in the same change: the KV cache {held} no request of the present "
                "limit."
            )
            longest = shorter
    answer = verdict(
        (
            heads_divide(platform.shape, degree),
            free_gpus if isinstance(free_gpus, Infeasible) else verdict(()),
            rolls_out(platform.free_gpus, devices=degree, replicas=situation.replicas),
            not_failed(situation.failed, knob=Knob.TENSOR_PARALLEL_SIZE.value, value=degree),
            pool_starts(pool, longest=longest),
        )
    )
    listed = opted_in(Knob.TENSOR_PARALLEL_SIZE, tuning=situation.tuning, scaling=None)
    recommend_only = "" if listed else "spec.tuning.tensorParallelSize lists no sizes"
    match answer:
        case Infeasible(why):
            return NothingToGain(f"tensor-parallel size {degree}: {why}")
        case Unsure(why) if not listed:
            return NothingToGain(f"tensor-parallel size {degree} might help, but {why}")
        case Unsure(why):
            recommend_only = why
        case _:
            recommend_only = recommend_only or ("" if platform.devices_ours else NOT_OURS)
    if isinstance(free_gpus, Unsure):
        reason += f" {free_gpus.why[0].upper()}{free_gpus.why[1:]}; without one the change ends without effect."
    known = not isinstance(answer, Unsure) and measured_links(platform.gpu)
    return Proposal(
        knob=Knob.TENSOR_PARALLEL_SIZE,
        current=knobs.tensor_parallel_size,
        value=degree,
        target=target,
        reason=reason,
        confidence=Confidence.MEDIUM if known else Confidence.LOW,
        limited_by=STEP_LIMIT,
        recommend_only=recommend_only,
        max_model_len=shorter,
        max_num_seqs=slots,
        extra_gpus=(degree - (knobs.tensor_parallel_size or 1)) * max(1, situation.replicas),
    )
