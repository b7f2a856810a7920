"""`VLLMService.status`: everything a decision depends on, so that a restarted operator resumes or rolls back from it.

Written by the operator, but a person may have edited it and a newer operator may have extended it: unknown and missing
fields are tolerated, and what cannot be read raises one error. It never becomes an empty status, because that would
forget a change that is under way. Lists and texts are cut here, so that no write is refused for its size.
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
    MEASUREMENTS_LENGTH,
    ActiveChange,
    Analysis,
    ChangeState,
    ChangeTarget,
    ConfigRef,
    Measurement,
    TrialRef,
)
from vllm_autotuner.api.conditions import Condition
from vllm_autotuner.api.errors import first_errors
from vllm_autotuner.api.fields import Message, Note, Timestamp, most_important, newest
from vllm_autotuner.api.grounds import Confidence, Evidence, Grounds, Prediction
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel
from vllm_autotuner.api.scale_ins import SCALE_INS_LENGTH, ScaleInTried
from vllm_autotuner.api.track_record import Came, ComparedBy, Foretold

__all__ = [
    "EVIDENCE_LENGTH",
    "FAILURE_MEMORY_LENGTH",
    "HISTORY_LENGTH",
    "MEASUREMENTS_LENGTH",
    "RECORD_LENGTH",
    "ActiveChange",
    "Analysis",
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
"""Changes kept in status.history: a bad fortnight at the default budget's usual pace. Our choice, for size."""

FAILURE_MEMORY_LENGTH: Final = 20
"""Candidates remembered as failed. Forgetting one costs a repeated rollback; our choice, for size."""

RECORD_LENGTH: Final = 10
"""Recommendations whose predictions are followed up. Our choice, for size."""

EVIDENCE_LENGTH: Final = 16

REQUESTS_LENGTH: Final = 4
"""More than there are kinds of requests."""

UNTOLD_LENGTH: Final = 10
"""Events kept while they cannot be posted: a change has no more than eight. Our choice, for size."""


class StatusUnreadable(ValueError):
    """The status holds something that this operator cannot read; the message names the fields."""


class Source(StrEnum):
    """Where the effective configuration comes from."""

    SPEC = "Spec"
    TUNED = "Tuned"
    OBSERVED = "Observed"
    """As its owner wrote it into the Deployment that spec.targetRef names."""


