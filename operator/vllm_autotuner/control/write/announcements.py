"""The Events that follow from a status write: one per transition, none for a repeat.

Pure: compares the status before and after. An Event is posted after the status was written, under a name made from the
transition. A new leader posts the Events of the status that it finds again (`standing`), because its predecessor may
have stopped before it posted them; the API server refuses the repeats.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.spec import DeletionPolicy
from vllm_autotuner.api.status import (
    ActiveChange,
    ChangeState,
    Contest,
    HandledRequest,
    HistoryEntry,
    Outcome,
    VLLMServiceStatus,
)
from vllm_autotuner.change.world import Ending, reaches_the_service
from vllm_autotuner.cluster.events import Event

__all__ = ["abandoned", "announcements", "standing"]

RECENT: Final = timedelta(minutes=50)
"""Older transitions are not announced again. The API server keeps an Event for an hour (--event-ttl) and refuses a
repeat by its name for as long, also when there was no leader for most of that hour."""
_ENDED: Final[Mapping[Outcome, str]] = {
    Outcome.SUCCEEDED: "Kept",
    Outcome.ROLLED_BACK: "Rolled back",
    Outcome.SUPERSEDED: "Superseded",
    Outcome.REJECTED: "Rejected",
    Outcome.ROLLBACK_FAILED: "Failed to roll back",
}


def announcements(
    service: VLLMService, after: VLLMServiceStatus, *, ended: tuple[ActiveChange, Ending] | None
) -> Iterable[Event]:
    """Yield what happened between the status of `service` and `after`."""
    before = service.status
    change, old = after.active_change, before.active_change
    if ended is not None:
        finished, _ = ended
        yield from (_ended(entry, harmful=bool(finished.harmful)) for entry in after.history if entry.id == finished.id)
    if change is not None and (old is None or old.id != change.id):
        yield _started(change)
    elif change is not None and old is not None and old.state is not change.state:
        yield _moved(change)
    new, shown = after.recommendation, before.recommendation
    if new is not None and (shown is None or shown.id != new.id):
        yield Event(
            reason="Recommended",
            note=f"Recommended {new.knob} {new.current or 'default'} -> {new.recommended}: {new.reason}",
            action="Recommend",
            transition=f"recommendation/{new.id}/{new.first_seen}",
        )
    yield from _answers(request for request in after.handled_requests if request not in before.handled_requests)
    yield from _scaled(before, after)
    yield from _contested(before.contest, after.contest)
    yield from _declared(before, after)


def standing(status: VLLMServiceStatus, *, now: datetime) -> Iterable[Event]:
    """Yield the recent Events of a status again: its change in progress, the last change and the user's commands."""
    change, last = status.active_change, status.history[-1] if status.history else None
    if last is not None and _is_recent(last.finished_at, now=now):
        yield _ended(last, harmful=last.outcome in (Outcome.ROLLED_BACK, Outcome.ROLLBACK_FAILED))
    if change is not None and _is_recent(change.started_at, now=now):
        yield _started(change)
    if change is not None and change.state is not ChangeState.PROVISIONING and _is_recent(change.state_since, now=now):
        yield _moved(change)
    yield from _answers(request for request in status.handled_requests if _is_recent(request.at, now=now))


def abandoned(service: VLLMService | InvalidService) -> Event | None:
    """The Event about a deleted VLLMService whose Deployment stays and runs a value under test; None without one.

    There is no finalizer, so nothing can be restored any more: a person is told how to (T55).
    """
    change = service.status.active_change if service.status is not None else None
    if change is None or not reaches_the_service(change) or change.state is ChangeState.ROLLING_BACK:
        return None
    reference, namespace = service.spec.target_ref, service.metadata.namespace
    if reference is None and service.spec.deletion_policy is DeletionPolicy.DELETE:
        return None
    name = service.metadata.name if reference is None else reference.name
    return Event(
        reason="ChangeAbandoned",
        note=f"Deleted during a change: Deployment {name} keeps {change.knob}={change.to_value}, which was under test. "
        f"To return to {change.from_value or 'the default'}: kubectl rollout undo -n {namespace} deployment/{name}",
        action="Tune",
        transition=f"{change.id}/abandoned",
        warning=True,
    )


