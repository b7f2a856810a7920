"""What is remembered after a change: cooldown, budget, what failed or was declined, the circuit breaker, the history.

All of it stands in status; a person may have edited it, so it is read like any other input.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import (
    FAILURE_MEMORY_LENGTH,
    HISTORY_LENGTH,
    ActiveChange,
    BudgetStatus,
    Circuit,
    CircuitState,
    FailedCandidate,
    HistoryEntry,
    Outcome,
    RollbackFailure,
    VLLMServiceStatus,
)
from vllm_autotuner.change.world import Ending
from vllm_autotuner.guardrails.chain import BUDGET_WINDOW

__all__ = [
    "DECLINED",
    "declined",
    "environment_of",
    "failed_seats",
    "failed_values",
    "infeasible_knobs",
    "remembered",
    "spent",
    "without_declined",
]

DECLINED: Final = "a person asked for a rollback"
"""Why a change is undone, and why its value is remembered; nobody is to blame."""

REJECTED: Final = "a person rejected the recommendation"
"""Why a value is remembered that was never tried."""

FIRST_RETRY: Final = timedelta(days=1)
"""A harmful candidate is left alone for a day: it sees one daily peak on the old configuration. Our choice."""
LONGEST_RETRY: Final = timedelta(days=7)
"""Doubling stops here, so that a repaired service is tried again within a week. Our choice."""
UNCLEAR_RETRY: Final = timedelta(hours=6)
"""A candidate that could not be placed or had no clear effect is no harm, only not worth repeating at once. Doubles
like the first. Our choice."""
MOST_DOUBLINGS: Final = 4
"""Of the cooldown, while no device is free: 16 times 6 h is four days. Our choice."""
ROLLBACKS_TO_OPEN: Final = 2
CIRCUIT_WINDOW: Final = timedelta(days=7)
CIRCUIT_OPEN_FOR: Final = timedelta(days=14)
"""Two rollbacks for harm in seven days open the circuit for fourteen. Design, changes.md 6 (G31)."""


def environment_of(spec: VLLMServiceSpec) -> str:
    """A fingerprint of what a candidate failed in: image, model, device and the flags that are not tuned."""
    engine, model, device = spec.engine, spec.model, spec.accelerator
    parts = (
        engine.image if engine else "",
        " ".join(engine.args) if engine else "",
        f"{model.name}@{model.revision}" if model else "",
        (device.product or "") if device else "",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def failed_values(spec: VLLMServiceSpec, status: VLLMServiceStatus, *, now: datetime) -> tuple[tuple[str, str], ...]:
    """Knobs and values that were rolled back in this environment and rest until later, or until a person says so."""
    environment = environment_of(spec)
    return tuple(
        (entry.knob, entry.value)
        for entry in status.failure_memory
        if entry.environment == environment
        and (entry.declined_at is not None or entry.retry_after is None or now < entry.retry_after)
    )


def failed_seats(spec: VLLMServiceSpec, status: VLLMServiceStatus, *, now: datetime) -> tuple[int, ...]:
    """Values of max-num-seqs among them."""
    failed = failed_values(spec, status, now=now)
    return tuple(int(value) for knob, value in failed if knob == Knob.MAX_NUM_SEQS and value.isdecimal())


def infeasible_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> tuple[EngineKnobs, ...]:
    """Configurations that did not find enough memory in this environment. That does not pass with time."""
    environment = environment_of(spec)
    found = (entry.infeasible for entry in status.failure_memory if entry.environment == environment)
    return tuple(knobs for knobs in found if knobs is not None)


def declined(
    memory: tuple[FailedCandidate, ...], knob: str, value: str, *, environment: str, now: datetime
) -> tuple[FailedCandidate, ...]:
    """What is remembered once a person said No to a value that was only recommended. The newest is last."""
    earlier = _earlier(memory, f"{knob}={value}", environment=environment)
    found = earlier or _unblamed(knob, value, environment=environment, reason=REJECTED)
    others = tuple(one for one in memory if one is not earlier)
    return (*others, found.model_copy(update={"declined_at": now}))[-FAILURE_MEMORY_LENGTH:]


def without_declined(memory: Iterable[FailedCandidate]) -> tuple[FailedCandidate, ...]:
    """What is remembered once a person takes his No back: what failed besides still rests."""
    failed = (entry for entry in memory if entry.declined_at is None or entry.failures > 0)
    return tuple(entry.model_copy(update={"declined_at": None}) for entry in failed)


def spent(budget: BudgetStatus | None, *, now: datetime) -> BudgetStatus:
    """Count one change, in a window of 24 hours."""
    if budget is None or budget.window_start is None or now - budget.window_start >= BUDGET_WINDOW:
        return BudgetStatus(changes_today=1, window_start=now)
    return budget.model_copy(update={"changes_today": max(0, budget.changes_today) + 1})


def remembered(
    status: VLLMServiceStatus, change: ActiveChange, ending: Ending, *, spec: VLLMServiceSpec, now: datetime
) -> VLLMServiceStatus:
    """Return the status after a change ended: no active change, one history entry, cooldown, memory, circuit."""
    analysis = change.analysis
    after = analysis.last[-1] if analysis and analysis.last else None
    entry = HistoryEntry(
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
        after=after,
    )
    update: dict[str, object] = {
        "active_change": None,
        "history": (*status.history, entry)[-HISTORY_LENGTH:],
        "cooldown_until": now + spec.tuning.cooldown * _rejections(status, ending),
    }
    # What was never judged (aborted, blind for too long) is no failure, and may be tried again after the cooldown.
    if change.harmful is not None or change.declined:
        # One that an earlier version began does not say what it was tried in.
        environment = change.environment or environment_of(spec)
        memory = _with_failure(status, change, ending, environment=environment, now=now)
        update["failure_memory"] = memory[-FAILURE_MEMORY_LENGTH:]
    if ending.outcome is Outcome.ROLLBACK_FAILED:
        # Without an end: it waits for a person.
        update["circuit"] = Circuit(state=CircuitState.OPEN, opened_at=now, reason=ending.reason)
        update["rollback_failed"] = RollbackFailure(
            change_id=change.id, generation=change.generation, message=ending.reason, at=now
        )
    elif change.harmful:
        update["circuit"] = _circuit(status.circuit, now=now)
    return status.model_copy(update=update)


def _rejections(status: VLLMServiceStatus, ending: Ending) -> int:
    """How many cooldowns to wait: doubled with each change in a row that found no device, without blaming any (T19)."""
    if ending.outcome is not Outcome.REJECTED:
        return 1
    earlier = [entry.outcome is Outcome.REJECTED for entry in reversed(status.history)]
    in_a_row = next((count for count, rejected in enumerate(earlier) if not rejected), len(earlier))
    return 1 << min(in_a_row, MOST_DOUBLINGS)


def _with_failure(
    status: VLLMServiceStatus, change: ActiveChange, ending: Ending, *, environment: str, now: datetime
) -> tuple[FailedCandidate, ...]:
    earlier = _earlier(status.failure_memory, f"{change.knob}={change.to_value}", environment=environment)
    found = earlier or _unblamed(change.knob, change.to_value, environment=environment, reason=DECLINED)
    if change.harmful is not None:
        found = found.model_copy(update=_failed_again(found, change, ending, now=now))
    if change.declined:
        found = found.model_copy(update={"declined_at": now})
    return (*(one for one in status.failure_memory if one is not earlier), found)


def _earlier(memory: Iterable[FailedCandidate], candidate: str, *, environment: str) -> FailedCandidate | None:
    return next((one for one in memory if one.candidate == candidate and one.environment == environment), None)


def _unblamed(knob: str, value: str, *, environment: str, reason: str) -> FailedCandidate:
    return FailedCandidate(
        candidate=f"{knob}={value}", knob=knob, value=value, environment=environment, failures=0, reason=reason
    )


def _failed_again(
    candidate: FailedCandidate, change: ActiveChange, ending: Ending, *, now: datetime
) -> Mapping[str, object]:
    failures = max(0, candidate.failures) + 1
    # 16 doublings are far past the longest wait; an edited status must not overflow.
    wait = (FIRST_RETRY if change.harmful else UNCLEAR_RETRY) * (1 << min(failures - 1, 16))
    if change.refused:
        # A second refusal within the circuit's window would end all tuning, for what the first one had said already.
        wait = LONGEST_RETRY
    infeasible = change.to.knobs if change.lacked_memory else candidate.infeasible
    return {
        "failures": failures,
        "last_failure_time": now,
        "retry_after": None if infeasible is not None else now + min(wait, LONGEST_RETRY),
        "reason": ending.reason,
        "infeasible": infeasible,
    }


def _circuit(circuit: Circuit | None, *, now: datetime) -> Circuit:
    """Count a harmful rollback. `opened_at` holds the first of the counted ones while the circuit is closed."""
    first = circuit.opened_at if circuit is not None else None
    recent = circuit is not None and first is not None and now - first < CIRCUIT_WINDOW
    count = (max(0, circuit.rollbacks) if circuit is not None and recent else 0) + 1
    if count < ROLLBACKS_TO_OPEN:
        return Circuit(state=CircuitState.CLOSED, opened_at=now, rollbacks=count)
    reason = f"{count} changes were rolled back within {CIRCUIT_WINDOW.days} days"
    return Circuit(state=CircuitState.OPEN, opened_at=now, until=now + CIRCUIT_OPEN_FOR, rollbacks=count, reason=reason)
