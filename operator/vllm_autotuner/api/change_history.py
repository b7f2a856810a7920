"""Status models of finished changes: history, failure memory, circuit breaker, budget, ownership conflict.

Separate from the rest of the status, because losing these records would repeat a mistake. Written by the operator, read
again after a restart, and sometimes edited by users.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.change_records import Measurement
from vllm_autotuner.api.fields import Message, Note, Timestamp, newest
from vllm_autotuner.api.grounds import Grounds
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel

RESTORES_LENGTH: Final = 10
GIVEN_UP_LENGTH: Final = 8
"""More than the number of fields that can be given up."""


class Outcome(StrEnum):
    """How a change ended."""

    SUCCEEDED = "Succeeded"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"
    REJECTED = "Rejected"
    ROLLBACK_FAILED = "RollbackFailed"


class CircuitState(StrEnum):
    """The state of the circuit breaker."""

    CLOSED = "Closed"
    OPEN = "Open"


class LastKnownGood(EngineKnobs):
    """The last configuration that served well for long enough."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    verified_at: Timestamp | None = None
    """When it was last verified to serve well."""


class RollbackFailure(ApiModel):
    """A failed rollback: the old configuration does not serve again and a person must intervene."""

    change_id: str
    """The change whose rollback failed."""

    generation: int
    """Generation of the spec at that time; an edit of the spec resolves the failure."""

    message: Message = ""
    """Which configuration serves instead, and why the old one does not."""

    at: Timestamp | None = None
    """When the rollback failed."""


class FailedCandidate(ApiModel):
    """A value that was rolled back or declined, and until when it is not retried."""

    candidate: str
    """Knob and value, such as maxNumSeqs=64."""

    knob: str
    """The knob."""

    value: str
    """The value."""

    environment: str = ""
    """Fingerprint of the environment (image, model, device) in which it failed; in another one it may be tried."""

    infeasible: EngineKnobs | None = None
    """The whole configuration, if it ran out of memory. Configurations that need at least as much are never tried."""

    declined_at: Timestamp | None = None
    """When a user rejected it or rolled it back. Not retried until a user requests it, regardless of retryAfter."""

    failures: int = 1
    """Number of failures; 0 if a user declined it and it never failed."""

    last_failure_time: Timestamp | None = None
    """Time of the last failure."""

    retry_after: Timestamp | None = None
    """Earliest time of a retry."""

    reason: Note = ""
    """Why it failed."""


class Circuit(ApiModel):
    """The circuit breaker: stops changes after repeated harmful rollbacks."""

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
    """Usage of the daily change budget."""

    changes_today: int = 0
    """Changes in the current window."""

    window_start: Timestamp | None = None
    """When the window began."""


class Contest(ApiModel):
    """An ownership conflict: another field manager overwrites fields of the workload that the operator owns."""

    manager: str
    """The other field manager."""

    fields: Note = ""
    """The fields that it overwrites."""

    generation: int
    """Generation of the spec; an edit of the spec ends the conflict."""

    restored: Annotated[tuple[Timestamp, ...], *newest(RESTORES_LENGTH)] = ()
    """When the operator restored the workload."""

    given_up: Annotated[tuple[str, ...], *newest(GIVEN_UP_LENGTH)] = ()
    """The fields that the operator leaves to the other field manager: args, image, env, config-hash or replicas."""

    given_up_at: Timestamp | None = None
    """When the operator last gave up a field."""

    quiet_since: Timestamp | None = None
    """Since when the workload is as intended again."""


class HandledRequest(ApiModel):
    """A user request (by annotation) that was handled; each value is handled once."""

    kind: str
    """rollback, reject or retry."""

    nonce: str
    """The value of the annotation."""

    at: Timestamp | None = None
    """When it was handled."""

    answer: Message | None = None
    """If the request had no effect: why, and what to do instead."""


class HistoryEntry(ApiModel):
    """A finished change."""

    id: str
    """The change's id."""

    knob: str
    """The knob."""

    from_value: str | None = None
    """The value before."""

    to_value: str | None = None
    """The value that was tried."""

    outcome: Outcome
    """How it ended."""

    reason: Note = ""
    """Why it ended this way."""

    started_at: Timestamp | None = None
    """When it began."""

    finished_at: Timestamp | None = None
    """When it ended."""

    grounds: Grounds | None = None
    """The diagnosis and prediction that it was based on."""

    windows_good: int | None = None
    """Windows in which it was better; absent if it was never judged. The verdict is the outcome with its reason."""

    windows_bad: int | None = None
    """Windows in which it was worse."""

    before: Measurement | None = None
    """Measured before."""

    after: Measurement | None = None
    """Measured after."""

    extra_gpus: int | None = None
    """Most GPUs that it added while it was tried; absent if not known."""
