"""Status models of the active change: its state, the configuration to roll back to, and its measurements.

Separate from the rest of the status, because losing these records would lose a rollback. Written by the operator and
read again after a restart. Finished changes are in `change_history`.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from vllm_autotuner.api.fields import Message, Number, Timestamp, WindowFigure, newest
from vllm_autotuner.api.grounds import Grounds
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel
from vllm_autotuner.api.tuning import StrategyType

MEASUREMENTS_LENGTH: Final = 10
ANALYSIS_LENGTH: Final = 30
"""Windows of an analysis that are kept. Ten are judged; more where requests are few and long: with answers of 2,300
tokens a service that keeps a GPU busy ends a request in four seconds, and each of its five pods 25 in ten minutes."""

BAKE_LENGTH: Final = 20
"""The same of a bake: ten are judged; more where some are without data, or requests are few. Our choice: with thirty
the largest status that there can be would not be as small as it has to."""


class ChangeTarget(StrEnum):
    """What a change is meant to improve."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    THROUGHPUT = "Throughput"
    GPUS = "GPUs"
    """Fewer of them: no latency may suffer, or a missed one must be cured."""
    START = "Start"
    """Engines that start at all: there is nothing to compare with."""


class ChangeState(StrEnum):
    """The state of a change."""

    PROPOSED = "Proposed"
    """Decided; the workload is unchanged."""

    PROVISIONING = "Provisioning"
    """Pods with the new configuration are starting."""

    VERIFYING = "Verifying"
    """Checking that the engine really uses the new value."""

    WARMING_UP = "WarmingUp"
    """The new pods serve, but are not measured yet."""

    ANALYZING = "Analyzing"
    """The change is being measured."""

    HELD = "Held"
    """Metrics are missing or tuning is paused; the interrupted state keeps its remaining time."""

    PROMOTING = "Promoting"
    """The canary was better: the service's own pods are rolled out one by one while the old ones still serve."""

    BAKING = "Baking"
    """All pods run the new value and are watched for regressions before it counts as good."""

    ROLLING_BACK = "RollingBack"
    """The last known good configuration is being restored."""


class Measurement(ApiModel):
    """Service levels and load over one window; unknown numbers are absent."""

    at: Timestamp
    """End of the window."""

    ttft_seconds: WindowFigure = None
    """Time to first token at the objective's quantile."""

    tpot_seconds: WindowFigure = None
    """Time per output token at the objective's quantile."""

    ttft_mean_seconds: WindowFigure = None
    """Mean time to first token; exact, while a quantile is only known to its histogram bucket."""

    tpot_mean_seconds: WindowFigure = None
    """Mean time per output token."""

    requests_per_second: WindowFigure = None
    """Finished requests."""

    rejected_per_second: WindowFigure = None
    """Requests rejected by a queue limit. Absent if the engine does not report them, as before vLLM 0.32."""

    tokens_per_second: WindowFigure = None
    """Generated tokens."""

    prompt_tokens_per_second: WindowFigure = None
    """Tokens of the prompts that came, from the prefix cache or not."""

    running: WindowFigure = None
    """Mean of running requests."""

    waiting: WindowFigure = None
    """Mean of waiting requests."""


class ConfigRef(EngineKnobs):
    """A configuration by its values and its hash."""

    config_hash: str | None = None
    """Hash of the rendered pod template."""


class Analysis(ApiModel):
    """The measurements of a change so far."""

    started_at: Timestamp | None = None
    """When the analysis began."""

    windows_good: int = 0
    """Windows that met every objective."""

    windows_bad: int = 0
    """Windows that violated one."""

    consecutive_bad: int = 0
    """Bad windows in a row, now."""

    windows_inconclusive: int = 0
    """Windows that show neither."""

    no_data: int = 0
    """Windows without data; no evidence."""

    last: Annotated[tuple[Measurement, ...], *newest(ANALYSIS_LENGTH)] = ()
    """The newest measurements, newest last."""

    reference: Annotated[tuple[Measurement, ...], *newest(ANALYSIS_LENGTH)] = ()
    """The same windows of the pods with the old configuration; both sides are per pod. Empty without such pods."""