class Effective(EngineKnobs):
    """What the workload is asked to run."""

    replicas: int | None = None
    """Replicas asked for; absent when another writer owns them."""

    replicas_reason: Message = ""
    """Why they last became more or fewer; empty where the spec alone says so."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    since: Timestamp | None = None
    """When it became effective."""

    source: Source | None = None
    """Spec, Tuned by the operator, or Observed in the Deployment of spec.targetRef."""

    basis: EngineKnobs | None = None
    """The values of the spec that tuned values stand on: an edit of the spec makes them void."""


class Contribution(ApiModel):
    """Another bottleneck that was seen beside the main one."""

    class_: Annotated[str, Field(alias="class")]
    """Its diagnosis class."""

    message: Note = ""
    """A sentence for people."""


class DiagnosisStatus(ApiModel):
    """The named bottleneck."""

    class_: Annotated[str, Field(alias="class")]
    """The diagnosis class; a constant."""

    confidence: Confidence | None = None
    """How sure."""

    since: Timestamp | None = None
    """Since when this class."""

    message: Message = ""
    """A sentence for people."""

    evidence: Annotated[tuple[Evidence, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """The facts, most important first."""

    contributing: Annotated[tuple[Contribution, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """Other bottlenecks, most important first."""


class Recommendation(ApiModel):
    """One change worth making."""

    id: str
    """What a person approves or rejects; a new value means a new question."""

    knob: str
    """Which knob."""

    current: str | None = None
    """Its value now; absent when it is the engine's default."""

    recommended: str
    """Its recommended value."""

    limited_by: str | None = None
    """What kept the value from going further."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(EVIDENCE_LENGTH)] = ()
    """The expected effect."""

    reason: Message = ""
    """Why, for people."""

    confidence: Confidence | None = None
    """How sure."""

    held_by: str | None = None
    """The constant of what keeps it from being applied; absent when nothing does. The reason says it in words."""

    first_seen: Timestamp | None = None
    """Since when this is recommended."""


class Summary(ApiModel):
    """Short texts for `kubectl get`; rounded, so that they change seldom."""

    effective: str | None = None
    """Such as seqs=64 len=16k tp=2."""

    ttft: str | None = None
    """Measured against its target."""

    tpot: str | None = None
    """Measured against its target."""

    kv_usage: str | None = None
    """Usage of the KV cache."""

    change: str | None = None
    """The active change and its state."""


class UntoldEvent(ApiModel):
    """An Event that the API server did not take yet."""

    reason: str
    """What happened, as a constant."""

    action: str
    """What was done."""

    transition: str
    """Which occurrence it tells of: each is told once."""

    note: Note = ""
    """What happened, for people."""

    warning: bool = False
    """Whether it is a warning."""


class VLLMServiceStatus(ApiModel):
    """What the operator knows and does."""

    observed_generation: int | None = None
    """Generation of the spec that was last acted upon."""

    effective: Effective | None = None
    """What the workload is asked to run."""

    diagnosis: DiagnosisStatus | None = None
    """The named bottleneck."""

    recommendation: Recommendation | None = None
    """A change worth making."""

    active_change: ActiveChange | None = None
    """The change under way."""

    last_known_good: LastKnownGood | None = None
    """Where a rollback leads."""

    rollback_failed: RollbackFailure | None = None
    """Set while a failed rollback waits for a person."""

    failure_memory: Annotated[tuple[FailedCandidate, ...], *newest(FAILURE_MEMORY_LENGTH)] = ()
    """What did not help, newest last."""

    scale_ins: Annotated[tuple[ScaleInTried, ...], *newest(SCALE_INS_LENGTH)] = ()
    """Fewer replicas than before, and whether they did, newest last."""

    circuit: Circuit | None = None
    """Stops changes after repeated rollbacks."""

    budget: BudgetStatus | None = None
    """The day's budget."""

    cooldown_until: Timestamp | None = None
    """No change before this."""

    queued_since: Timestamp | None = None
    """Since when a change waits only for the limits of the whole cluster: its place in the queue."""

    contest: Contest | None = None
    """Somebody else writes the workload."""

    handled_requests: Annotated[tuple[HandledRequest, ...], *newest(REQUESTS_LENGTH)] = ()
    """The last request of each kind that a person made and that was acted upon."""

    history: Annotated[tuple[HistoryEntry, ...], *newest(HISTORY_LENGTH)] = ()
    """Finished changes, newest last."""

    untold: Annotated[tuple[UntoldEvent, ...], *newest(UNTOLD_LENGTH)] = ()
    """Events that could not be posted; whoever leads tries again until they are."""

    track_record: Annotated[tuple[Foretold, ...], *newest(RECORD_LENGTH)] = ()
    """What recommendations that the operator did not carry out foretold, and what came, newest last."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            json_schema_extra={
                "maxItems": 32,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            }
        ),
    ] = ()
    """Ready and the others, by type."""

    replicas: int | None = None
    """Pods of the workload (scale subresource)."""

    ready_replicas: int | None = None
    """Pods that serve."""

    selector: str | None = None
    """Label selector of the pods, for autoscalers (scale subresource)."""

    summary: Summary | None = None
    """Short texts for `kubectl get`."""

    measured: Measurement | None = None
    """The latencies that the short texts tell, and when they were measured. Written with whatever else is written, and
    by itself once they have moved clearly for minutes."""


def parse_status(raw: Mapping[str, Any] | None) -> VLLMServiceStatus:
    """Read a status; None and an empty one are a fresh object's. Raises StatusUnreadable."""
    try:
        return VLLMServiceStatus.model_validate(raw or {})
    except ValidationError as error:
        raise StatusUnreadable(first_errors(error, "status")) from error
