"""The conditions of a VLLMService's status, each with a reason for tools and a message for people.

Apart from `status_report`, because conditions are API: alerts and `kubectl wait` read them, and some must never
contradict each other. OwnershipConflict is in `ownership_status`. Must not: decide anything.
"""

from collections.abc import Iterator

from vllm_autotuner.api.annotations import APPROVE
from vllm_autotuner.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    remove_condition,
    set_condition,
)
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import ActiveChange, Outcome, VLLMServiceStatus
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.ownership_status import ownership
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.guardrails.change_windows import why_never_open
from vllm_autotuner.guardrails.circuit_breaker import circuit_is_open
from vllm_autotuner.guardrails.contest import gave_up_pods

__all__ = ["about_change", "conditions_of"]


def conditions_of(
    status: VLLMServiceStatus,
    inputs: Inputs,
    *,
    diagnosis: Diagnosis,
    ended: tuple[ActiveChange, Ending] | None,
) -> tuple[Condition, ...]:
    """Every condition of a decided status; an unchanged condition keeps its transition time."""
    conditions = status.conditions
    generation, now = inputs.service.metadata.generation, inputs.now

    def put(kind: ConditionType, state: ConditionStatus | bool, reason: Reason, message: str) -> None:
        nonlocal conditions
        conditions = set_condition(
            conditions,
            type=kind,
            status=state,
            reason=reason,
            message=message,
            observed_generation=generation,
            now=now,
        )

    for kind, state, reason, message in (
        *_serving(status, inputs),
        ownership(status, inputs),
        _metrics(diagnosis, inputs),
        _recommending(status, inputs),
        *about_change(status, ended=ended),
    ):
        put(kind, state, reason, message)
    by_spec = inputs.service.spec.paused
    paused_by = Reason.PAUSED_BY_SPEC if by_spec else Reason.PAUSED_BY_ANNOTATION
    where = "spec.paused is true" if by_spec else "the annotation vllm-autotuner.dev/pause is set"
    if inputs.operator.limits.kill:
        paused_by, where = Reason.PAUSED_BY_OPERATOR, inputs.operator.limits.why
    paused = inputs.paused or inputs.operator.limits.kill
    put(ConditionType.PAUSED, paused, paused_by, f"{where}; serving continues, tuning and scaling are stopped")
    if (adoption := inputs.workload.adoption) is None:
        conditions = remove_condition(conditions, ConditionType.ADOPTED)
    else:
        put(ConditionType.ADOPTED, True, Reason.TARGET_OBSERVED, adoption.about)
    circuit = status.circuit
    is_open = circuit_is_open(circuit, now=now)
    why = circuit.reason if circuit is not None else ""
    put(ConditionType.CIRCUIT_OPEN, is_open, Reason.REPEATED_ROLLBACKS, f"{why}; recommendations only")
    return conditions


def about_change(
    status: VLLMServiceStatus, *, ended: tuple[ActiveChange, Ending] | None
) -> Iterator[tuple[ConditionType, bool, Reason, str]]:
    """The conditions of the change in progress, and of the one that has just ended."""
    change = status.active_change
    about = "" if change is None else f"{change.knob} {change.from_value or 'default'} -> {change.to_value}"
    state_text = "" if change is None else f"{about}: {change.state.value}"
    yield ConditionType.TUNING_IN_PROGRESS, change is not None, Reason.CHANGE_ACTIVE, state_text
    if ended is not None:
        finished, ending = ended
        good = ending.outcome is Outcome.SUCCEEDED
        message = f"{finished.knob}={finished.to_value}: {ending.reason}"
        yield ConditionType.LAST_CHANGE_SUCCEEDED, good, Reason(ending.outcome.value), message


