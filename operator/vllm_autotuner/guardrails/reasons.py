"""The reasons of the guardrails, `HoldReason`. The values are API: alerts match them, they are never renamed."""

from enum import StrEnum
from typing import Final

__all__ = ["PASSING", "HoldReason"]


class HoldReason(StrEnum):
    """One constant for each guardrail of the chain. The message beside it has the details and the remedy."""

    MODE = "ModeDoesNotApply"
    """Mode Off or Recommend, or mode Approve without approval. Remedy: spec.tuning.mode Automatic, or approve."""
    CLUSTER_CEILING = "ClusterCeiling"
    """The administrator's limits allow less than spec.tuning.mode, or cannot be read. Remedy: see the message."""
    PAUSED = "Paused"
    """Tuning is paused. Remedy: set spec.paused to false, or remove the pause annotation."""
    RECOMMEND_ONLY = "RecommendOnly"
    """The knob has no bounds, or the operator does not own the replicas. Remedy: set the bounds in the message."""
    OWNED_ELSEWHERE = "OwnedElsewhere"
    """The flags of an adopted Deployment have another owner, or cannot be written. Remedy: see the message."""
    OUTSIDE_WINDOW = "OutsideWindow"
    """No window of spec.tuning.windows is open or readable. The message says when the next one opens."""
    METRICS_MISSING = "MetricsMissing"
    """Fresh metrics are missing. Remedy: see condition MetricsAvailable."""
    NOT_MEASURED = "NotMeasured"
    """The last window lacks a latency or the throughput, so there is no baseline. Remedy: more requests."""
    TOO_FEW_REQUESTS = "TooFewRequests"
    """The request rate is too low for a verdict. Remedy: wait for more load, or change the value in the spec."""
    LOW_CONFIDENCE = "LowConfidence"
    """The diagnosis or its prediction has confidence Low. Remedy: wait, or change the value in the spec."""
    CHANGE_ACTIVE = "ChangeActive"
    """Another change of the service is in progress."""
    COOLDOWN = "Cooldown"
    """The last change is too recent. Remedy: wait, or lower spec.tuning.cooldown."""
    BUDGET = "BudgetUsed"
    """The change budget of the day is used up. Remedy: wait, or raise spec.tuning.budget.changesPerDay."""
    CIRCUIT_OPEN = "CircuitOpen"
    """Two harmful rollbacks in a week: recommendations only, for two weeks or until a user requests a retry."""
    OPERATOR_UNWELL = "OperatorUnwell"
    """The metrics source or the API server failed recently, or ticks are late. Clears one window after the cause."""
    NOT_SETTLED = "WorkloadNotSettled"
    """The Deployment is rolling out, or a replica is not ready. A change now could not be judged."""
    ENDS_BY_ITSELF = "EndsByItself"
    """The backlog will drain before a change could be measured. Clears by itself."""
    OUT_OF_BOUNDS = "OutOfBounds"
    """The value is outside the user's bounds: a defect of the planner, stopped here."""
    RESTING = "RolledBackBefore"
    """The value was rolled back or declined in this environment. Remedy: wait, request a retry, or edit the spec."""
    INFEASIBLE = "Infeasible"
    """A configuration with as much memory ran out of it before. Remedy: another GPU, model, fp8 KV or a higher TP."""
    CONTESTED = "OwnershipConflict"
    """Another field manager overwrites the workload. Remedy: condition OwnershipConflict names it."""
    NO_FREE_GPUS = "NoFreeGPUs"
    """No node has room for one more pod, or a ResourceQuota forbids it. Remedy: the message says what is missing."""
    QUEUED = "WaitingForItsTurn"
    """The limit of concurrent changes in the cluster is reached. Remedy: wait, or raise `--max-concurrent-changes`."""
    STARTING = "OperatorStarting"
    """The operator has not observed a full window yet."""


PASSING: Final = frozenset(
    {
        HoldReason.STARTING,
        HoldReason.NOT_SETTLED,
        HoldReason.NOT_MEASURED,
        HoldReason.OPERATOR_UNWELL,
        HoldReason.ENDS_BY_ITSELF,
    }
)
"""Reasons that clear by themselves, usually within a minute or two on a working service."""
