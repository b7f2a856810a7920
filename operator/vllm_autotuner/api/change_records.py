"""The records of the change under way in `VLLMService.status`: where it stands, what it goes back to, what it measured.

Apart from the rest of the status, because losing it loses a rollback. Written by the operator and read again after a
restart. What is left of a change that has ended is in `memory`.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from vllm_autotuner.api.fields import Message, Number, Timestamp, newest
from vllm_autotuner.api.grounds import Grounds
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel
from vllm_autotuner.api.tuning import StrategyType

MEASUREMENTS_LENGTH: Final = 10


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

    PROMOTING = "Promoting"
    """The canary did better: the service's own pods follow, one after the other, while the old ones still serve."""

    BAKING = "Baking"
    """All pods run it, and it is watched before it counts as good."""

    ROLLING_BACK = "RollingBack"
    """The last known good configuration is being restored."""


class Measurement(ApiModel):
    """Service levels and load over one window; a number is absent when nobody knows."""

    at: Timestamp
    """End of the window."""

    ttft_seconds: Number = None
    """Time to first token at the objective's quantile."""

    tpot_seconds: Number = None
    """Time per output token at the objective's quantile."""

    ttft_mean_seconds: Number = None
    """Mean time to first token: exact, where a quantile of a histogram lies somewhere in its bucket."""

    tpot_mean_seconds: Number = None
    """Mean time per output token."""

    requests_per_second: Number = None
    """Finished requests."""

    rejected_per_second: Number = None
    """Requests that a limit of the queue turned away. Absent where the engine does not tell, as before vLLM 0.32."""

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

    last: Annotated[tuple[Measurement, ...], *newest(MEASUREMENTS_LENGTH)] = ()
    """The newest measurements, newest last."""

    reference: Annotated[tuple[Measurement, ...], *newest(MEASUREMENTS_LENGTH)] = ()
    """The same windows of the pods with the old configuration; both are per pod then. Empty without such pods."""


class TrialRef(ApiModel):
    """A Deployment that exists for one change, written down before it is created."""

    name: str
    """Its name, in the namespace of the service."""

    config_hash: str | None = None
    """Hash of its pod template."""


class ActiveChange(ApiModel):
    """The one change under way, with all that is needed to go on or to go back after a restart."""

    id: str
    """Deterministic: the same decision has the same id."""

    epoch: int = 0
    """Lease epoch of the operator that owns the change (fencing token)."""

    generation: int
    """Generation of the spec it was decided on; another one supersedes it."""

    environment: str = ""
    """Fingerprint of what it is tried in (image, model, device): also an edit that ends it does not change that."""

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

    grounds: Grounds | None = None
    """What it was decided on."""

    strategy: StrategyType = StrategyType.IN_PLACE
    """How it reaches the service."""

    canary_ref: TrialRef | None = None
    """The pod with the new configuration beside the others; absent in place, and once its device was needed."""

    baseline_ref: TrialRef | None = None
    """A pod with the old configuration as fresh as the canary; from three replicas on, where there is room."""

    promoted: bool = False
    """Whether the service's own pods were told to follow the canary."""

    state: ChangeState
    """Where it stands."""

    state_reason: Message = ""
    """Why it stands there."""

    harmful: bool | None = None
    """True when it is rolled back because it did harm, False because it did not help; absent: it was never judged."""

    lacked_memory: bool | None = None
    """True when it did not start, or crashed, for lack of memory."""

    refused: bool | None = None
    """True when the engine does not take the value: model, device or its other flags forbid it."""

    declined: bool | None = None
    """True when a person asked to take it back: the value is not tried again before a person asks to retry."""

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

    replicas: int | None = None
    """Of the service then: with more of them each has less to do. Absent where an older version began it."""

    baseline: Measurement | None = None
    """Measured before the change."""

    before: Annotated[tuple[Measurement, ...], *newest(MEASUREMENTS_LENGTH)] = ()
    """The windows up to then, newest last: in place they are what is compared with. The newest is the baseline."""

    analysis: Analysis | None = None
    """Measured since."""

    bake: Analysis | None = None
    """Measured while it bakes."""

    clock_stopped_at: Timestamp | None = None
    """Since when the bake waits for metrics or for a person; absent while it does not."""