def _answers(requests: Iterable[HandledRequest]) -> Iterable[Event]:
    """Yield one for each command that had no effect; the effect of the others has Events of its own."""
    for request in requests:
        if request.answer is not None:
            transition = f"request/{request.kind}/{request.nonce}/{request.at}"
            note = f"{request.kind}={request.nonce}: {request.answer}"
            yield Event(reason="NothingToDo", note=note, action="Answer", transition=transition, warning=True)


def _is_recent(moment: datetime | None, *, now: datetime) -> bool:
    return moment is not None and now - moment < RECENT


def _started(change: ActiveChange) -> Event:
    return Event(
        reason="ChangeStarted",
        note=f"Started {change.knob} {change.from_value or 'default'} -> {change.to_value}: {change.reason}",
        action="Tune",
        transition=f"{change.id}/started",
    )


def _moved(change: ActiveChange) -> Event:
    return Event(
        reason=f"Change{change.state.value}",
        note=f"{change.knob}={change.to_value} entered {change.state.value}: {change.state_reason}",
        action="Tune",
        transition=f"{change.id}/{change.state.value}/{change.state_since}",
        warning=bool(change.harmful),
    )


def _ended(entry: HistoryEntry, *, harmful: bool) -> Event:
    values = f"{entry.from_value or 'default'} -> {entry.to_value}"
    return Event(
        reason=f"Change{entry.outcome.value}",
        note=f"{_ENDED[entry.outcome]} {entry.knob} {values}: {entry.reason}",
        action="Tune",
        transition=f"{entry.id}/{entry.outcome.value}",
        warning=harmful,
    )


def _contested(before: Contest | None, after: Contest | None) -> Iterable[Event]:
    if after is None:
        return
    known = before.restored if before is not None else ()
    for at in after.restored:
        if at not in known:
            note = f"Restored {after.fields} of the workload, overwritten by {after.manager}"
            yield Event(reason="WorkloadRestored", note=note, action="Restore", transition=f"restored/{at}")
    if after.given_up_at is not None and (before is None or before.given_up_at != after.given_up_at):
        note = f"Gave up restoring {after.fields} of the workload, repeatedly overwritten by {after.manager}"
        transition = f"contest/{after.given_up_at}"
        yield Event(reason="OwnershipConflict", note=note, action="Restore", transition=transition, warning=True)


def _declared(before: VLLMServiceStatus, after: VLLMServiceStatus) -> Iterable[Event]:
    """Yield one when another field manager declares a field of an adopted Deployment; a contest has its own Events."""
    found = find_condition(after.conditions, ConditionType.OWNERSHIP_CONFLICT)
    new = find_condition(before.conditions, ConditionType.OWNERSHIP_CONFLICT) is None
    if found is not None and new and after.contest is None:
        yield Event(
            reason="OwnershipConflict",
            note=found.message,
            action="Adopt",
            transition=f"{found.reason}/{found.last_transition_time}",
            warning=True,
        )


def _scaled(before: VLLMServiceStatus, after: VLLMServiceStatus) -> Iterable[Event]:
    if before.effective is None or after.effective is None:
        return
    old, new = before.effective.replicas, after.effective.replicas
    if old is None or new is None or old == new:
        return
    why = after.effective.replicas_reason or "set in the spec"
    yield Event(
        reason="ScaledOut" if new > old else "ScaledIn",
        note=f"Scaled {'out' if new > old else 'in'} replicas {old} -> {new}: {why}",
        action="Scale",
        transition=f"replicas/{old}/{new}/{after.diagnosis.since if after.diagnosis else ''}",
    )
