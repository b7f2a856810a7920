"""Proposes fewer slots (max-num-seqs) than are ever used, so that their memory becomes KV cache: alone, or in one
change with fewer GPUs per replica, where as many slots would take most of what is left.

vLLM sets memory aside for the sampling of max-num-seqs sequences when it starts: 5.7 GiB for 1024 of a vocabulary of
152,000. Where the KV cache holds a few dozen sequences, the rest of the slots takes memory from it for nothing.
Apart from `max_num_seqs`, where slots are what ends the batch or makes it too large.
Must not: propose fewer slots than twice what the larger KV cache holds, or than run now.
"""

import math
from dataclasses import dataclass

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import busy_batch
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.performance.kv_capacity import UnknownPool
from vllm_autotuner.planning.capped_value import LARGEST_STEP, limited, user_limits
from vllm_autotuner.planning.forecast import pool_tokens, pool_with
from vllm_autotuner.planning.max_num_seqs import (
    NO_BOUNDS,
    PRESENT_UNKNOWN,
    UNKNOWN_CAPACITY,
)
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["Spare", "fewer_slots", "memory_of_unused_slots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """Fewer slots, and what they free."""

    slots: int
    tokens: float
    """About as many more fit into the KV cache."""
    limited_by: str | None
    told: str
    """The slots of now, in words."""


def memory_of_unused_slots(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs until the slots take no more than noise from the KV cache."""
    spare = fewer_slots(situation)
    if isinstance(spare, NothingToGain):
        return spare
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=spare.slots,
        # More cache shows in a full one only, and the extra pods of a trial relieve it: it is judged by the cache that
        # its pods export, and by doing no harm.
        target=ChangeTarget.GPUS,
        kv_cache_tokens=pool_tokens(situation.observation),
        reason=f"The KV cache holds {situation.held} sequences at observed lengths, and the engine "
        f"sets memory aside for {spare.told}. With {spare.slots} about {spare.tokens:,.0f} tokens more fit into the "
        "KV cache.",
        confidence=Confidence.MEDIUM,
        limited_by=spare.limited_by,
        recommend_only="" if situation.tuning.max_num_seqs is not None else NO_BOUNDS,
    )


def fewer_slots(situation: Situation, *, degree: int | None = None) -> Spare | NothingToGain:
    """Return so few slots that they take no more than noise from the KV cache, with so many GPUs per replica.

    No fewer, because requests may become shorter, and the next change may hold more of them: not below twice what the
    KV cache would hold with all the memory of the slots. `degree`: None for the present one.
    """
    slots, held = situation.slots, situation.held
    # All slots in use where the flag is left out: something else than the flag has set fewer.
    elsewhere = situation.knobs.max_num_seqs is None and (
        situation.diagnosis.primary is DiagnosisClass.CONCURRENCY_CAPPED
    )
    if slots is None or held is None or elsewhere:
        return NothingToGain(f"the memory of slots: {UNKNOWN_CAPACITY if held is None else PRESENT_UNKNOWN}")
    tokens = pool_tokens(situation.observation)
    now, most = (pool_with(situation, degree=degree, max_num_seqs=each) for each in (slots, 1))
    if isinstance(now, UnknownPool) or isinstance(most, UnknownPool) or not tokens:
        why = next((each.why for each in (now, most) if isinstance(each, UnknownPool)), UNKNOWN_CAPACITY)
        return NothingToGain(f"the memory of slots: {why}")
    failed = [value for value in situation.failed_seats if value < slots]
    # With other GPUs such a value failed by another KV cache and other steps.
    if failed and degree is None:
        return NothingToGain(f"the memory of slots: max-num-seqs {max(failed)} was rolled back or declined")
    each = (most.tokens - now.tokens) / max(1, slots - 1)
    spared = slots if each <= 0 else math.floor(most.tokens * NOISE / each)
    batch = math.ceil(max(map(busy_batch, situation.observation.engines)))
    bounds = situation.tuning.max_num_seqs
    found = limited(
        max(batch, spared, math.ceil(LARGEST_STEP * held * most.tokens / tokens)),
        limits=user_limits("maxNumSeqs", bounds),
    )
    told = f"max-num-seqs {slots}{'' if situation.knobs.max_num_seqs else ' (the default, if no flag sets it)'}"
    if not batch <= found.value <= slots * (1 - NOISE):
        return NothingToGain(
            f"{told} cannot be lowered far enough (limit: {found.limited_by or 'what the cache holds'})"
        )
    if (freed := each * (slots - found.value)) <= now.tokens * NOISE:
        return NothingToGain(f"{told} takes about {freed:,.0f} tokens from the KV cache: within noise")
    return Spare(slots=found.value, tokens=freed, limited_by=found.limited_by, told=told)
