"""Which values failed or were declined, in which environment, and when they may be tried again.

It stands in status; a person may have edited it, so it is read like any other input.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import (
    ActiveChange,
    FailedCandidate,
    VLLMServiceStatus,
)
from vllm_autotuner.change.world import Ending

__all__ = [
    "DECLINED",
    "declined",
    "environment_of",
    "failed_seats",
    "failed_values",
    "infeasible_knobs",
    "with_failure",
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
    return (*others, found.updated(declined_at=now))


def without_declined(memory: Iterable[FailedCandidate]) -> tuple[FailedCandidate, ...]:
    """What is remembered once a person takes his No back: what failed besides still rests."""
    failed = (entry for entry in memory if entry.declined_at is None or entry.failures > 0)
    return tuple(entry.updated(declined_at=None) for entry in failed)


def with_failure(
    memory: Iterable[FailedCandidate], change: ActiveChange, ending: Ending, *, environment: str, now: datetime
) -> tuple[FailedCandidate, ...]:
    """What is remembered once a change was rolled back or declined; the newest is last."""
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
        # A second refusal within the circuit's window would end all tuning, for what the first one had said already.
        wait = LONGEST_RETRY
    infeasible = change.to.knobs if change.lacked_memory else candidate.infeasible
    return candidate.updated(
        failures=failures,
        last_failure_time=now,
        retry_after=None if infeasible is not None else now + min(wait, LONGEST_RETRY),
        reason=ending.reason,
        infeasible=infeasible,
    )
