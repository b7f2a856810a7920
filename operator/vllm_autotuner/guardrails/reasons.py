"""Why a change may not happen now. The values are API: alerts match them, they are never renamed or parsed."""

from enum import StrEnum
from typing import Final

__all__ = ["PASSING", "HoldReason"]


class HoldReason(StrEnum):
    """One constant for each link of the chain. The message beside it says what to do."""

    MODE = "ModeDoesNotApply"
    """Mode Off, Recommend or Approve. Remedy: spec.tuning.mode Automatic."""
    CLUSTER_CEILING = "ClusterCeiling"
    """The administrator allows less than spec.tuning.mode asks for, or that cannot be read. Remedy: the message."""
    PAUSED = "Paused"
    """A person said stop. Remedy: spec.paused false, or remove the pause annotation."""
    RECOMMEND_ONLY = "RecommendOnly"
    """The knob has no bounds, or this service's replicas are not ours. Remedy: set the bounds named in the message."""
    OWNED_ELSEWHERE = "OwnedElsewhere"
    """The flags of an adopted Deployment are declared by somebody else, or cannot be written. Remedy: the message."""
    OUTSIDE_WINDOW = "OutsideWindow"
    """No window of spec.tuning.windows is open, or none can be read. The message says when the next one opens."""
    METRICS_MISSING = "MetricsMissing"
    """Fresh metrics are missing: no evidence, no change. Remedy: condition MetricsAvailable."""
    NOT_MEASURED = "NotMeasured"
    """The last window lacks a latency or the throughput: nothing to compare with afterwards. Remedy: more requests."""
    TOO_FEW_REQUESTS = "TooFewRequests"
    """Fewer requests come than a verdict needs. Remedy: wait for more, or change it by hand in the spec."""
    LOW_CONFIDENCE = "LowConfidence"
    """The diagnosis or its prediction rests on too little. Remedy: wait, or change it by hand."""
    CHANGE_ACTIVE = "ChangeActive"
    """One change at a time."""
    COOLDOWN = "Cooldown"
    """The last change is too recent. Remedy: spec.tuning.cooldown."""
    BUDGET = "BudgetUsed"
    """Today's changes are used up. Remedy: spec.tuning.budget.changesPerDay."""
    CIRCUIT_OPEN = "CircuitOpen"
    """Two rollbacks in a week: recommendations only, until a person asks to retry or two weeks have passed."""
    OPERATOR_UNWELL = "OperatorUnwell"
    """The operator's metrics source or API server failed lately, or it is late. Passes a window after the cause."""
    NOT_SETTLED = "WorkloadNotSettled"
    """The Deployment still rolls out, or a replica is not ready. A change now could not be judged."""
    ENDS_BY_ITSELF = "EndsByItself"
    """What has piled up is worked off before a trial would be measured: it would find nothing to cure. Passes."""
    OUT_OF_BOUNDS = "OutOfBounds"
    """The value lies outside the user's bounds: a defect of the planner, stopped here."""
    RESTING = "RolledBackBefore"
    """The value was taken back or declined in this environment. Remedy: wait, ask to retry, or set it in the spec."""
    INFEASIBLE = "Infeasible"
    """As much memory was asked for before, and was not there. Remedy: another GPU, model, fp8 KV or a higher TP."""
    CONTESTED = "OwnershipConflict"
    """Somebody else writes the workload. Remedy: condition OwnershipConflict names who."""
    NO_FREE_GPUS = "NoFreeGPUs"
    """No node takes one more pod, or a ResourceQuota forbids it. Remedy: the message says what is lacking."""
    QUEUED = "WaitingForItsTurn"
    """As many changes run in the cluster as may at once. Remedy: wait, or `--max-concurrent-changes`."""
    STARTING = "OperatorStarting"
    """The operator has not watched for a whole window yet."""


PASSING: Final = frozenset(
    {
        HoldReason.STARTING,
        HoldReason.NOT_SETTLED,
        HoldReason.NOT_MEASURED,
        HoldReason.OPERATOR_UNWELL,
        HoldReason.ENDS_BY_ITSELF,
    }
)
"""Reasons that pass by themselves, usually within a minute or two of a working service: waiting for them is cheap."""