class Bake(Analysis):
    """The measurements of a bake: judged as soon as there are enough of them, and then it begins anew."""

    last: Annotated[tuple[Measurement, ...], *newest(BAKE_LENGTH)] = ()
    """The newest measurements, newest last."""

    reference: Annotated[tuple[Measurement, ...], *newest(BAKE_LENGTH)] = ()
    """The same windows of other pods."""


class TrialRef(ApiModel):
    """A Deployment that exists for one change, recorded before it is created."""

    name: str
    """Its name, in the namespace of the service."""

    config_hash: str | None = None
    """Hash of its pod template."""


class ActiveChange(ApiModel):
    """The active change, with everything needed to continue or roll back after a restart."""

    id: str
    """Deterministic id: the same decision has the same id."""

    epoch: int = 0
    """Lease epoch of the operator that owns the change (fencing token)."""

    generation: int
    """Generation of the spec that it is based on; a new generation supersedes the change."""

    environment: str = ""
    """Fingerprint of the environment (image, model, device) at the start; later edits of the spec do not alter it."""

    knob: str
    """The knob."""

    from_value: str | None = None
    """The value before; absent if it was the engine's default."""

    to_value: str
    """The new value."""

    from_: Annotated[ConfigRef, Field(alias="from")]
    """The configuration before, to which a rollback returns."""

    to: ConfigRef
    """The configuration under test."""

    reason: Message = ""
    """Why the change is made, in words."""

    target: ChangeTarget | None = None
    """What it should improve."""

    kv_cache_tokens: Number = None
    """Tokens that the smallest engine's KV cache held before a change for a larger one; absent for any other change."""

    grounds: Grounds | None = None
    """The diagnosis and prediction that it is based on."""

    strategy: StrategyType = StrategyType.IN_PLACE
    """How it is rolled out."""

    canary_ref: TrialRef | None = None
    """The canary, a pod with the new configuration; absent in place, and once its GPU was needed."""

    baseline_ref: TrialRef | None = None
    """The baseline, a fresh pod with the old configuration; from three replicas on, if a GPU is free."""

    promoted: bool = False
    """Whether the service's own pods are being or have been rolled out to the new configuration."""

    state: ChangeState
    """The state of the change."""

    state_reason: Message = ""
    """Why it is in this state."""

    harmful: bool | None = None
    """True if it was rolled back for harm, False if it did not help; absent if it was never judged."""

    lacked_memory: bool | None = None
    """True if it ran out of memory, at start-up or later."""

    refused: bool | None = None
    """True if the engine refused the value because of the model, the device or other flags, or got no more KV cache."""

    declined: bool | None = None
    """True if a user requested the rollback; the value is not retried before a user requests a retry."""

    state_since: Timestamp | None = None
    """When it entered the state."""

    deadline: Timestamp | None = None
    """Deadline of the state."""

    resume_state: ChangeState | None = None
    """The state that Held interrupted."""

    remaining_seconds: Number = None
    """Remaining time of the interrupted state."""

    started_at: Timestamp | None = None
    """When the change began."""

    replicas: int | None = None
    """Replicas of the service at the start; a scale-out lowers the load of each. Absent if an older version began."""

    baseline: Measurement | None = None
    """The last window before the change."""

    before: Annotated[tuple[Measurement, ...], *newest(MEASUREMENTS_LENGTH)] = ()
    """Windows before the change, newest last; a change in place is compared with them. The newest is the baseline."""

    analysis: Analysis | None = None
    """Measurements of the analysis."""

    bake: Bake | None = None
    """Measurements of the bake."""

    clock_stopped_at: Timestamp | None = None
    """Since when the bake clock is stopped by missing metrics or a pause; absent while it runs."""
