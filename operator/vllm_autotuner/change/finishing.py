"""Updates the status after a change has ended: history entry, cooldown, failure memory, circuit breaker.

Separate from the state machine, which decides when and how a change ends.
"""

from datetime import datetime, timedelta

from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import (
    ActiveChange,
    HistoryEntry,
    Outcome,
    RollbackFailure,
    VLLMServiceStatus,
)
from vllm_autotuner.change.analysis import shown_windows
from vllm_autotuner.change.failure_memory import environment_of, with_failure
from vllm_autotuner.change.trial_deployments import gpus_added
from vllm_autotuner.change.world import Ending
from vllm_autotuner.guardrails.circuit_breaker import after_harm, opened
from vllm_autotuner.guardrails.cooldown import cooldown_until

__all__ = ["finished"]


def finished(
    status: VLLMServiceStatus, change: ActiveChange, ending: Ending, *, spec: VLLMServiceSpec, now: datetime
) -> VLLMServiceStatus:
    """The status after a change ended: no active change, a history entry, cooldown, failure memory, circuit breaker."""
    cooldown = _cooldown(change, ending, spec=spec)
    until = cooldown_until(ending.outcome, earlier=status.history, cooldown=cooldown, now=now)
    status = status.updated(
        active_change=None,
        history=(*status.history, _entry(change, ending, spec=spec, now=now)),
        # What was kept before it, and is not to be taken back so soon, or did harm, has its whole cooldown.
        cooldown_until=until if status.cooldown_until is None else max(until, status.cooldown_until),
    )
    # A change without a verdict (aborted, metrics missing for too long) is no failure: retry after the cooldown.
    if change.harmful is not None or change.declined:
        # A change that an earlier operator version began has no environment.
        environment = change.environment or environment_of(spec)
        memory = with_failure(status.failure_memory, change, ending, environment=environment, now=now)
        status = status.updated(failure_memory=memory)
    if ending.outcome is Outcome.ROLLBACK_FAILED:
        failure = RollbackFailure(change_id=change.id, generation=change.generation, message=ending.reason, at=now)
        return status.updated(circuit=opened(ending.reason, now=now), rollback_failed=failure)
    if change.harmful:
        return status.updated(circuit=after_harm(status.circuit, now=now))
    return status


def _cooldown(change: ActiveChange, ending: Ending, *, spec: VLLMServiceSpec) -> timedelta:
    """The time before the next change: that of a bake after one that was undone and did no harm, if none is written.

    What ran before it runs again, and its value is remembered if it was judged: no other value need wait for it.
    """
    tuning = spec.tuning
    # For a promotion that found no room, nothing is remembered: the same value would be next, and find none either.
    unjudged = change.harmful is None and change.promoted
    harmless = ending.outcome is Outcome.ROLLED_BACK and not (change.harmful or change.declined or unjudged)
    soon = harmless and not tuning.cooldown_is_written
    return min(tuning.cooldown, tuning.strategy.bake) if soon else tuning.cooldown


def _entry(change: ActiveChange, ending: Ending, *, spec: VLLMServiceSpec, now: datetime) -> HistoryEntry:
    analysis = change.analysis
    before, after = shown_windows(change)
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
        before=before,
        after=after,
        # Without an accelerator its pods have no GPU that is known here.
        extra_gpus=None if spec.accelerator is None else gpus_added(change),
    )
