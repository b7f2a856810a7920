"""One look at the whole fleet: a fixed number of questions, sorted by engine.

Two rounds: the gauges first, because their spacing tells the scrape interval and with it how long the state window
must be; then everything else over that window. Must not: judge, or fill a gap.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Final

from vllm_autotuner.engine.metric_names import CACHE_INFO, NAMES, Kind, Meaning, canonical_names
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.questions import Buckets, Growths, Means, MetricsSource, Question, Samples
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.series import Series

__all__ = ["EngineKey", "EngineSeries", "FleetSnapshot", "StepPart", "WindowSettings", "take_snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How far back each kind of question looks."""

    state: int = 30
    """Seconds of "now": queue, KV, latencies. Shorter is noise, longer reacts late. Field guide: waiting for 30 s."""
    gauges: int = 300
    """Seconds of raw samples fetched; the state window may grow into it when scrapes are far apart. Our choice."""
    long: int = 1800
    """Seconds for length percentiles and the step-time fit: enough for a load to move. Design: 30 min."""
    fewest_scrapes: int = 4
    """Scrapes that a state window must hold; with fewer it is stretched. Our choice: 3 gaps still show a trend."""


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """One engine core. An absent label is the empty string. Not the model: cache_config_info does not carry it."""

    namespace: str
    pod: str
    engine: str


class StepPart(StrEnum):
    """The three series a step-time point is made of."""

    RUNNING = "mean running"
    ITL_SECONDS = "ITL seconds"
    ITL_COUNT = "ITL count"


