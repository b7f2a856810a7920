"""Proposes fewer slots (max-num-seqs) than are ever used, so that their memory becomes KV cache.

vLLM sets memory aside for the sampling of max-num-seqs sequences when it starts: 5.7 GiB for 1024 of a vocabulary of
152,000. Where the KV cache holds a few dozen sequences, the rest of the slots takes memory from it for nothing.
Apart from `max_num_seqs`, where slots are what ends the batch or makes it too large.
Must not: propose fewer slots than twice what the larger KV cache holds.
"""

import math

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import busy_batch
from vllm_autotuner.engine.defaults import default_max_num_seqs
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.performance.kv_capacity import UnknownPool
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.planning.capped_value import LARGEST_STEP, Limit, limited
from vllm_autotuner.planning.forecast import pool_with
from vllm_autotuner.planning.max_num_seqs import NO_BOUNDS, UNKNOWN_CAPACITY, NothingToGain
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["memory_of_unused_slots"]


def memory_of_unused_slots(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs until the slots take no more than noise from the KV cache.

    No further, because requests may become shorter, and the next change may hold more of them: not below twice what the
    KV cache would hold with all the memory of the slots.
    """
    given, held = situation.knobs.max_num_seqs, kv_bound(situation.observation)
    seats = given or default_max_num_seqs(situation.platform.gpu)
    if held is None:
        return NothingToGain(f"the memory of unused slots: {UNKNOWN_CAPACITY}")
    now, most = pool_with(situation, max_num_seqs=seats), pool_with(situation, max_num_seqs=1)
    if isinstance(now, UnknownPool) or isinstance(most, UnknownPool):
        why = now.why if isinstance(now, UnknownPool) else "its effect is not known"
        return NothingToGain(f"the memory of unused slots: {why}")
    bounds, failed = situation.tuning.max_num_seqs, [value for value in situation.failed_seats if value < seats]
    limits = [Limit(name="what runs now", low=math.ceil(max(map(busy_batch, situation.observation.engines))))]
    if bounds is not None:
        limits.append(Limit(name="spec.tuning.maxNumSeqs.min", low=bounds.min))
    if failed:
        limits.append(Limit(name=f"rolled back or declined at {max(failed)}", low=(seats + max(failed)) // 2))
    each = (most.tokens - now.tokens) / max(1, seats - 1)
    spared = seats if each <= 0 else math.floor(most.tokens * NOISE / each)
    found = limited(max(spared, math.ceil(LARGEST_STEP * held * most.tokens / now.tokens)), limits=tuple(limits))
    told = f"max-num-seqs {seats}" if given else f"max-num-seqs {seats} (the engine's default)"
    if found.value > seats * (1 - NOISE):
        return NothingToGain(f"lowering {told} frees no memory (limit: {found.limited_by or 'KV cache'})")
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=given,
        value=found.value,
        target=ChangeTarget.TTFT,
        reason=f"The KV cache holds {held} sequences at observed lengths, and the engine sets memory aside for {told}. "
        f"With {found.value} most of it goes to the KV cache.",
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else NO_BOUNDS,
    )
