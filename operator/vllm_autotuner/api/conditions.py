"""The conditions of a VLLMService: types, reasons, and functions that find, set and remove them.

Argo CD, Flux and `kubectl wait` only read conditions, by the rules of kstatus (I9 in docs/invariants.md). Tuning never
makes a service un-Ready: after a rollback the service is healthy. Types and reasons are API (alerts match them): never
renamed, never parsed from a message.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from vllm_autotuner.api.fields import Message, Timestamp
from vllm_autotuner.api.model import ApiModel


class ConditionType(StrEnum):
    """The types of conditions."""

    READY = "Ready"
    """The service serves as its spec demands. Always present; Unknown before the first reconciliation."""

    RECONCILING = "Reconciling"
    """The workload is rolling out a change of the spec or recovering. Abnormal-true. Never set by tuning."""

    STALLED = "Stalled"
    """Manual action is needed. Abnormal-true."""

    METRICS_AVAILABLE = "MetricsAvailable"
    """The metrics needed for decisions are fresh. False stops tuning, not serving."""

    RECOMMENDATION_AVAILABLE = "RecommendationAvailable"
    """A change is recommended."""

    TUNING_IN_PROGRESS = "TuningInProgress"
    """A change is active. Abnormal-true in form only: the service stays Ready."""

    LAST_CHANGE_SUCCEEDED = "LastChangeSucceeded"
    """How the last change ended; absent before the first."""

    PAUSED = "Paused"
    """Tuning is paused. Abnormal-true."""

    CIRCUIT_OPEN = "CircuitOpen"
    """The circuit breaker is open after repeated rollbacks: recommendations only. Abnormal-true."""

    OWNERSHIP_CONFLICT = "OwnershipConflict"
    """Another field manager or controller writes fields that the operator owns. Abnormal-true."""

    ADOPTED = "Adopted"
    """The Deployment of spec.targetRef is adopted. False: it cannot be, and the message says why."""

    ROLLBACK_FAILED = "RollbackFailed"
    """The last known good configuration does not serve. Abnormal-true, and the only tuning state that stalls."""


class ConditionStatus(StrEnum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status. The message beside it has the details and the remedy."""

    SERVING = "Serving"
    """Ready: enough replicas serve the effective configuration."""

    NOT_YET_OBSERVED = "NotYetObserved"
    """Ready=Unknown: the operator has not reconciled the service yet."""

    PROGRESSING = "Progressing"
    """Ready or Reconciling: the workload rolls out a change of the spec."""

    REPLICAS_UNAVAILABLE = "ReplicasUnavailable"
    """Ready: fewer replicas are ready than desired; Kubernetes is replacing them."""

    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """Stalled: the Deployment exceeded its progress deadline. Remedy: `kubectl describe pod`, then edit the spec."""

    INVALID_SPEC = "InvalidSpec"
    """Stalled: the spec is invalid. The message says what to write instead."""

    INVALID_STATUS = "InvalidStatus"
    """Stalled: the status was edited into something unreadable. Remedy: repair or remove the named field."""

    FORBIDDEN = "Forbidden"
    """Stalled: the operator lacks a permission. Remedy: the rule of the Helm chart that the message names."""

    TARGET_NOT_FOUND = "TargetNotFound"
    """Stalled: spec.targetRef names a Deployment that does not exist."""

    TARGET_OBSERVED = "TargetObserved"
    """Adopted: the engine's container and its flags were found; the message names them, and what is not visible."""

    NO_ENGINE_CONTAINER = "NoEngineContainer"
    """Stalled: no container of the target runs vLLM. Remedy: name another Deployment."""

    SEVERAL_ENGINE_CONTAINERS = "SeveralEngineContainers"
    """Stalled: more than one container of the target runs vLLM. Remedy: name the one to tune `vllm`."""

    CONFLICT = "Conflict"
    """Stalled: an older VLLMService has adopted the same Deployment. Remedy: delete one of the two."""

    METRICS_FRESH = "MetricsFresh"
    """MetricsAvailable: every series needed for decisions is fresh."""

    METRICS_MISSING = "MetricsMissing"
    """MetricsAvailable: Prometheus answers, but has no series of this service. Remedy: `vllm-autotuner doctor`."""

    METRICS_STALE = "MetricsStale"
    """MetricsAvailable: the newest sample is too old to decide upon, or was before the source forgot it."""

    PROVIDER_ERROR = "ProviderError"
    """MetricsAvailable: queries to Prometheus fail."""

    RECOMMENDED = "Recommended"
    """RecommendationAvailable: a change is recommended; see status.recommendation."""

    NOTHING_TO_IMPROVE = "NothingToImprove"
    """RecommendationAvailable: no change is predicted to help."""

    AWAITING_APPROVAL = "AwaitingApproval"
    """RecommendationAvailable: mode Approve, not approved yet."""

    CHANGE_ACTIVE = "ChangeActive"
    """TuningInProgress: see status.activeChange. RecommendationAvailable=False: it is being tried."""

    SUCCEEDED = "Succeeded"
    """LastChangeSucceeded: measured better, and kept."""

    ROLLED_BACK = "RolledBack"
    """LastChangeSucceeded: rolled back; the service runs its last known good configuration."""

    REJECTED = "Rejected"
    """LastChangeSucceeded: ended before the workload was changed."""

    SUPERSEDED = "Superseded"
    """LastChangeSucceeded: the spec was edited during the change."""

    ROLLBACK_FAILED = "RollbackFailed"
    """LastChangeSucceeded: the rollback failed, the old configuration does not serve."""

    PAUSED_BY_SPEC = "PausedBySpec"
    """Paused: spec.paused is true."""

    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    """Paused: the pause annotation is set, or is unreadable."""

    PAUSED_BY_OPERATOR = "PausedByOperator"
    """Paused: the operator's kill switch is on; active changes are rolled back."""

    REPEATED_ROLLBACKS = "RepeatedRollbacks"
    """CircuitOpen: two harmful rollbacks in seven days. Remedy: request a retry, or wait 14 days."""

    FIELD_MANAGER_CONFLICT = "FieldManagerConflict"
    """OwnershipConflict: another field manager overwrites the operator's fields. The message names it."""

    FLAGS_DECLARED_ELSEWHERE = "FlagsDeclaredElsewhere"
    """OwnershipConflict: another field manager declares the adopted Deployment's flags. The message has a snippet."""

    REPLICAS_CONTROLLED_ELSEWHERE = "ReplicasControlledElsewhere"
    """OwnershipConflict: an autoscaler owns the replicas that spec.scaling tells the operator to set."""

    LAST_KNOWN_GOOD_NOT_SERVING = "LastKnownGoodNotServing"
    """RollbackFailed: the last known good configuration was restored, but its pods do not become ready."""


