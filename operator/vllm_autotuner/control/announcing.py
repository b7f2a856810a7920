"""The Events that a written status calls for: one a transition, none for a repeat.

Pure: compares the status before and after. Posted only after the status was written, under a name made from the
transition, so that a crash in between repeats the post and not the Event.
"""

from collections.abc import Iterable

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ActiveChange, VLLMServiceStatus
from vllm_autotuner.change.machine import Ending
from vllm_autotuner.cluster.events import Event

__all__ = ["announcements"]


def announcements(
    service: VLLMService, after: VLLMServiceStatus, *, ended: tuple[ActiveChange, Ending] | None
) -> Iterable[Event]:
    """Yield what happened between the status of `service` and `after`."""
    before = service.status
    change, old = after.active_change, before.active_change
    if ended is not None:
        finished, ending = ended
        yield Event(
            reason=f"Change{ending.outcome.value}",
            note=f"{finished.knob} {finished.from_value or 'default'} -> {finished.to_value}: {ending.reason}",
            action="Tune",
            transition=f"{finished.id}/{ending.outcome.value}",
            warning=bool(finished.harmful),
        )
    if change is not None and (old is None or old.id != change.id):
        yield Event(
            reason="ChangeStarted",
            note=f"{change.knob} {change.from_value or 'default'} -> {change.to_value}: {change.reason}",
            action="Tune",
            transition=f"{change.id}/started",
        )
    elif change is not None and old is not None and old.state is not change.state:
        yield Event(
            reason=f"Change{change.state.value}",
            note=f"{change.knob}={change.to_value}: {change.state_reason}",
            action="Tune",
            transition=f"{change.id}/{change.state.value}/{change.state_since}",
            warning=bool(change.harmful),
        )
    new, standing = after.recommendation, before.recommendation
    if new is not None and (standing is None or standing.id != new.id):
        yield Event(
            reason="Recommended",
            note=f"{new.knob} {new.current or 'default'} -> {new.recommended}: {new.reason}",
            action="Recommend",
            transition=f"recommendation/{new.id}/{new.first_seen}",
        )
    yield from _scaled(before, after)


def _scaled(before: VLLMServiceStatus, after: VLLMServiceStatus) -> Iterable[Event]:
    if before.effective is None or after.effective is None:
        return
    old, new = before.effective.replicas, after.effective.replicas
    if old is None or new is None or old == new:
        return
    why = after.diagnosis.message if after.diagnosis is not None else ""
    yield Event(
        reason="ScaledOut" if new > old else "ScaledIn",
        note=f"replicas {old} -> {new}: {why}",
        action="Scale",
        transition=f"replicas/{old}/{new}/{after.diagnosis.since if after.diagnosis else ''}",
    )
