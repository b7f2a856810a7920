"""What a status says once a change has ended: history, cooldown, failure memory, circuit breaker.

Apart from the machine, which ends it: here it becomes the past. All of it stands in status.
"""

from datetime import datetime

from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import (
    ActiveChange,
    HistoryEntry,
    Outcome,
    RollbackFailure,
    VLLMServiceStatus,
)
from vllm_autotuner.change.failure_memory import environment_of, with_failure
from vllm_autotuner.change.world import Ending
from vllm_autotuner.guardrails.circuit_breaker import after_harm, opened
from vllm_autotuner.guardrails.cooldown import cooldown_until

__all__ = ["finished"]


def finished(
    status: VLLMServiceStatus, change: ActiveChange, ending: Ending, *, spec: VLLMServiceSpec, now: datetime
) -> VLLMServiceStatus:
    """Return the status after a change ended: no active change, one history entry, cooldown, memory, circuit."""
    cooldown = spec.tuning.cooldown
    status = status.updated(
        active_change=None,
        history=(*status.history, _entry(change, ending, now=now)),
        cooldown_until=cooldown_until(ending.outcome, earlier=status.history, cooldown=cooldown, now=now),
    )
    # What was never judged (aborted, blind for too long) is no failure, and may be tried again after the cooldown.
    if change.harmful is not None or change.declined:
        # One that an earlier version began does not say what it was tried in.
        environment = change.environment or environment_of(spec)
        memory = with_failure(status.failure_memory, change, ending, environment=environment, now=now)
        status = status.updated(failure_memory=memory)
    if ending.outcome is Outcome.ROLLBACK_FAILED:
        failure = RollbackFailure(change_id=change.id, generation=change.generation, message=ending.reason, at=now)
        return status.updated(circuit=opened(ending.reason, now=now), rollback_failed=failure)
    if change.harmful:
        return status.updated(circuit=after_harm(status.circuit, now=now))
    return status


def _entry(change: ActiveChange, ending: Ending, *, now: datetime) -> HistoryEntry:
    analysis = change.analysis
    return HistoryEntry(
        id=change.id,
        knob=change.knob,
        from_value=change.from_value,
        to_value=change.to_value,
        outcome=ending.outcome,
        reason=ending.reason,
        started_at=change.started_at,
        finished_at=now,
        grounds=change.grounds,
        windows_good=analysis.windows_good if analysis else None,
        windows_bad=analysis.windows_bad if analysis else None,
        # Of a canary both are of one pod, and of the same window.
        before=analysis.reference[-1] if analysis and analysis.reference else change.baseline,
        after=analysis.last[-1] if analysis and analysis.last else None,
    )