def _serving(
    status: VLLMServiceStatus, inputs: Inputs
) -> tuple[tuple[ConditionType, ConditionStatus | bool, Reason, str], ...]:
    """Ready, Reconciling, Stalled and RollbackFailed: the four that must never contradict each other."""
    rollout, spec, change = inputs.workload.rollout, inputs.service.spec, status.active_change
    floor = spec.scaling.min_replicas if spec.scaling is not None else (spec.replicas or 0)
    if inputs.workload.adoption is not None:
        floor = min(floor, inputs.workload.adoption.floor)
    if inputs.workload.scaled_by:
        floor = rollout.replicas
    if status.rollback_failed is not None:
        message = status.rollback_failed.message
        return (
            (ConditionType.RECONCILING, False, Reason.PROGRESSING, ""),
            (ConditionType.READY, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
            (ConditionType.ROLLBACK_FAILED, True, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
            (ConditionType.STALLED, True, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
        )
    refusal = inputs.workload.refusal
    if refusal is not None and change is None:
        return (
            (ConditionType.ROLLBACK_FAILED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
            (ConditionType.RECONCILING, False, Reason.PROGRESSING, ""),
            (ConditionType.READY, False, refusal.reason, refusal.message),
            (ConditionType.STALLED, True, refusal.reason, refusal.message),
        )
    enough = rollout.ready >= floor
    # Tuning is not reconciling: a rollout that a change causes leaves a service that serves its spec Ready.
    # Nor are the edits of another field manager: the workload does not follow the spec after the operator gave up.
    follows_spec = (change is None and not gave_up_pods(status.contest)) and (
        rollout.config_hash is None
        or (status.effective is not None and rollout.config_hash != status.effective.config_hash)
        or not rollout.rolled_out
    )
    served = f"{rollout.ready} of {floor} replicas ready"
    if rollout.crashed and not enough:
        served += f"; {rollout.crashed}"
    elif rollout.unschedulable and not enough:
        served += f"; {rollout.unschedulable}"
    waiting = follows_spec or not enough
    reason = Reason.PROGRESSING if follows_spec else Reason.REPLICAS_UNAVAILABLE
    return (
        (ConditionType.ROLLBACK_FAILED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
        (ConditionType.STALLED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
        (ConditionType.RECONCILING, waiting, reason, served),
        (ConditionType.READY, not waiting, reason if waiting else Reason.SERVING, served),
    )


def _metrics(diagnosis: Diagnosis, inputs: Inputs) -> tuple[ConditionType, bool, Reason, str]:
    if diagnosis.primary is not DiagnosisClass.METRICS_BLIND and inputs.observation.engines:
        return ConditionType.METRICS_AVAILABLE, True, Reason.METRICS_FRESH, "engine metrics are fresh"
    failed, stale = inputs.observation.problem is not None, bool(inputs.observation.silent)
    told = find_condition(inputs.service.status.conditions, ConditionType.METRICS_AVAILABLE)
    # What has gone stale is forgotten by the source after some minutes: no news of the service.
    stale = stale or (told is not None and told.reason == Reason.METRICS_STALE)
    reason = Reason.PROVIDER_ERROR if failed else Reason.METRICS_STALE if stale else Reason.METRICS_MISSING
    return ConditionType.METRICS_AVAILABLE, False, reason, f"{diagnosis.message} No change starts until metrics return."


def _recommending(status: VLLMServiceStatus, inputs: Inputs) -> tuple[ConditionType, bool, Reason, str]:
    found, change = status.recommendation, status.active_change
    if change is not None:
        message = f"change in progress: {change.knob} -> {change.to_value}"
        return ConditionType.RECOMMENDATION_AVAILABLE, False, Reason.CHANGE_ACTIVE, message
    # Told before a change waits for it: that may be months after the typing error.
    never = f"; spec.tuning.{why}" if (why := why_never_open(inputs.service.spec.tuning.windows)) else ""
    if found is None:
        message = f"nothing to recommend{never}"
        return ConditionType.RECOMMENDATION_AVAILABLE, False, Reason.NOTHING_TO_IMPROVE, message
    message = f"{found.told}{never}"
    awaiting = inputs.mode is Mode.APPROVE
    reason = Reason.AWAITING_APPROVAL if awaiting else Reason.RECOMMENDED
    if awaiting:
        # With --overwrite: an earlier approval may stand there.
        service = inputs.service.metadata
        annotate = f"kubectl annotate --overwrite -n {service.namespace} vllm {service.name}"
        message += f"; to approve: {annotate} {APPROVE}={found.id}"
    if awaiting and inputs.approved and inputs.approved != found.id:
        message += f" (approved recommendation {inputs.approved} is outdated)"
    return ConditionType.RECOMMENDATION_AVAILABLE, True, reason, message
