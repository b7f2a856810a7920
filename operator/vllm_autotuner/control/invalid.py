"""What is said about an object that cannot be acted upon. Everything its status remembers is kept."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from vllm_autotuner.api.conditions import Condition, ConditionType, Reason, set_condition
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import StatusUnreadable, VLLMServiceStatus, parse_status
from vllm_autotuner.workload.adoption import Unadoptable

__all__ = ["invalid", "not_adopted", "unreadable"]


def invalid(service: InvalidService, *, now: datetime) -> VLLMServiceStatus:
    """The status of an unreadable object: Stalled with the remedy; its workload is left as it is."""
    status = service.status or VLLMServiceStatus()
    reason = Reason(service.reason.value)
    return _stalled(status, reason, service.message, generation=service.metadata.generation, now=now)


def unreadable(service: InvalidService, raw: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """A status that cannot be read, with new conditions and otherwise untouched: it may remember a change."""
    try:
        known = parse_status({"conditions": raw.get("conditions") or []})
    except StatusUnreadable:
        known = VLLMServiceStatus()
    generation, reason = service.metadata.generation, Reason(service.reason.value)
    told = to_wire(_stalled(known, reason, service.message, generation=generation, now=now))
    return {**raw, "conditions": told["conditions"], "observedGeneration": generation}


def not_adopted(service: VLLMService, why: Unadoptable, *, now: datetime) -> VLLMServiceStatus:
    """The status of a service whose Deployment (spec.targetRef) cannot be looked after; nothing is written to it."""
    generation = service.metadata.generation
    status = _stalled(service.status, why.reason, why.message, generation=generation, now=now)
    conditions = set_condition(
        status.conditions,
        type=ConditionType.ADOPTED,
        status=False,
        reason=why.reason,
        message=why.message,
        observed_generation=generation,
        now=now,
    )
    return status.model_copy(update={"conditions": conditions})


def _stalled(
    status: VLLMServiceStatus, reason: Reason, message: str, *, generation: int, now: datetime
) -> VLLMServiceStatus:
    conditions: tuple[Condition, ...] = status.conditions
    for kind, state in (
        (ConditionType.RECONCILING, False),
        (ConditionType.STALLED, True),
        (ConditionType.READY, False),
    ):
        conditions = set_condition(
            conditions, type=kind, status=state, reason=reason, message=message, observed_generation=generation, now=now
        )
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})
