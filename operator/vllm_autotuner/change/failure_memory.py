"""Failure memory: which values failed or were declined, in which environment, and when to retry them.

Stored in status.failureMemory. Users can edit it, so it is validated like any other input.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import (
    ActiveChange,
    FailedCandidate,
    Outcome,
    VLLMServiceStatus,
)
from vllm_autotuner.change.world import Ending

__all__ = [
    "DECLINED",
    "declined",
    "environment_of",
    "failed_values",
    "infeasible_knobs",
    "left_values",
    "with_failure",
    "without_declined",
]

DECLINED: Final = "a user requested a rollback"
"""Reason of the rollback and of the entry in the failure memory; does not count as a failure."""

REJECTED: Final = "a user rejected the recommendation"
"""Reason of an entry for a value that was never tried."""

FIRST_RETRY: Final = timedelta(days=1)
"""Wait after the first harmful rollback of a value: covers one daily peak. Doubles each time. Our choice."""
LONGEST_RETRY: Final = timedelta(days=7)
"""Doubling stops here, so that a repaired service is retried within a week. Our choice."""
LEFT_FOR: Final = timedelta(days=7)
"""How long a value that a kept change has left is not returned to in order to save GPUs: a week has every daily peak,
and each way costs a trial. Our choice."""
UNCLEAR_RETRY: Final = timedelta(hours=6)
"""Wait after a value that could not be placed or had no clear effect: harmless, but not worth repeating at once.
Doubles as well. Our choice."""


def environment_of(spec: VLLMServiceSpec) -> str:
    """A fingerprint of the environment of a candidate: image, model, device and the flags that are not tuned."""
    engine, model, device = spec.engine, spec.model, spec.accelerator
    parts = (
        engine.image if engine else "",
        " ".join(engine.args) if engine else "",
        f"{model.name}@{model.revision}" if model else "",
        (device.product or "") if device else "",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def failed_values(spec: VLLMServiceSpec, status: VLLMServiceStatus, *, now: datetime) -> tuple[tuple[str, str], ...]:
    """Knobs and values blocked in this environment: until their retry time or, if declined, until a user retries."""
    environment = environment_of(spec)
    return tuple(
        (entry.knob, entry.value)
        for entry in status.failure_memory
        if entry.environment == environment
        and (entry.declined_at is not None or entry.retry_after is None or now < entry.retry_after)
    )


def left_values(status: VLLMServiceStatus, *, now: datetime) -> tuple[tuple[str, str], ...]:
    """Knobs and values that a change that was kept has left lately: the way back saves nothing that lasts."""
    return tuple(
        (entry.knob, entry.from_value)
        for entry in status.history
        if entry.outcome is Outcome.SUCCEEDED
        and entry.from_value is not None
        and entry.finished_at is not None
        and now - entry.finished_at < LEFT_FOR
    )


def infeasible_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> tuple[EngineKnobs, ...]:
    """Configurations that ran out of memory in this environment. These entries do not expire."""
    environment = environment_of(spec)
    found = (entry.infeasible for entry in status.failure_memory if entry.environment == environment)
    return tuple(knobs for knobs in found if knobs is not None)


def declined(
    memory: tuple[FailedCandidate, ...], knob: str, value: str, *, environment: str, now: datetime
) -> tuple[FailedCandidate, ...]:
    """The memory after a user rejected a recommended value that was never tried. The newest entry is last."""
    earlier = _earlier(memory, f"{knob}={value}", environment=environment)
    found = earlier or _unblamed(knob, value, environment=environment, reason=REJECTED)
    others = tuple(one for one in memory if one is not earlier)
    return (*others, found.updated(declined_at=now))


def without_declined(memory: Iterable[FailedCandidate]) -> tuple[FailedCandidate, ...]:
    """The memory after a retry request: declined values are released, failed ones stay blocked."""
    failed = (entry for entry in memory if entry.declined_at is None or entry.failures > 0)
    return tuple(entry.updated(declined_at=None) for entry in failed)


def with_failure(
    memory: Iterable[FailedCandidate], change: ActiveChange, ending: Ending, *, environment: str, now: datetime
) -> tuple[FailedCandidate, ...]:
    """The memory after a change was rolled back or declined; the newest entry is last."""
    known = tuple(memory)
    earlier = _earlier(known, f"{change.knob}={change.to_value}", environment=environment)
    found = earlier or _unblamed(change.knob, change.to_value, environment=environment, reason=DECLINED)
    if change.harmful is not None:
        found = _failed_again(found, change, ending, now=now)
    if change.declined:
        found = found.updated(declined_at=now)
    return (*(one for one in known if one is not earlier), found)


def _earlier(memory: Iterable[FailedCandidate], candidate: str, *, environment: str) -> FailedCandidate | None:
    return next((one for one in memory if one.candidate == candidate and one.environment == environment), None)


def _unblamed(knob: str, value: str, *, environment: str, reason: str) -> FailedCandidate:
    return FailedCandidate(
        candidate=f"{knob}={value}", knob=knob, value=value, environment=environment, failures=0, reason=reason
    )


def _failed_again(
    candidate: FailedCandidate, change: ActiveChange, ending: Ending, *, now: datetime
) -> FailedCandidate:
    failures = max(0, candidate.failures) + 1
    # 16 doublings are far past the longest wait; an edited status must not overflow.
    wait = (FIRST_RETRY if change.harmful else UNCLEAR_RETRY) * (1 << min(failures - 1, 16))
    if change.refused:
        # A second refusal of the same value within the circuit breaker's window would open it for no new reason.
        wait = LONGEST_RETRY
    infeasible = change.to.knobs if change.lacked_memory else candidate.infeasible
    return candidate.updated(
        failures=failures,
        last_failure_time=now,
        retry_after=None if infeasible is not None else now + min(wait, LONGEST_RETRY),
        reason=ending.reason,
        infeasible=infeasible,
    )
