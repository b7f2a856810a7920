"""The models of `spec.tuning`: mode, bounds, strategy, change windows, budget and cooldown."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StrictBool

from vllm_autotuner.api.cron import CRON_MAX_LENGTH, CRON_MESSAGE, CRON_PATTERN
from vllm_autotuner.api.fields import Duration, PhaseDuration, matching
from vllm_autotuner.api.knobs import KvCacheDtype
from vllm_autotuner.api.model import PUBLISHED_DEFAULT, ApiModel, Rule

_Bound = Annotated[int, Field(strict=True, ge=1, le=134_217_728)]


class Mode(StrEnum):
    """What the operator may do."""

    OFF = "Off"
    """Serve the spec; no diagnosis, no recommendation."""

    RECOMMEND = "Recommend"
    """Diagnose and recommend; change nothing."""

    APPROVE = "Approve"
    """Apply recommendations that a user approved by their id."""

    AUTOMATIC = "Automatic"
    """Apply recommendations within bounds, budget and windows; measure, and roll back those that do not help."""


class StrategyType(StrEnum):
    """How a change is rolled out."""

    CANARY = "Canary"
    """An extra pod with the new value; the other pods follow if it is better."""

    IN_PLACE = "InPlace"
    """A rollout of the Deployment itself; measurements before and after are compared."""


class IntBounds(ApiModel):
    """The range of values a knob may be set to, inclusive."""

    min: _Bound
    """The smallest allowed value."""

    max: _Bound
    """The largest allowed value."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="min must not exceed max",
            holds=lambda bounds: bounds.min <= bounds.max,
        ),
    )


class AllowedStrings(ApiModel):
    """The values a knob may be set to."""

    allowed: Annotated[tuple[KvCacheDtype, ...], Field(min_length=1, max_length=16)]
    """The allowed values."""


class AllowedInts(ApiModel):
    """The numbers a knob may be set to."""

    allowed: Annotated[tuple[Annotated[int, Field(strict=True, ge=1, le=64)], ...], Field(min_length=1, max_length=16)]
    """The allowed numbers."""


class Strategy(ApiModel):
    """How a change is rolled out, and the duration of each phase."""

    type: StrategyType | None = None
    """Canary or InPlace. Default: Canary from two replicas on, else InPlace."""

    warm_up: PhaseDuration = timedelta(seconds=60)
    """How long new pods serve before they are measured, for caches and compilation. Default: 60s."""

    analysis: PhaseDuration = timedelta(minutes=5)
    """How long a change is measured for a verdict. While requests are too few: six times as long, and at least thirty
    state windows. Default: 5m."""

    bake: Duration = timedelta(minutes=30)
    """How long a kept change is watched before it counts as good; a regression is rolled back. Default: 30m."""

    provisioning_deadline: PhaseDuration = timedelta(minutes=20)
    """How long a new pod may take to become ready; multiplied by the number of pods in a rollout. Default: 20m."""

    data_budget: PhaseDuration = timedelta(minutes=15)
    """How long metrics may be missing during a change before it is rolled back; no failed attempt. Default: 15m."""


class Window(ApiModel):
    """A recurring time window in which changes may start."""

    schedule: Annotated[
        str,
        *matching(CRON_PATTERN, max_length=CRON_MAX_LENGTH, message=CRON_MESSAGE),
    ]
    """When it opens: a cron schedule of five fields, in local time."""

    time_zone: Annotated[
        str,
        *matching(
            r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$",
            max_length=64,
            message="write an IANA time zone such as Europe/Berlin or UTC",
        ),
    ] = "UTC"
    """The time zone of the schedule. Default: UTC."""

    duration: Duration
    """How long it stays open."""


class Budget(ApiModel):
    """The limit on the number of changes of a service."""

    changes_per_day: Annotated[int, Field(strict=True, ge=1, le=48)] = 2
    """Maximum changes in 24 hours, including rolled back ones. Default: 2."""


class Tuning(ApiModel):
    """Mode, bounds and limits of tuning."""

    mode: Annotated[Mode, Field(json_schema_extra={PUBLISHED_DEFAULT: "Recommend"})] = Mode.RECOMMEND
    """Off, Recommend, Approve or Automatic. Default: Recommend."""

    max_num_seqs: IntBounds | None = None
    """Bounds of maxNumSeqs. Default: recommended only, never changed."""

    max_model_len: IntBounds | None = None
    """Bounds of maxModelLen. Default: recommended only, never changed."""

    kv_cache_dtype: AllowedStrings | None = None
    """Allowed values of kvCacheDtype; listing a value accepts its effect on quality. Default: recommended only."""

    tensor_parallel_size: AllowedInts | None = None
    """Allowed values of tensorParallelSize. Default: recommended only, never changed."""

    save_gpus: StrictBool = True
    """Whether a setting may also change to save GPUs while all objectives are met. Default: true; false: only when an
    objective is missed."""

    strategy: Strategy = Strategy()
    """How a change is rolled out and measured."""

    windows: Annotated[tuple[Window, ...], Field(max_length=16)] = ()
    """When changes may start; one open window is enough. Rollbacks ignore windows. Default: always."""

    budget: Budget = Budget()
    """The limit on the number of changes."""

    cooldown: Duration = timedelta(hours=6)
    """Minimum time between the end of a change and the next one. Default: 6h, in which only a change may begin that
    goes on from one that was kept: further in the same direction, or by another knob; as long as a bake after one that
    was undone and did no harm."""

    @property
    def cooldown_is_written(self) -> bool:
        """Whether the user wrote it: then it holds for every change."""
        return "cooldown" in self.model_fields_set
