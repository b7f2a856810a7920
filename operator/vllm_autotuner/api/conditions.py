"""Conditions: their types and reasons, and how they change.

Argo CD, Flux and `kubectl wait` read nothing else, by the rules of kstatus (I9 in docs/invariants.md). Tuning never
makes a service un-Ready: a rolled-back change is a healthy service. Types and reasons are API (alerts match them):
never renamed, never parsed from a message.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from vllm_autotuner.api.fields import Message, Timestamp
from vllm_autotuner.api.model import ApiModel


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    """The service serves what its spec asks for. Always present, also before the first work (Unknown)."""

    RECONCILING = "Reconciling"
    """The workload follows a change of the spec or heals itself. Abnormal-true. Never set by tuning."""

    STALLED = "Stalled"
    """Nothing will improve without a person. Abnormal-true."""

    METRICS_AVAILABLE = "MetricsAvailable"
    """The metrics that decisions need are fresh. False freezes tuning, not serving."""

    RECOMMENDATION_AVAILABLE = "RecommendationAvailable"
    """A change is worth making."""

    TUNING_IN_PROGRESS = "TuningInProgress"
    """A change is under way. Abnormal-true in form only: the service stays Ready."""

    LAST_CHANGE_SUCCEEDED = "LastChangeSucceeded"
    """How the last change ended; absent before the first."""

    PAUSED = "Paused"
    """A person stopped tuning. Abnormal-true."""

    CIRCUIT_OPEN = "CircuitOpen"
    """Too many rollbacks: recommendations only. Abnormal-true."""

    OWNERSHIP_CONFLICT = "OwnershipConflict"
    """Someone else writes the fields we own. Abnormal-true."""

    ADOPTED = "Adopted"
    """The Deployment of spec.targetRef is looked after. False: it cannot be, and the message says why."""

    ROLLBACK_FAILED = "RollbackFailed"
    """The last known good configuration does not serve. Abnormal-true, and the only tuning state that stalls."""


class ConditionStatus(StrEnum):
    """The three answers a condition can give."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status. The message beside it says what to do."""

    SERVING = "Serving"
    """Ready: enough replicas serve the effective configuration."""

    NOT_YET_OBSERVED = "NotYetObserved"
    """Ready=Unknown: the operator has not looked yet."""

    PROGRESSING = "Progressing"
    """Ready or Reconciling: the workload rolls out a change of the spec."""

    REPLICAS_UNAVAILABLE = "ReplicasUnavailable"
    """Ready: fewer replicas serve than asked for; Kubernetes is replacing them."""

    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """Stalled: the Deployment gave up. Remedy: `kubectl describe pod`, then edit the spec."""

    INVALID_SPEC = "InvalidSpec"
    """Stalled: the spec cannot be served as written. The message says what to write instead."""

    INVALID_STATUS = "InvalidStatus"
    """Stalled: the status was edited into something unreadable. Remedy: repair or remove the named field."""

    FORBIDDEN = "Forbidden"
    """Stalled: the operator lacks a permission. Remedy: the rule of the Helm chart that the message names."""

    TARGET_NOT_FOUND = "TargetNotFound"
    """Stalled: spec.targetRef names a Deployment that does not exist."""

    TARGET_OBSERVED = "TargetObserved"
    """Adopted: the engine's container and its flags are found; the message names them, and what cannot be seen."""

    NO_ENGINE_CONTAINER = "NoEngineContainer"
    """Stalled: no container of the target runs vLLM. Remedy: name another Deployment."""

    SEVERAL_ENGINE_CONTAINERS = "SeveralEngineContainers"
    """Stalled: more than one container of the target runs vLLM. Remedy: name the one to tune `vllm`."""

    CONFLICT = "Conflict"
    """Stalled: an older VLLMService looks after the same Deployment. Remedy: delete one of the two."""

    METRICS_FRESH = "MetricsFresh"
    """MetricsAvailable: every series that decisions need is fresh."""

    METRICS_MISSING = "MetricsMissing"
    """MetricsAvailable: Prometheus answers, but has no series of this service. Remedy: `vllm-autotuner doctor`."""

    METRICS_STALE = "MetricsStale"
    """MetricsAvailable: the newest sample is too old to decide upon."""

    PROVIDER_ERROR = "ProviderError"
    """MetricsAvailable: Prometheus itself cannot be asked."""

    RECOMMENDED = "Recommended"
    """RecommendationAvailable: a change is worth making; status.recommendation has it."""

    NOTHING_TO_IMPROVE = "NothingToImprove"
    """RecommendationAvailable: no change is predicted to help."""

    AWAITING_APPROVAL = "AwaitingApproval"
    """RecommendationAvailable: mode Approve, and nobody has yet."""

    CHANGE_ACTIVE = "ChangeActive"
    """TuningInProgress: status.activeChange tells how far. RecommendationAvailable=False: it is being tried."""

    SUCCEEDED = "Succeeded"
    """LastChangeSucceeded: measured better, and kept."""

    ROLLED_BACK = "RolledBack"
    """LastChangeSucceeded: undone; the service runs its last known good configuration."""

    REJECTED = "Rejected"
    """LastChangeSucceeded: stopped before anything was touched."""

    SUPERSEDED = "Superseded"
    """LastChangeSucceeded: the spec changed underneath."""

    ROLLBACK_FAILED = "RollbackFailed"
    """LastChangeSucceeded: it was to be undone, and the old configuration does not serve any more."""

    PAUSED_BY_SPEC = "PausedBySpec"
    """Paused: spec.paused is true."""

    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    """Paused: the pause annotation is set, or is not readable."""

    PAUSED_BY_OPERATOR = "PausedByOperator"
    """Paused: the kill switch of the operator is on; running changes are taken back."""

    REPEATED_ROLLBACKS = "RepeatedRollbacks"
    """CircuitOpen: two rollbacks in seven days. Remedy: the retry request, or 14 days."""

    FIELD_MANAGER_CONFLICT = "FieldManagerConflict"
    """OwnershipConflict: another field manager takes our fields back. The message names it."""

    FLAGS_DECLARED_ELSEWHERE = "FlagsDeclaredElsewhere"
    """OwnershipConflict: someone declares the flags of the adopted Deployment. The message has the snippet to paste."""

    REPLICAS_CONTROLLED_ELSEWHERE = "ReplicasControlledElsewhere"
    """OwnershipConflict: an autoscaler owns the replicas that spec.scaling asks us to set."""

    LAST_KNOWN_GOOD_NOT_SERVING = "LastKnownGoodNotServing"
    """RollbackFailed: the last known good configuration was restored and does not become ready."""


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
"""Conditions that are there or not: absent rather than False, so that an idle service shows nothing to worry about."""


class Condition(ApiModel):
    """One condition, as in every Kubernetes API."""

    type: str
    """What it is about."""

    status: ConditionStatus
    """True, False or Unknown."""

    reason: str = ""
    """A constant for machines."""

    message: Message = ""
    """A sentence for people that says what to do."""

    last_transition_time: Timestamp | None = None
    """When the status last flipped."""

    observed_generation: int | None = None
    """The generation of the spec that was judged."""


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
    """Return the conditions with this one set, in stable order; only a flip of the status moves its time.

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
