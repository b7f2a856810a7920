"""`VLLMService.status`: everything a decision depends on, so that a restarted operator resumes or rolls back from it.

Written by the operator, but a person may have edited it and a newer operator may have extended it: unknown and missing
fields are tolerated, and what cannot be read raises one error. It never becomes an empty status, because that would
forget a change that is under way. Lists and texts are cut here, so that no write is refused for its size.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from vllm_autotuner.api.conditions import Condition
from vllm_autotuner.api.errors import first_errors
from vllm_autotuner.api.fields import Message, Note, Number, Timestamp
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel

HISTORY_LENGTH: Final = 10
"""Changes kept in status.history: a bad fortnight at the default budget's usual pace. Our choice, for size."""

FAILURE_MEMORY_LENGTH: Final = 20
"""Candidates remembered as failed. Forgetting one costs a repeated rollback; our choice, for size."""

MEASUREMENTS_LENGTH: Final = 10
EVIDENCE_LENGTH: Final = 16


class StatusUnreadable(ValueError):
    """The status holds something that this operator cannot read; the message names the fields."""


def _newest(length: int) -> tuple[AfterValidator, Any]:
    """Metadata of a list that is appended to and keeps its newest (last) `length` items."""

    def cut(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return items[-length:]

    return AfterValidator(cut), Field(json_schema_extra={"maxItems": length})


def _first(length: int) -> tuple[AfterValidator, Any]:
    """Metadata of a list in order of importance that keeps its first `length` items."""

    def cut(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return items[:length]

    return AfterValidator(cut), Field(json_schema_extra={"maxItems": length})


class Confidence(StrEnum):
    """How sure a statement is."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"


class Source(StrEnum):
    """Where the effective configuration comes from."""

    SPEC = "Spec"
    TUNED = "Tuned"


class ChangeTarget(StrEnum):
    """What a change is meant to improve."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    THROUGHPUT = "Throughput"


class ChangeState(StrEnum):
    """Where a change stands."""

    PROPOSED = "Proposed"
    """Decided; nothing was touched."""

    PROVISIONING = "Provisioning"
    """Pods with the new configuration are starting."""

    VERIFYING = "Verifying"
    """Does the engine run what was asked for?"""

    WARMING_UP = "WarmingUp"
    """It serves; no judgement yet."""

    ANALYZING = "Analyzing"
    """It is measured."""

    HELD = "Held"
    """Data is missing or a person paused; the interrupted state keeps its remaining time."""

    ROLLING_BACK = "RollingBack"
    """The last known good configuration is being restored."""


class Outcome(StrEnum):
    """How a change ended."""

    SUCCEEDED = "Succeeded"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"
    REJECTED = "Rejected"


class CircuitState(StrEnum):
    """Whether changes are allowed after rollbacks."""

    CLOSED = "Closed"
    OPEN = "Open"


class Effective(EngineKnobs):
    """What the workload is asked to run."""

    replicas: int | None = None
    """Replicas asked for; absent when another writer owns them."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    since: Timestamp | None = None
    """When it became effective."""

    source: Source | None = None
    """Spec, or Tuned by the operator."""

    basis: EngineKnobs | None = None
    """The values of the spec that tuned values stand on: an edit of the spec makes them void."""


class Evidence(ApiModel):
    """One measured fact behind a diagnosis."""

    name: str
    """What was measured."""

    value: Number = None
    """The measured value; absent when nobody knows."""

    unit: str | None = None
    """Unit of value and threshold."""

    threshold: Number = None
    """What it was compared with."""

    window: str | None = None
    """Over which time."""

    note: Note | None = None
    """What it means."""


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

    evidence: Annotated[tuple[Evidence, ...], *_first(EVIDENCE_LENGTH)] = ()
    """The facts, most important first."""

    contributing: Annotated[tuple[Contribution, ...], *_first(EVIDENCE_LENGTH)] = ()
    """Other bottlenecks, most important first."""


class Prediction(ApiModel):
    """What a recommendation is expected to do to one measure."""

    name: str
    """The measure."""

    unit: str | None = None
    """Its unit."""

    current: Number = None
    """Now."""

    predicted: Number = None
    """After the change."""


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

    predicted: Annotated[tuple[Prediction, ...], *_first(EVIDENCE_LENGTH)] = ()
    """The expected effect."""

    reason: Message = ""
    """Why, for people."""

    confidence: Confidence | None = None
    """How sure."""

    first_seen: Timestamp | None = None
    """Since when this is recommended."""


class Measurement(ApiModel):
    """Service levels and load over one window; a number is absent when nobody knows."""

    at: Timestamp
    """End of the window."""

    ttft_seconds: Number = None
    """Time to first token at the objective's quantile."""

    tpot_seconds: Number = None
    """Time per output token at the objective's quantile."""

    requests_per_second: Number = None
    """Finished requests."""

    tokens_per_second: Number = None
    """Generated tokens."""

    running: Number = None
    """Mean of running requests."""

    waiting: Number = None
    """Mean of waiting requests."""


class ConfigRef(EngineKnobs):
    """A configuration by its values and its hash."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""


class Analysis(ApiModel):
    """The measurements of a change so far."""

    started_at: Timestamp | None = None
    """When judgement began."""

    windows_good: int = 0
    """Windows that met every objective."""

    windows_bad: int = 0
    """Windows that violated one."""

    consecutive_bad: int = 0
    """Bad windows in a row, now."""

    windows_inconclusive: int = 0
    """Windows that say neither."""

    no_data: int = 0
    """Windows without data; evidence for nothing."""

    last: Annotated[tuple[Measurement, ...], *_newest(MEASUREMENTS_LENGTH)] = ()
    """The newest measurements, newest last."""


class ActiveChange(ApiModel):
    """The one change under way, with all that is needed to go on or to go back after a restart."""

    id: str
    """Deterministic: the same decision has the same id."""

    epoch: int = 0
    """Lease epoch of the operator that owns the change (fencing token)."""

    generation: int
    """Generation of the spec it was decided on; another one supersedes it."""

    knob: str
    """Which knob."""

    from_value: str | None = None
    """Its value before; absent when it was the engine's default."""

    to_value: str
    """Its new value."""

    from_: Annotated[ConfigRef, Field(alias="from")]
    """The configuration before, to which a rollback returns."""

    to: ConfigRef
    """The configuration under test."""

    reason: Message = ""
    """Why it is made, for people."""

    target: ChangeTarget | None = None
    """What it is meant to improve."""

    state: ChangeState
    """Where it stands."""

    state_reason: Message = ""
    """Why it stands there."""

    harmful: bool | None = None
    """True while it is rolled back because the candidate itself did harm; then it is remembered against it."""

    state_since: Timestamp | None = None
    """Since when."""

    deadline: Timestamp | None = None
    """When the state ends at the latest."""

    resume_state: ChangeState | None = None
    """The state that Held interrupted."""

    remaining_seconds: Number = None
    """Time that was left to the interrupted state."""

    started_at: Timestamp | None = None
    """When the change began."""

    baseline: Measurement | None = None
    """Measured before the change."""

    analysis: Analysis | None = None
    """Measured since."""


class LastKnownGood(EngineKnobs):
    """The last configuration that served well for long enough."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    verified_at: Timestamp | None = None
    """When it was last seen serving well."""


class FailedCandidate(ApiModel):
    """A value that did not help, and until when it is not tried again."""

    candidate: str
    """Such as maxNumSeqs=64."""

    knob: str
    """Which knob."""

    value: str
    """Which value."""

    environment: str = ""
    """Fingerprint of what it failed in (image, model, device): elsewhere it may be tried."""

    failures: int = 1
    """How often."""

    last_failure_time: Timestamp | None = None
    """When last."""

    retry_after: Timestamp | None = None
    """Not before this."""

    reason: Note = ""
    """What went wrong."""


class Circuit(ApiModel):
    """Stops changes after repeated rollbacks."""

    state: CircuitState = CircuitState.CLOSED
    """Open: recommendations only."""

    opened_at: Timestamp | None = None
    """When it opened."""

    until: Timestamp | None = None
    """When it closes by itself."""

    rollbacks: int = 0
    """Rollbacks counted towards opening it."""

    reason: Message = ""
    """Why it opened."""


class BudgetStatus(ApiModel):
    """How much of the day's budget is used."""

    changes_today: int = 0
    """Changes in the current window."""

    window_start: Timestamp | None = None
    """When the window began."""


class HandledRequest(ApiModel):
    """The last request of a person that was acted upon; each nonce acts once."""

    kind: str
    """approve, reject, rollback or retry."""

    nonce: str
    """The value of the annotation."""

    at: Timestamp | None = None
    """When."""


class HistoryEntry(ApiModel):
    """A finished change."""

    id: str
    """The change's id."""

    knob: str
    """Which knob."""

    from_value: str | None = None
    """Its value before."""

    to_value: str | None = None
    """The value that was tried."""

    outcome: Outcome
    """How it ended."""

    reason: Note = ""
    """Why it ended so."""

    started_at: Timestamp | None = None
    """When it began."""

    finished_at: Timestamp | None = None
    """When it ended."""

    before: Measurement | None = None
    """Measured before."""

    after: Measurement | None = None
    """Measured after."""


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

    failure_memory: Annotated[tuple[FailedCandidate, ...], *_newest(FAILURE_MEMORY_LENGTH)] = ()
    """What did not help, newest last."""

    circuit: Circuit | None = None
    """Stops changes after repeated rollbacks."""

    budget: BudgetStatus | None = None
    """The day's budget."""

    cooldown_until: Timestamp | None = None
    """No change before this."""

    last_handled_request: HandledRequest | None = None
    """The last request of a person that was acted upon."""

    history: Annotated[tuple[HistoryEntry, ...], *_newest(HISTORY_LENGTH)] = ()
    """Finished changes, newest last."""

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


def parse_status(raw: Mapping[str, Any] | None) -> VLLMServiceStatus:
    """Read a status; None and an empty one are a fresh object's. Raises StatusUnreadable."""
    try:
        return VLLMServiceStatus.model_validate(raw or {})
    except ValidationError as error:
        raise StatusUnreadable(first_errors(error, "status")) from error
