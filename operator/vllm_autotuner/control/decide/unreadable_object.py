"""The status of an object that cannot be handled: unreadable spec or status, or a Deployment that cannot be adopted.

Everything else in its status is kept.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from vllm_autotuner.api.conditions import Condition, ConditionType, Reason, set_condition
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, Outcome, StatusUnreadable, VLLMServiceStatus, parse_status
from vllm_autotuner.change.finishing import finished
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.decide.status_conditions import about_change
from vllm_autotuner.control.decide.status_report import change_text
from vllm_autotuner.workload.adoption import Unadoptable

__all__ = ["invalid", "not_adopted", "unreadable"]


def invalid(
    service: InvalidService,
    status: VLLMServiceStatus,
    *,
    ended: tuple[ActiveChange, Ending] | None = None,
    now: datetime,
) -> VLLMServiceStatus:
    """The status of an object with an unreadable spec: Stalled with the remedy, and the state of its change."""
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
    return _saying(status, said, generation=generation, now=now)


def unreadable(service: InvalidService, raw: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """An unreadable status with new conditions and otherwise unchanged: it may hold a change in progress."""
    try:
        known = parse_status({"conditions": raw.get("conditions") or []})
    except StatusUnreadable:
        known = VLLMServiceStatus()
    generation, reason = service.metadata.generation, Reason(service.reason.value)
    told = to_wire(_stalled(known, reason, service.message, generation=generation, now=now))
    return {**raw, "conditions": told["conditions"], "observedGeneration": generation}


def not_adopted(
    service: VLLMService, why: Unadoptable, *, now: datetime
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """The status of a service whose Deployment (spec.targetRef) cannot be adopted; the Deployment is not written.

    A change in progress ends, except when only a permission is missing, which may be restored in time.
    """
    generation, status, ended = service.metadata.generation, service.status, None
    change = status.active_change
    if change is not None and why.reason is not Reason.FORBIDDEN:
        ended = (change, Ending(outcome=Outcome.SUPERSEDED, reason=why.message))
        status = finished(status, *ended, spec=service.spec, now=now)
    status = _stalled(status, why.reason, why.message, generation=generation, now=now)
    said = (*about_change(status, ended=ended), (ConditionType.ADOPTED, False, why.reason, why.message))
    return _saying(status, said, generation=generation, now=now), ended


def _saying(
    status: VLLMServiceStatus,
    said: Iterable[tuple[ConditionType, bool, Reason, str]],
    *,
    generation: int,
    now: datetime,
) -> VLLMServiceStatus:
    conditions = status.conditions
    for kind, state, reason, message in said:
        conditions = set_condition(
            conditions, type=kind, status=state, reason=reason, message=message, observed_generation=generation, now=now
        )
    summary = status.summary and status.summary.updated(change=change_text(status.active_change))
    return status.updated(conditions=conditions, summary=summary)


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
    return status.updated(conditions=conditions, observed_generation=generation)
