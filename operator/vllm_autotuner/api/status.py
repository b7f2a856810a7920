"""The model of `VLLMService.status`: all persisted state, from which a restarted operator resumes or rolls back.

Written by the operator, but users may edit it and a newer operator may extend it: unknown and missing fields are
tolerated, and an invalid status raises an error. It is never treated as empty, because that would lose the active
change. Lists and texts are cut to size here, so that no write is rejected for its size.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from vllm_autotuner.api.change_history import (
    BudgetStatus,
    Circuit,
    CircuitState,
    Contest,
    FailedCandidate,
    HandledRequest,
    HistoryEntry,
    LastKnownGood,
    Outcome,
    RollbackFailure,
)
from vllm_autotuner.api.change_records import (
    ANALYSIS_LENGTH,
    BAKE_LENGTH,
    MEASUREMENTS_LENGTH,
    ActiveChange,
    Analysis,
    Bake,
    ChangeState,
    ChangeTarget,
    ConfigRef,
    Measurement,
    TrialRef,
)
from vllm_autotuner.api.conditions import Condition
from vllm_autotuner.api.errors import first_errors
from vllm_autotuner.api.fields import Message, Note, Timestamp, most_important, newest
from vllm_autotuner.api.gpu_steps import GpuSteps
from vllm_autotuner.api.grounds import Confidence, Evidence, Grounds, Prediction
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel
from vllm_autotuner.api.scale_ins import SCALE_INS_LENGTH, ScaleInTried
from vllm_autotuner.api.track_record import Came, ComparedBy, Foretold
from vllm_autotuner.api.wording import told_value

__all__ = [
    "ANALYSIS_LENGTH",
    "BAKE_LENGTH",
    "EVIDENCE_LENGTH",
    "FAILURE_MEMORY_LENGTH",
    "HISTORY_LENGTH",
    "MEASUREMENTS_LENGTH",
    "RECORD_LENGTH",
    "ActiveChange",
    "Analysis",
    "Bake",
    "BudgetStatus",
    "Came",
    "ChangeState",
    "ChangeTarget",
    "Circuit",
    "CircuitState",
    "ComparedBy",
    "Confidence",
    "ConfigRef",
    "Contest",
    "Contribution",
    "DiagnosisStatus",
    "Effective",
    "Evidence",
    "FailedCandidate",
    "Foretold",
    "Grounds",
    "HandledRequest",
    "HistoryEntry",
    "LastKnownGood",
    "Measurement",
    "Outcome",
    "Prediction",
    "Recommendation",
    "RollbackFailure",
    "ScaleInTried",
    "Source",
    "StatusUnreadable",
    "Summary",
    "TrialRef",
    "UntoldEvent",
    "VLLMServiceStatus",
    "parse_status",
]

HISTORY_LENGTH: Final = 10
"""Changes kept in status.history: about two weeks at the usual pace of the default budget. Our choice, for size."""

FAILURE_MEMORY_LENGTH: Final = 20
"""Entries of the failure memory. Losing one may repeat a rollback; our choice, for size."""

RECORD_LENGTH: Final = 10
"""Recommendations whose predictions are checked. Our choice, for size."""

EVIDENCE_LENGTH: Final = 16

REQUESTS_LENGTH: Final = 4
"""More than the number of request kinds."""

CONDITIONS_LENGTH: Final = 32
"""More than twice the operator's own: room for those of a newer version."""

UNTOLD_LENGTH: Final = 10
"""Events kept until they can be posted: a change has at most eight. Our choice, for size."""


class StatusUnreadable(ValueError):
    """The status is invalid; the message names the fields."""


class Source(StrEnum):
    """The source of the effective configuration."""

    SPEC = "Spec"
    TUNED = "Tuned"
    OBSERVED = "Observed"
    """Read from the Deployment of spec.targetRef, as its owner wrote it."""


