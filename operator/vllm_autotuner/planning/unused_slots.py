"""Proposes fewer slots (max-num-seqs) than are ever used, so that their memory becomes KV cache.

vLLM sets memory aside for the sampling of max-num-seqs sequences when it starts: 5.7 GiB for 1024 of a vocabulary of
152,000. Where the KV cache holds a few dozen sequences, the rest of the slots takes memory from it for nothing.
Apart from `max_num_seqs`, where slots are what ends the batch or makes it too large.
Must not: propose fewer slots than twice what the larger KV cache holds, or than run now.
"""

import math

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import busy_batch
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.performance.kv_capacity import UnknownPool
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.planning.capped_value import LARGEST_STEP, limited, user_limits
from vllm_autotuner.planning.forecast import pool_tokens, pool_with, slots_now
from vllm_autotuner.planning.max_num_seqs import (
    NO_BOUNDS,
    PRESENT_UNKNOWN,
    UNKNOWN_CAPACITY,
)
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["memory_of_unused_slots"]


def memory_of_unused_slots(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs until the slots take no more than noise from the KV cache.

    No further, because requests may become shorter, and the next change may hold more of them: not below twice what the
    KV cache would hold with all the memory of the slots.
    """
    slots, held = slots_now(situation), kv_bound(situation.observation)
    # All slots in use where the flag is left out: something else than the flag has set fewer.
    elsewhere = situation.knobs.max_num_seqs is None and (
        situation.diagnosis.primary is DiagnosisClass.CONCURRENCY_CAPPED
    )
    if slots is None or held is None or elsewhere:
        return NothingToGain(f"the memory of slots: {UNKNOWN_CAPACITY if held is None else PRESENT_UNKNOWN}")
    most = pool_with(situation, max_num_seqs=1)
    if isinstance(most, UnknownPool):
        return NothingToGain(f"the memory of slots: {most.why}")
    failed = [value for value in situation.failed_seats if value < slots]
    if failed:
        return NothingToGain(f"the memory of slots: max-num-seqs {max(failed)} was rolled back or declined")
    # Of fewer slots the low end is the KV cache of now: as if they freed nothing.
    each = (most.tokens - most.low) / max(1, slots - 1)
    spared = slots if each <= 0 else math.floor(most.tokens * NOISE / each)
    batch = math.ceil(max(map(busy_batch, situation.observation.engines)))
    bounds = situation.tuning.max_num_seqs
    found = limited(
        max(batch, spared, math.ceil(LARGEST_STEP * held * most.tokens / most.low)),
        limits=user_limits("maxNumSeqs", bounds),
    )
    told = f"max-num-seqs {slots}{'' if situation.knobs.max_num_seqs else ' (the default, if no flag sets it)'}"
    if not batch <= found.value <= slots * (1 - NOISE):
        return NothingToGain(
            f"{told} cannot be lowered far enough (limit: {found.limited_by or 'what the cache holds'})"
        )
    if (freed := each * (slots - found.value)) <= most.low * NOISE:
        return NothingToGain(f"{told} takes about {freed:,.0f} tokens from the KV cache: within noise")
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        # More cache shows in a full one only, and the extra pods of a trial relieve it: it is judged by the cache that
        # its pods export, and by doing no harm.
        target=ChangeTarget.GPUS,
        kv_cache_tokens=pool_tokens(situation.observation),
        reason=f"The KV cache holds {held} sequences at observed lengths, and the engine sets memory aside for {told}. "
        f"With {found.value} about {freed:,.0f} tokens more fit into the KV cache.",
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else NO_BOUNDS,
    )
