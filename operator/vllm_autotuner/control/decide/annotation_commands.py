"""What a person asks for by annotation, once for each value: no to an advice or a change, or to go on after a stop.

`vllm-autotuner.dev/rollback` ends the change under way, in whatever state, and its value is not tried again; after a
failed rollback it tries the last known good configuration once more. Where neither is the case it is answered by what
does what was meant, and is over: it never waits for a change to come. `vllm-autotuner.dev/reject` names the id of the
recommendation that stands: its value is neither tried nor, where something else is left, recommended.
`vllm-autotuner.dev/retry` lets values that were declined so be tried again, closes the circuit, ends the cooldown,
accepts what serves after a failed rollback, and writes a workload again that was left to somebody else. The value of
rollback and retry only has to be another one than the last time, such as the time of day. Who switches the mode off or
narrows the bounds under a change says nothing about its value.
Looked at first in every tick and in every state (T28). Must not: begin anything; every guardrail is asked as always.
"""

from datetime import datetime
from enum import StrEnum

from vllm_autotuner.api.annotations import APPROVE, PAUSE, PREFIX
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import Mode, VLLMServiceSpec
from vllm_autotuner.api.status import Effective, HandledRequest, LastKnownGood, Source, VLLMServiceStatus
from vllm_autotuner.change.effective import is_tuned, spec_knobs
from vllm_autotuner.change.failure_memory import declined, environment_of, without_declined
from vllm_autotuner.planning.bounds import value_of

__all__ = ["RequestKind", "answered", "approved_id", "asked", "is_paused"]


class RequestKind(StrEnum):
    """What may be asked for; also the annotation, behind the prefix."""

    ROLLBACK = "rollback"
    REJECT = "reject"
    RETRY = "retry"


def is_paused(service: VLLMService) -> bool:
    """Whether a person said stop."""
    annotation = service.metadata.annotations.get(PAUSE)
    return service.spec.paused or (annotation is not None and annotation.strip().lower() != "false")


def approved_id(service: VLLMService, *, mode: Mode) -> str:
    """The recommendation id that a person approved; empty when none, or in a mode that asks nobody."""
    return service.metadata.annotations.get(APPROVE, "").strip() if mode is Mode.APPROVE else ""


def asked(service: VLLMService, *, now: datetime) -> tuple[HandledRequest, ...]:
    """The requests that stand on the object and were not acted upon. A No to what does not stand asks for nothing."""
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
    """The status after a request; a change under way is ended by the machine, not here."""
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
        answer = request.updated(answer=_nothing_to_take_back(status, spec=spec))
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


def _nothing_to_take_back(status: VLLMServiceStatus, *, spec: VLLMServiceSpec) -> str:
    """What a person reads who asks for a rollback too late or too early, with what works instead."""
    answer = "no change is under way, so nothing was taken back. "
    if status.rollback_failed is not None:
        retry = f"{PREFIX}{RequestKind.RETRY}"
        return f"{answer}No configuration is known to have served: edit the spec, or keep what serves by {retry}"
    written, effective = spec_knobs(spec), status.effective
    kept = []
    if effective is not None and is_tuned(spec, status):
        values = ((knob, value_of(knob, effective.knobs), value_of(knob, written)) for knob in Knob)
        kept = [(knob.value, now, before) for knob, now, before in values if now != before]
    if kept:
        tuned = ", ".join(f"{knob}={now}" for knob, now, _ in kept)
        written_there = ", ".join(f"{knob}={before or 'default'}" for knob, _, before in kept)
        bounds = " or ".join(f"{now} out of spec.tuning.{knob}" for knob, now, _ in kept)
        answer += f"Tuned and kept: {tuned}. To go back to {written_there}, leave {bounds}"
    else:
        where = "spec.engine" if spec.target_ref is None else "the Deployment"
        answer += f"What runs is what stands in {where}: edit that"
    advice = status.recommendation
    return answer if advice is None else f"{answer}. To decline what is recommended: {PREFIX}reject={advice.id}"


def _rejected(status: VLLMServiceStatus, *, spec: VLLMServiceSpec, now: datetime) -> VLLMServiceStatus:
    advice = status.recommendation
    if advice is None:
        return status
    memory = declined(status.failure_memory, advice.knob, advice.recommended, environment=environment_of(spec), now=now)
    return status.updated(recommendation=None, queued_since=None, failure_memory=memory)