ABNORMAL_TRUE: Final = frozenset(
    {
        ConditionType.RECONCILING,
        ConditionType.STALLED,
        ConditionType.TUNING_IN_PROGRESS,
        ConditionType.PAUSED,
        ConditionType.CIRCUIT_OPEN,
        ConditionType.OWNERSHIP_CONFLICT,
        ConditionType.ROLLBACK_FAILED,
    }
)
"""Conditions that are absent rather than False, so that a healthy service lists no abnormal ones."""


class Condition(ApiModel):
    """One condition, as in every Kubernetes API."""

    type: str
    """The type of the condition."""

    status: ConditionStatus
    """True, False or Unknown."""

    reason: str = ""
    """Machine-readable reason, a constant."""

    message: Message = ""
    """Human-readable message with the remedy."""

    last_transition_time: Timestamp | None = None
    """When the status last changed."""

    observed_generation: int | None = None
    """The generation of the spec that the condition is about."""


def find_condition(conditions: Sequence[Condition], type: ConditionType) -> Condition | None:  # noqa: A002 (API name)
    """Return the condition of this type, or None."""
    return next((condition for condition in conditions if condition.type == type), None)


def remove_condition(conditions: Sequence[Condition], type: ConditionType) -> tuple[Condition, ...]:  # noqa: A002
    """Return the conditions without this type."""
    return tuple(condition for condition in conditions if condition.type != type)


def set_condition(
    conditions: Sequence[Condition],
    *,
    type: ConditionType,  # noqa: A002 (API name)
    status: ConditionStatus | bool,
    reason: Reason | str,
    message: str,
    observed_generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the conditions with this one set, in stable order; the transition time moves only with the status.

    An abnormal-true condition that would not be True is removed instead. Times have whole seconds, as in `metav1.Time`.
    """
    if isinstance(status, bool):
        status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    if type in ABNORMAL_TRUE and status is not ConditionStatus.TRUE:
        return remove_condition(conditions, type)
    before = find_condition(conditions, type)
    unchanged = before is not None and before.status is status
    after = Condition(
        type=type,
        status=status,
        reason=str(reason),
        message=message,
        last_transition_time=(before and unchanged and before.last_transition_time) or now.replace(microsecond=0),
        observed_generation=observed_generation,
    )
    if before is None:
        return (*conditions, after)
    return tuple(after if condition.type == type else condition for condition in conditions)
