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
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import Effective, HandledRequest, Source, VLLMServiceStatus
from vllm_autotuner.change.effective import is_tuned, spec_knobs
from vllm_autotuner.change.memory import declined, environment_of, without_declined
from vllm_autotuner.planning.bounds import value_of

__all__ = ["PREFIX", "RequestKind", "answered", "asked"]

PREFIX: Final = "vllm-autotuner.dev/"


class RequestKind(StrEnum):
    """What may be asked for; also the annotation, behind the prefix."""

    ROLLBACK = "rollback"
    REJECT = "reject"
    RETRY = "retry"


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
    change, retries = status.active_change, request.kind == RequestKind.RETRY
    update: dict[str, object] = {"handled_requests": (*others, request)}
    if request.kind == RequestKind.REJECT:
        return status.model_copy(update=update | _rejected(status, spec=spec, now=now))
    if change is not None:
        update["active_change"] = change.model_copy(update={"declined": None if retries else True})
    if retries:
        update |= {"rollback_failed": None, "circuit": None, "cooldown_until": None, "contest": None}
        update["failure_memory"] = without_declined(status.failure_memory)
    elif status.rollback_failed is not None and status.last_known_good is not None:
        good, before = status.last_known_good, status.effective
        update |= {
            "rollback_failed": None,
            "effective": Effective(
                **good.knobs.model_dump(),
                replicas=before.replicas if before is not None else None,
                config_hash=good.config_hash,
                hash_version=good.hash_version,
                since=now,
                source=Source.TUNED,
                basis=spec_knobs(spec),
            ),
        }
    elif change is None:
        answer = _nothing_to_take_back(status, spec=spec)
        update["handled_requests"] = (*others, request.model_copy(update={"answer": answer}))
    return status.model_copy(update=update)


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


def _rejected(status: VLLMServiceStatus, *, spec: VLLMServiceSpec, now: datetime) -> dict[str, object]:
    advice = status.recommendation
    if advice is None:
        return {}
    memory = declined(status.failure_memory, advice.knob, advice.recommended, environment=environment_of(spec), now=now)
    return {"recommendation": None, "queued_since": None, "failure_memory": memory}
