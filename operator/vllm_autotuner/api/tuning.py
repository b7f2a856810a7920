"""`spec.tuning`: how far, within which bounds, when and how often the operator may change the engine."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from vllm_autotuner.api.cron import CRON_MAX_LENGTH, CRON_MESSAGE, CRON_PATTERN
from vllm_autotuner.api.fields import Duration, matching
from vllm_autotuner.api.knobs import KvCacheDtype
from vllm_autotuner.api.model import PUBLISHED_DEFAULT, ApiModel, Rule

_Bound = Annotated[int, Field(strict=True, ge=1, le=134_217_728)]


class Mode(StrEnum):
    """How far the operator may go."""

    OFF = "Off"
    """Serve the spec; no diagnosis, no recommendation."""

    RECOMMEND = "Recommend"
    """Diagnose and recommend; change nothing."""

    APPROVE = "Approve"
    """Change what a person approved by its recommendation id."""

    AUTOMATIC = "Automatic"
    """Change within bounds, budget and windows; measure, and roll back what does not help."""


class StrategyType(StrEnum):
    """How a change reaches the service."""

    CANARY = "Canary"
    """One pod more, with the new value, beside the others; they follow when it did better."""

    IN_PLACE = "InPlace"
    """The Deployment itself; judged before against after."""


class IntBounds(ApiModel):
    """Between which values a knob may be set, both included."""

    min: _Bound
    """The smallest value."""

    max: _Bound
    """The largest value."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="min must not exceed max",
            holds=lambda bounds: bounds.min <= bounds.max,
        ),
    )


class AllowedStrings(ApiModel):
    """Which values a knob may be set to."""

    allowed: Annotated[tuple[KvCacheDtype, ...], Field(min_length=1, max_length=16)]
    """The values."""


class AllowedInts(ApiModel):
    """Which numbers a knob may be set to."""

    allowed: Annotated[tuple[Annotated[int, Field(strict=True, ge=1, le=64)], ...], Field(min_length=1, max_length=16)]
    """The numbers."""


class Strategy(ApiModel):
    """How a change is made and how long each phase may take."""

    type: StrategyType | None = None
    """Canary or InPlace. Default: Canary from two replicas on, else InPlace."""

    warm_up: Duration = timedelta(seconds=60)
    """Serving without judgement, for caches and compilation. Default: 60s."""

    analysis: Duration = timedelta(minutes=5)
    """How long a verdict is sought; up to twice that where its ten windows take longer. Default: 5m."""

    bake: Duration = timedelta(minutes=30)
    """How long a change that was kept is watched before it counts as good; harm in it is undone. Default: 30m."""

    provisioning_deadline: Duration = timedelta(minutes=20)
    """By when a changed pod must be ready; several that follow one another get as many times that. Default: 20m."""

    data_budget: Duration = timedelta(minutes=15)
    """How long metrics may be missing during a change before it is rolled back without blame. Default: 15m."""


class Window(ApiModel):
    """A time in which changes may start."""

    schedule: Annotated[
        str,
        *matching(CRON_PATTERN, max_length=CRON_MAX_LENGTH, message=CRON_MESSAGE),
    ]
    """When it opens, as five cron fields, by the clock of its zone."""

    time_zone: Annotated[
        str,
        *matching(
            r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$",
            max_length=64,
            message="write an IANA time zone such as Europe/Berlin or UTC",
        ),
    ] = "UTC"
    """The zone of the schedule. Default: UTC."""

    duration: Duration
    """How long it stays open."""


class Budget(ApiModel):
    """How much change a service takes."""

    changes_per_day: Annotated[int, Field(strict=True, ge=1, le=48)] = 2
    """Changes in 24 hours, rolled back ones included. Default: 2."""


class Tuning(ApiModel):
    """How far, within which bounds, and how often the operator may change the engine."""

    mode: Annotated[Mode, Field(json_schema_extra={PUBLISHED_DEFAULT: "Recommend"})] = Mode.RECOMMEND
    """Off, Recommend, Approve or Automatic. Default: Recommend."""

    max_num_seqs: IntBounds | None = None
    """Bounds of maxNumSeqs. Default: recommended only, never changed."""

    max_model_len: IntBounds | None = None
    """Bounds of maxModelLen. Default: recommended only, never changed."""

    kv_cache_dtype: AllowedStrings | None = None
    """Allowed values of kvCacheDtype; listing one accepts its effect on quality. Default: recommended only."""

    tensor_parallel_size: AllowedInts | None = None
    """Allowed values of tensorParallelSize. Default: recommended only, never changed."""

    strategy: Strategy = Strategy()
    """How a change is made."""

    windows: Annotated[tuple[Window, ...], Field(max_length=16)] = ()
    """When changes may start; one open window is enough. Taking a change back needs none. Default: always."""

    budget: Budget = Budget()
    """How many changes a service takes."""

    cooldown: Duration = timedelta(hours=6)
    """How long a service is left alone after a change. Default: 6h."""