@dataclass(slots=True)
class EngineSeries:
    """Everything known of one engine. Times in Unix seconds; a meaning that is absent was not exported."""

    gauges: dict[Meaning, Series] = field(default_factory=dict)
    waiting_by_reason: dict[str, Series] = field(default_factory=dict)
    counters: dict[Meaning, dict[str, Series]] = field(default_factory=dict)
    """Meaning -> distinguishing label value ("" for most, finished_reason for FINISHED) -> raw samples."""
    sums: dict[Meaning, Series] = field(default_factory=dict)
    counts: dict[Meaning, Series] = field(default_factory=dict)
    buckets: dict[Meaning, dict[float, float]] = field(default_factory=dict)
    """Over the state window: upper edge -> growth."""
    long_buckets: dict[Meaning, dict[float, float]] = field(default_factory=dict)
    """Over the long window."""
    steps: dict[StepPart, Mapping[float, float]] = field(default_factory=dict)
    """Over the long window, one value each state window, by its time."""
    cache_info: Mapping[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """All labels of the running gauge: where a configured service label is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """What the source said about the moment `at` (Unix seconds). `error` set means: nobody may conclude anything."""

    at: float
    state_window: float
    scrape_interval: float | None
    engines: Mapping[EngineKey, EngineSeries]
    error: NoData | None = None


STATE_HISTOGRAMS: Final = (Meaning.TTFT, Meaning.ITL, Meaning.TPOT, Meaning.E2E)
LENGTHS: Final = (Meaning.PROMPT_LENGTH, Meaning.OUTPUT_LENGTH)
MEANS: Final = (*STATE_HISTOGRAMS, Meaning.QUEUE_TIME, Meaning.PREFILL_TIME, *LENGTHS)
"""Histograms of which sum and count are read raw: their means are exact."""


async def take_snapshot(source: MetricsSource, *, at: float, settings: WindowSettings) -> FleetSnapshot:
    """Ask everything about the moment `at` (Unix seconds). Never raises SourceError: a failed round is a value."""
    try:
        gauges = await source.ask(Samples(names=_names_of(Kind.GAUGE), window=settings.gauges), at=at)
        interval = _scrape_interval(gauges)
        window = _state_window(interval, settings=settings)
        questions = _second_round(window, settings=settings)
        answers = await asyncio.gather(*(source.ask(question, at=at) for _, question in questions))
    except SourceError as error:
        problem = NoData(Absence.PROVIDER_ERROR, str(error))
        return FleetSnapshot(at=at, state_window=settings.state, scrape_interval=None, engines={}, error=problem)
    engines: dict[EngineKey, EngineSeries] = {}
    for series in gauges:
        _file_raw(engines, series)
    for (topic, question), answer in zip(questions, answers, strict=True):
        for series in answer:
            _file(engines, series, topic=topic, question=question)
    return FleetSnapshot(at=at, state_window=window, scrape_interval=interval, engines=engines)


def _second_round(window: int, *, settings: WindowSettings) -> list[tuple[Meaning | StepPart | None, Question]]:
    parts = tuple(f"{name}{end}" for meaning in MEANS for name in NAMES[meaning].names for end in ("_sum", "_count"))
    itl = NAMES[Meaning.ITL].names
    return [
        (None, Samples(names=(*_names_of(Kind.COUNTER), *parts), window=settings.gauges)),
        (None, Samples(names=(CACHE_INFO,), window=settings.gauges)),
        *((meaning, Buckets(names=NAMES[meaning].names, window=window)) for meaning in STATE_HISTOGRAMS),
        *((meaning, Buckets(names=NAMES[meaning].names, window=settings.long)) for meaning in LENGTHS),
        (StepPart.RUNNING, Means(name=NAMES[Meaning.RUNNING].names[0], window=settings.long, step=window)),
        (StepPart.ITL_SECONDS, Growths(names=tuple(f"{n}_sum" for n in itl), window=settings.long, step=window)),
        (StepPart.ITL_COUNT, Growths(names=tuple(f"{n}_count" for n in itl), window=settings.long, step=window)),
    ]


def _file(
    engines: dict[EngineKey, EngineSeries], series: Series, *, topic: Meaning | StepPart | None, question: Question
) -> None:
    match question:
        case Samples():
            _file_raw(engines, series)
        case Buckets() if isinstance(topic, Meaning):
            engine = engines.setdefault(_key_of(series), EngineSeries())
            shelf = engine.long_buckets if topic in LENGTHS else engine.buckets
            shelf.setdefault(topic, {})[float(series.labels["le"])] = series.values[-1]
        case Means() | Growths() if isinstance(topic, StepPart):
            engine = engines.setdefault(_key_of(series), EngineSeries())
            engine.steps[topic] = dict(zip(series.times, series.values, strict=True))
        case _:
            raise AssertionError(f"a question without a shelf: {question}")


def _file_raw(engines: dict[EngineKey, EngineSeries], series: Series) -> None:
    engine = engines.setdefault(_key_of(series), EngineSeries())
    name = series.name
    if name == CACHE_INFO:
        engine.cache_info = series.labels
        return
    family, part = _split(name)
    meaning = canonical_names()[family]
    preferred = NAMES[meaning].names.index(family) == 0
    match NAMES[meaning].kind:
        case Kind.GAUGE if meaning is Meaning.WAITING_BY_REASON:
            engine.waiting_by_reason[series.labels.get("reason", "")] = series
        case Kind.GAUGE:
            if preferred or meaning not in engine.gauges:
                engine.gauges[meaning] = series
            if meaning is Meaning.RUNNING:
                engine.labels = series.labels
        case Kind.COUNTER:
            engine.counters.setdefault(meaning, {})[series.labels.get("finished_reason", "")] = series
        case Kind.HISTOGRAM:
            shelf = engine.sums if part == "_sum" else engine.counts
            if preferred or meaning not in shelf:
                shelf[meaning] = series


def _split(name: str) -> tuple[str, str]:
    for end in ("_sum", "_count"):
        if name.endswith(end):
            return name.removesuffix(end), end
    return name, ""


def _key_of(series: Series) -> EngineKey:
    labels = series.labels
    return EngineKey(labels.get("namespace", ""), labels.get("pod", ""), labels.get("engine", ""))


def _names_of(kind: Kind) -> tuple[str, ...]:
    return tuple(name for entry in NAMES.values() if entry.kind is kind for name in entry.names)


def _scrape_interval(gauges: Sequence[Series]) -> float | None:
    """The slowest engine's median gap, in seconds; None when no series has two samples."""
    gaps = [median(after - before for before, after in pairwise(one.times)) for one in gauges if len(one.times) > 1]
    return max(gaps) if gaps else None


def _state_window(interval: float | None, *, settings: WindowSettings) -> int:
    wanted = settings.state if interval is None else max(settings.state, math.ceil(settings.fewest_scrapes * interval))
    return min(wanted, settings.gauges)
