"""What `VLLMService.status` remembers beyond the change under way: how changes ended, and what follows from it.

Apart from the rest of the status, because losing it repeats a mistake. Written by the operator, read again after a
restart, and edited by people now and then.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.change_records import Measurement
from vllm_autotuner.api.fields import Message, Note, Timestamp, newest
from vllm_autotuner.api.grounds import Grounds
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel

RESTORES_LENGTH: Final = 10


class Outcome(StrEnum):
    """How a change ended."""

    SUCCEEDED = "Succeeded"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"
    REJECTED = "Rejected"
    ROLLBACK_FAILED = "RollbackFailed"


class CircuitState(StrEnum):
    """Whether changes are allowed after rollbacks."""

    CLOSED = "Closed"
    OPEN = "Open"


class LastKnownGood(EngineKnobs):
    """The last configuration that served well for long enough."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""

    hash_version: int | None = None
    """Version of the rendering that was hashed."""

    verified_at: Timestamp | None = None
    """When it was last seen serving well."""


class RollbackFailure(ApiModel):
    """A rollback that did not bring the old configuration back: a person is needed."""

    change_id: str
    """The change that was to be undone."""

    generation: int
    """Of the spec then: an edit of the spec is a person's answer."""

    message: Message = ""
    """What serves instead, and why the old one does not."""

    at: Timestamp | None = None
    """When it was given up."""


class FailedCandidate(ApiModel):
    """A value that did not help, or that a person declined, and until when it is not tried again."""

    candidate: str
    """Such as maxNumSeqs=64."""

    knob: str
    """Which knob."""

    value: str
    """Which value."""

    environment: str = ""
    """Fingerprint of what it failed in (image, model, device): elsewhere it may be tried."""

    infeasible: EngineKnobs | None = None
    """For lack of memory: the whole configuration. What needs as much of everything is not tried either, at no time."""

    declined_at: Timestamp | None = None
    """When a person rejected it or took it back: not tried, whatever retryAfter says, before a person asks to retry."""

    failures: int = 1
    """How often; 0 when it did not fail, and a person declined it."""

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


class Contest(ApiModel):
    """Somebody else writes fields of the workload that the operator owns."""

    manager: str
    """The field manager that does."""

    fields: Note = ""
    """What it writes."""

    generation: int
    """Of the spec: an edit of it ends the contest."""

    restored: Annotated[tuple[Timestamp, ...], *newest(RESTORES_LENGTH)] = ()
    """When the workload was written back."""

    given_up_at: Timestamp | None = None
    """Since when the workload is left to the other one."""

    quiet_since: Timestamp | None = None
    """Since when it is as it should be all the same."""


class HandledRequest(ApiModel):
    """A request of a person that was acted upon; each nonce acts once."""

    kind: str
    """rollback, reject or retry."""

    nonce: str
    """The value of the annotation."""

    at: Timestamp | None = None
    """When."""

    answer: Message | None = None
    """Where there was nothing to act upon: why, and what does what was meant."""


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

    grounds: Grounds | None = None
    """What it was decided on, and what was foreseen."""

    windows_good: int | None = None
    """Windows that spoke for it; absent when it was never judged. The verdict is the outcome, with its reason."""

    windows_bad: int | None = None
    """Windows that spoke against it."""

    before: Measurement | None = None
    """Measured before."""

    after: Measurement | None = None
    """Measured after."""