class Effective(EngineKnobs):
    """The configuration that the workload should run."""

    replicas: int | None = None
    """Desired replicas; absent if an autoscaler or another controller owns them."""

    replicas_reason: Message = ""
    """Reason of the last scale-out or scale-in; empty if the number comes from the spec."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    since: Timestamp | None = None
    """When it became effective."""

    source: Source | None = None
    """Spec, Tuned by the operator, or Observed in the Deployment of spec.targetRef."""

    basis: EngineKnobs | None = None
    """The spec values that tuned values are based on: an edit of one in the spec discards the tuned values."""


class Contribution(ApiModel):
    """A contributing bottleneck besides the main one."""

    class_: Annotated[str, Field(alias="class")]
    """Its diagnosis class."""

    message: Note = ""
    """Human-readable description."""


class DiagnosisStatus(ApiModel):
    """The diagnosed bottleneck."""

    class_: Annotated[str, Field(alias="class")]
    """The diagnosis class; a constant."""

    confidence: Confidence | None = None
    """Confidence of the diagnosis."""

    since: Timestamp | None = None
    """When this class was first diagnosed."""

    message: Message = ""
    """Human-readable description."""

    evidence: Annotated[tuple[Evidence, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """The evidence, most important first."""

    contributing: Annotated[tuple[Contribution, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """Other bottlenecks, most important first."""


class Recommendation(ApiModel):
    """A recommended change of one knob."""

    id: str
    """The id to approve or reject; a new recommendation has a new id."""

    knob: str
    """The knob."""

    current: str | None = None
    """The current value; absent if it is the engine's default."""

    recommended: str
    """The recommended value."""

    max_model_len: int | None = None
    """max-model-len that goes with it, without which the engine would not start; absent if it stays."""

    max_num_seqs: int | None = None
    """max-num-seqs that goes with it: the memory of more slots is missed on fewer GPUs; absent if it stays."""

    limited_by: str | None = None
    """What limits the recommended value."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """The predicted effect."""

    reason: Message = ""
    """Why it is recommended, in words."""

    confidence: Confidence | None = None
    """Confidence of the prediction."""

    held_by: str | None = None
    """Constant of the guardrail that keeps it from being applied; absent if none does. The reason has the details."""

    first_seen: Timestamp | None = None
    """When this was first recommended."""

    @property
    def told(self) -> str:
        """What is recommended, in words."""
        return told_value(
            self.knob,
            self.current,
            self.recommended,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
        )


class Summary(ApiModel):
    """Short texts for `kubectl get`; rounded, so that they rarely change."""

    effective: str | None = None
    """The effective configuration, such as seqs=64 len=16k tp=2."""

    ttft: str | None = None
    """Measured TTFT and its target."""

    tpot: str | None = None
    """Measured TPOT and its target."""

    kv_usage: str | None = None
    """Usage of the KV cache."""

    change: str | None = None
    """The active change and its state."""


class UntoldEvent(ApiModel):
    """An Event that is not posted yet."""

    reason: str
    """What happened, as a constant."""

    action: str
    """The action taken."""

    transition: str
    """Identifies the occurrence, so that each is posted once."""

    note: Note = ""
    """Human-readable description."""

    warning: bool = False
    """Whether it is a warning."""


class VLLMServiceStatus(ApiModel):
    """The observed state of the service and the operator's decisions."""

    observed_generation: int | None = None
    """Generation of the spec that was last reconciled."""

    observed_spec_hash: str | None = None
    """Hash of that spec without replicas: a generation that only an autoscaler of the VLLMService raised is no edit."""

    effective: Effective | None = None
    """The configuration that the workload should run."""

    diagnosis: DiagnosisStatus | None = None
    """The diagnosed bottleneck."""

    recommendation: Recommendation | None = None
    """The recommended change."""

    active_change: ActiveChange | None = None
    """The active change."""

    last_known_good: LastKnownGood | None = None
    """The last configuration that was verified to serve well."""

    rollback_failed: RollbackFailure | None = None
    """Set after a failed rollback until it is resolved."""

    failure_memory: Annotated[tuple[FailedCandidate, ...], *newest(FAILURE_MEMORY_LENGTH)] = ()
    """Values that were rolled back or declined, newest last."""

    scale_ins: Annotated[tuple[ScaleInTried, ...], *newest(SCALE_INS_LENGTH)] = ()
    """Past scale-ins, and whether the remaining replicas were enough, newest last."""

    circuit: Circuit | None = None
    """The circuit breaker, which stops changes after repeated harmful rollbacks."""

    budget: BudgetStatus | None = None
    """Usage of the daily change budget."""

    cooldown_until: Timestamp | None = None
    """End of the cooldown; before it no change begins, but for one that goes on from one that was kept where the spec
    sets no cooldown."""

    queued_since: Timestamp | None = None
    """Since when a change waits for the cluster-wide concurrency limits: its place in the queue."""

    contest: Contest | None = None
    """Ownership conflict: another field manager overwrites the workload."""

    handled_requests: Annotated[tuple[HandledRequest, ...], *newest(REQUESTS_LENGTH)] = ()
    """The last handled user request of each kind."""

    history: Annotated[tuple[HistoryEntry, ...], *newest(HISTORY_LENGTH)] = ()
    """Finished changes, newest last."""

    untold: Annotated[tuple[UntoldEvent, ...], *newest(UNTOLD_LENGTH)] = ()
    """Events that could not be posted yet; retried until they are."""

    track_record: Annotated[tuple[Foretold, ...], *newest(RECORD_LENGTH)] = ()
    """Predictions of recommendations that the operator did not apply, with later measurements, newest last."""

    gpu_steps: GpuSteps = ()
    """GPUs that the service asked for over time, oldest first: what savings are computed from."""

    gpu_product: str | None = None
    """The GPU, as spec.accelerator, the Deployment's nodeSelector or the nodes of the pods name it: for its price."""

    conditions: Annotated[
        tuple[Condition, ...],
        *newest(CONDITIONS_LENGTH),
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """The conditions by type."""

    replicas: int | None = None
    """Number of pods (scale subresource)."""

    ready_replicas: int | None = None
    """Number of ready pods."""

    selector: str | None = None
    """Label selector of the pods, for autoscalers (scale subresource)."""

    summary: Summary | None = None
    """Short texts for `kubectl get`."""

    measured: Measurement | None = None
    """The latencies of the summary, and when they were measured. Updated together with other fields, and on their own
    after a clear change over minutes."""


def parse_status(raw: Mapping[str, Any] | None) -> VLLMServiceStatus:
    """Parse a status; None or an empty one means a new object. Raises StatusUnreadable."""
    try:
        return VLLMServiceStatus.model_validate(raw or {})
    except ValidationError as error:
        raise StatusUnreadable(first_errors(error, "status")) from error
