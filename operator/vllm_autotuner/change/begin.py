"""A proposal that every guardrail allowed becomes a change. The only room that makes an ActiveChange."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ActiveChange, ChangeState, ConfigRef, Measurement, VLLMServiceStatus
from vllm_autotuner.change.effective import settled_knobs
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["begin", "with_value"]


def begin(
    proposal: Proposal,
    *,
    service: VLLMService,
    status: VLLMServiceStatus,
    hash_of: Callable[[EngineKnobs], str],
    baseline: Measurement,
    epoch: int,
    now: datetime,
) -> ActiveChange:
    """Write down the intent: what runs now, what shall run, what was measured before. Touches nothing."""
    before = settled_knobs(service.spec, status)
    after = with_value(before, proposal)
    attempt = status.history[-1].id if status.history else ""
    generation = service.metadata.generation
    text = f"{service.metadata.uid}/{generation}/{attempt}/{proposal.knob.value}={proposal.value}"
    return ActiveChange(
        id=hashlib.sha256(text.encode()).hexdigest()[:10],
        epoch=epoch,
        generation=generation,
        knob=proposal.knob.value,
        from_value=None if proposal.current is None else str(proposal.current),
        to_value=str(proposal.value),
        from_=ConfigRef(**before.model_dump(), config_hash=hash_of(before)),
        to=ConfigRef(**after.model_dump(), config_hash=hash_of(after)),
        reason=proposal.reason,
        target=proposal.target,
        state=ChangeState.PROVISIONING,
        state_reason="starting pods with the new value beside the old ones",
        state_since=now,
        deadline=now + service.spec.tuning.strategy.provisioning_deadline,
        started_at=now,
        baseline=baseline,
    )


def with_value(knobs: EngineKnobs, proposal: Proposal) -> EngineKnobs:
    """The knobs with the proposed value. Raises ValueError for replicas: those are not a setting of the engine."""
    match proposal.knob:
        case Knob.MAX_NUM_SEQS:
            return knobs.model_copy(update={"max_num_seqs": proposal.value})
        case Knob.MAX_MODEL_LEN:
            return knobs.model_copy(update={"max_model_len": proposal.value})
        case Knob.TENSOR_PARALLEL_SIZE:
            return knobs.model_copy(update={"tensor_parallel_size": proposal.value})
        case Knob.KV_CACHE_DTYPE | Knob.REPLICAS:
            raise ValueError(f"{proposal.knob.value} is not a number of the engine")
        case unreachable:
            assert_never(unreachable)
