"""What is said about an object that cannot be acted upon. Everything its status remembers is kept."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from vllm_autotuner.api.conditions import Condition, ConditionType, Reason, set_condition
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, StatusUnreadable, VLLMServiceStatus, parse_status
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.reporting import about_change, change_text
from vllm_autotuner.workload.adoption import Unadoptable

__all__ = ["invalid", "not_adopted", "unreadable"]


def invalid(
    service: InvalidService,
    status: VLLMServiceStatus,
    *,
    ended: tuple[ActiveChange, Ending] | None = None,
    now: datetime,
) -> VLLMServiceStatus:
    """The status of an object whose spec cannot be read: Stalled with the remedy, and how its change goes on."""
    generation = service.metadata.generation
    status = _stalled(status, Reason(service.reason.value), service.message, generation=generation, now=now)
    failed = status.rollback_failed
    said = [
        *about_change(status, ended=ended),
        (
            ConditionType.ROLLBACK_FAILED,
            failed is not None,
            Reason.LAST_KNOWN_GOOD_NOT_SERVING,
            "" if failed is None else failed.message,
        ),
    ]
    conditions = status.conditions
    for kind, state, reason, message in said:
        conditions = set_condition(
            conditions, type=kind, status=state, reason=reason, message=message, observed_generation=generation, now=now
        )
    summary = status.summary and status.summary.model_copy(update={"change": change_text(status.active_change)})
    return status.model_copy(update={"conditions": conditions, "summary": summary})


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
