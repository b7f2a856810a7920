"""Proposals for kv-cache-dtype fp8: it halves the bytes per cached value and so holds about twice the sequences.

Must not: be applied unless the spec lists the type (listing it accepts the effect on answers), or be proposed on a GPU
without fp8. No speedup is predicted: with short contexts an fp8 cache has none, with long ones steps are 3 to 9 %
shorter (decision 35).
"""

from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.performance.kv_capacity import kv_value_bytes
from vllm_autotuner.planning.bounds import opted_in, outside
from vllm_autotuner.planning.feasibility import Infeasible, Unsure, fp8_supported, not_failed, pool_starts, verdict
from vllm_autotuner.planning.forecast import exported_type, longest_length, pool_tokens, pool_with
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["smaller_kv_values"]

FP8: Final = "fp8"
QUALITY: Final = "Answers may change: compare them."
NOT_LISTED: Final = "spec.tuning.kvCacheDtype does not list fp8"


def smaller_kv_values(situation: Situation) -> Proposal | NothingToGain:
    """fp8 for the KV cache, where hardware and model are known to take it."""
    tuning, seen = situation.tuning, situation.observation
    current = situation.knobs.kv_cache_dtype
    if kv_value_bytes(current) == 1 or kv_value_bytes(exported_type(seen)) == 1:
        return NothingToGain("the KV cache already uses fp8")
    if any(engine.pool.blocks_given for engine in seen.engines):
        return NothingToGain("fp8 KV: the engine's flags set the number of blocks, whatever their type")
    listed = opted_in(Knob.KV_CACHE_DTYPE, tuning=tuning, scaling=None)
    if outside(Knob.KV_CACHE_DTYPE, FP8, tuning=tuning, scaling=None):
        return NothingToGain("spec.tuning.kvCacheDtype does not allow fp8")
    pool = pool_with(situation, kv_cache_dtype=FP8)
    answer = verdict(
        (
            fp8_supported(situation.platform.shape, situation.platform.gpu),
            not_failed(situation.failed, knob=Knob.KV_CACHE_DTYPE.value, value=FP8),
            pool_starts(pool, longest=longest_length(situation)),
        )
    )
    match answer:
        case Infeasible(why):
            return NothingToGain(f"fp8 KV: {why}")
        case Unsure(why) if not listed:
            return NothingToGain(f"fp8 KV might help, but {why}")
        case Unsure(why):
            recommend_only, confidence = why, Confidence.LOW
        case _:
            recommend_only, confidence = "" if listed else NOT_LISTED, Confidence.MEDIUM
    seats, held = situation.knobs.max_num_seqs, situation.held
    if seats is not None and held is not None and seats < held * (1 + NOISE):
        return NothingToGain(f"fp8 KV: with max-num-seqs {seats} a larger KV cache would stay unused")
    return Proposal(
        knob=Knob.KV_CACHE_DTYPE,
        current=current,
        value=FP8,
        target=ChangeTarget.TTFT,
        kv_cache_tokens=pool_tokens(seen),
        reason=f"{situation.diagnosis.message} fp8 holds about twice the tokens in the same memory. {QUALITY}",
        confidence=confidence,
        limited_by=None if seats is None else "max-num-seqs",
        recommend_only=recommend_only,
    )
