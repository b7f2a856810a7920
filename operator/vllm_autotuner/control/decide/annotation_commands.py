"""Commands that a user gives by annotation: roll back, reject, retry. Each value of an annotation is handled once.

`vllm-autotuner.dev/rollback` ends the change in progress, in any state, and its value is not tried again; after a
failed rollback it tries the last known good configuration once more. In every other case the command is answered with
the steps that achieve what was meant, and is finished: it does not wait for a later change.
`vllm-autotuner.dev/reject` names the id of the current recommendation: its value is neither tried nor recommended.
`vllm-autotuner.dev/retry` allows rejected values again, closes the circuit breaker,
ends the cooldown, accepts the serving configuration after a failed rollback, and resumes writing a workload that was
left to another field manager. The value of rollback and retry only has to differ from the last one, e.g. the time of
day. Switching the mode off or narrowing the bounds during a change is no verdict on the value under test.
Handled first in every tick and in every state (T28). Must not: start a change; the guardrails apply as always.
"""

from datetime import datetime
from enum import StrEnum

from vllm_autotuner.api.annotations import APPROVE, PAUSE, PREFIX, REJECT, RETRY
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import Mode, VLLMServiceSpec
from vllm_autotuner.api.status import Effective, HandledRequest, LastKnownGood, Source, VLLMServiceStatus
from vllm_autotuner.change.effective import is_tuned, spec_knobs
from vllm_autotuner.change.failure_memory import declined, environment_of, without_declined
from vllm_autotuner.planning.bounds import value_of

__all__ = ["RequestKind", "answered", "approved_id", "asked", "is_paused"]


class RequestKind(StrEnum):
    """The commands; each value is also the annotation's name behind the prefix."""

    ROLLBACK = "rollback"
    REJECT = "reject"
    RETRY = "retry"


def is_paused(service: VLLMService) -> bool:
    """Whether the spec or the annotation pauses tuning."""
    annotation = service.metadata.annotations.get(PAUSE)
    return service.spec.paused or (annotation is not None and annotation.strip().lower() != "false")


def approved_id(service: VLLMService, *, mode: Mode) -> str:
    """The id of the approved recommendation; empty when there is none, or when the mode needs no approval."""
    return service.metadata.annotations.get(APPROVE, "").strip() if mode is Mode.APPROVE else ""


def asked(service: VLLMService, *, now: datetime) -> tuple[HandledRequest, ...]:
    """The commands on the object that were not handled yet. A reject of an outdated recommendation is ignored."""
    handled = {(each.kind, each.nonce) for each in service.status.handled_requests}
    standing = [(kind.value, service.metadata.annotations.get(PREFIX + kind, "").strip()) for kind in RequestKind]
    advice = service.status.recommendation
    return tuple(
        HandledRequest(kind=kind, nonce=nonce, at=now)
        for kind, nonce in standing
        if nonce
        and (kind, nonce) not in handled
        and (kind != RequestKind.REJECT or (advice is not None and advice.id == nonce))
    )


def answered(
    status: VLLMServiceStatus, request: HandledRequest, *, spec: VLLMServiceSpec, now: datetime
) -> VLLMServiceStatus:
    """The status after a command; a change in progress is ended by the state machine, not here."""
    others = tuple(each for each in status.handled_requests if each.kind != request.kind)
    change = status.active_change
    status = status.updated(handled_requests=(*others, request))
    if request.kind == RequestKind.REJECT:
        return _rejected(status, spec=spec, now=now)
    retries = request.kind == RequestKind.RETRY
    if change is not None:
        status = status.updated(active_change=change.updated(declined=None if retries else True))
    if retries:
        return status.updated(
            rollback_failed=None,
            circuit=None,
            cooldown_until=None,
            contest=None,
            failure_memory=without_declined(status.failure_memory),
        )
    if status.rollback_failed is not None and status.last_known_good is not None:
        return _once_more(status, status.last_known_good, spec=spec, now=now)
    if change is None:
        answer = request.updated(answer=_nothing_to_roll_back(status, spec=spec))
        return status.updated(handled_requests=(*others, answer))
    return status


def _once_more(
    status: VLLMServiceStatus, good: LastKnownGood, *, spec: VLLMServiceSpec, now: datetime
) -> VLLMServiceStatus:
    """Try the last known good configuration again after a failed rollback."""
    before = status.effective
    effective = Effective(
        **good.knobs.model_dump(),
        replicas=before.replicas if before is not None else None,
        config_hash=good.config_hash,
        hash_version=good.hash_version,
        since=now,
        source=Source.TUNED,
        basis=spec_knobs(spec),
    )
    return status.updated(rollback_failed=None, effective=effective)


def _nothing_to_roll_back(status: VLLMServiceStatus, *, spec: VLLMServiceSpec) -> str:
    """The answer to a rollback command while no change is in progress, with the steps that work instead."""
    answer = "no change in progress, nothing to roll back. "
    if status.rollback_failed is not None:
        return (
            f"{answer}There is no last known good configuration: edit the spec, or annotate with {RETRY} to keep the "
            "configuration that serves now"
        )
    written, effective = spec_knobs(spec), status.effective
    kept = []
    if effective is not None and is_tuned(spec, status):
        values = ((knob, value_of(knob, effective.knobs), value_of(knob, written)) for knob in Knob)
        kept = [(knob.value, now, before) for knob, now, before in values if now != before]
    if kept:
        tuned = ", ".join(f"{knob}={now}" for knob, now, _ in kept)
        written_there = ", ".join(f"{knob}={before or 'default'}" for knob, _, before in kept)
        bounds = " or ".join(f"{now} from spec.tuning.{knob}" for knob, now, _ in kept)
        answer += f"Tuned values in force: {tuned}. To restore {written_there}, exclude {bounds}"
    else:
        where = "spec.engine" if spec.target_ref is None else "the Deployment"
        answer += f"No tuned value is in force: edit {where} instead"
    advice = status.recommendation
    return answer if advice is None else f"{answer}. To reject the recommendation: {REJECT}={advice.id}"


def _rejected(status: VLLMServiceStatus, *, spec: VLLMServiceSpec, now: datetime) -> VLLMServiceStatus:
    advice = status.recommendation
    if advice is None:
        return status
    memory = declined(status.failure_memory, advice.knob, advice.recommended, environment=environment_of(spec), now=now)
    return status.updated(recommendation=None, queued_since=None, failure_memory=memory)
