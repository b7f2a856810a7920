"""Turns a proposal that every guardrail allowed into an ActiveChange. The only module that creates one."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import (
    ActiveChange,
    ChangeState,
    ChangeTarget,
    ConfigRef,
    Measurement,
    TrialRef,
    VLLMServiceStatus,
)
from vllm_autotuner.change.effective import settled_knobs
from vllm_autotuner.change.failure_memory import environment_of
from vllm_autotuner.change.trial_deployments import FEWEST_FOR_BASELINE, FEWEST_FOR_CANARY, baseline_name, canary_name
from vllm_autotuner.planning.bounds import with_values
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["begin"]


def begin(
    proposal: Proposal,
    *,
    service: VLLMService,
    status: VLLMServiceStatus,
    hash_of: Callable[[EngineKnobs], str],
    measured: Sequence[Measurement],
    replicas: int,
    epoch: int,
    now: datetime,
    free_gpus: FreeGpus | None = None,
) -> ActiveChange:
    """Record the intent: current and new configuration, strategy, measurements before. Touches no workload.

    `replicas`: of the service now; they choose between canary and in place unless the spec does. `measured`: the last
    windows, newest last, at least one. `free_gpus`: if known, a fresh baseline is only planned where a GPU is free for
    it; otherwise the canary is compared with the service's own pods.
    """
    before = settled_knobs(service.spec, status)
    after = with_values(before, proposal.values)
    attempt = status.history[-1].id if status.history else ""
    generation = service.metadata.generation
    text = f"{service.metadata.uid}/{generation}/{attempt}/{proposal.knob.value}={proposal.value}"
    change_id = hashlib.sha256(text.encode()).hexdigest()[:10]
    from_ = ConfigRef(**before.model_dump(), config_hash=hash_of(before))
    to = ConfigRef(**after.model_dump(), config_hash=hash_of(after))
    wanted = service.spec.tuning.strategy.type
    canary = replicas >= FEWEST_FOR_CANARY if wanted is None else wanted is StrategyType.CANARY
    # A canary beside pods that do not start has nothing to be compared with.
    canary = canary and proposal.target is not ChangeTarget.START
    # In place, pods are replaced one after the other, each with its own start-up time.
    pods = 1 if canary else max(1, replicas)
    name, fresh = service.metadata.name, canary and replicas >= FEWEST_FOR_BASELINE
    if fresh and free_gpus is not None:
        fresh = free_gpus.holds(*_devices(proposal, free_gpus))
    return ActiveChange(
        id=change_id,
        epoch=epoch,
        generation=generation,
        environment=environment_of(service.spec),
        knob=proposal.knob.value,
        from_value=None if proposal.current is None else str(proposal.current),
        to_value=str(proposal.value),
        from_=from_,
        to=to,
        reason=proposal.reason,
        target=proposal.target,
        kv_cache_tokens=proposal.kv_cache_tokens,
        strategy=StrategyType.CANARY if canary else StrategyType.IN_PLACE,
        canary_ref=TrialRef(name=canary_name(name, change_id), config_hash=to.config_hash) if canary else None,
        baseline_ref=TrialRef(name=baseline_name(name, change_id), config_hash=from_.config_hash) if fresh else None,
        state=ChangeState.PROVISIONING,
        state_reason="starting a canary" if canary else "starting pods with the new value; the old ones keep serving",
        state_since=now,
        deadline=now + pods * service.spec.tuning.strategy.provisioning_deadline,
        started_at=now,
        replicas=replicas,
        baseline=measured[-1],
        before=tuple(measured),
    )


def _devices(proposal: Proposal, free_gpus: FreeGpus) -> tuple[int, int]:
    """GPUs of the canary and of the fresh baseline."""
    same = proposal.knob is not Knob.TENSOR_PARALLEL_SIZE
    return free_gpus.devices if same else proposal.count, free_gpus.devices
