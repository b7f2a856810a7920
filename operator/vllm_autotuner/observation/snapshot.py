"""Reads the metrics of many services with a fixed number of queries, sorted by engine.

Two rounds: the gauges first, because their spacing gives the scrape interval and so the length of the state window;
then everything else over that window. Must not: judge, or fill a gap.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import isfinite
from typing import Final, TypeAlias, TypeVar

from vllm_autotuner.engine.metric_names import (
    CACHE_INFO,
    NAMES,
    OF_THE_SERVER,
    PARTS,
    PROCESS_START,
    Kind,
    Meaning,
    canonical_names,
)
from vllm_autotuner.observation.answer_reader import LEFT_OUT
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.odd_series import OddSeries, edge_of, refuse_odd_counts, refuse_odd_levels
from vllm_autotuner.observation.questions import Beside, Buckets, Growths, Means, MetricsSource, Question, Samples
from vllm_autotuner.observation.quiet_pods import PodName, quiet_pods
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.state_windows import EngineKey, Windows, WindowSettings, key_of, windows_of

__all__ = ["EngineKey", "EngineSeries", "FleetSnapshot", "StepPart", "WindowSettings", "take_snapshot"]

_Shelf = TypeVar("_Shelf")


class StepPart(StrEnum):
    """The series of which there is one value each state window: what a step-time point and a mean TTFT are made of."""

    RUNNING = "mean running"
    ITL_SECONDS = "ITL seconds"
    ITL_COUNT = "ITL count"
    PROMPT_TOKENS = "prompt tokens"
    TTFT_SECONDS = "TTFT seconds"
    TTFT_COUNT = "TTFT count"


@dataclass(slots=True)
class EngineSeries:
    """Everything known of one engine. Times in Unix seconds; a meaning that is absent was not exported."""

    gauges: dict[Meaning, Series] = field(default_factory=dict)
    waiting_by_reason: dict[str, Series] = field(default_factory=dict)
    counters: dict[Meaning, dict[str, Series]] = field(default_factory=dict)
    """Meaning -> value of the label that splits it ("" for most, see `PARTS`) -> raw samples."""
    sums: dict[Meaning, Series] = field(default_factory=dict)
    counts: dict[Meaning, Series] = field(default_factory=dict)
    buckets: dict[Meaning, dict[float, float]] = field(default_factory=dict)
    """Over the state window: upper edge -> growth."""
    long_buckets: dict[Meaning, dict[float, float]] = field(default_factory=dict)
    """Over the long window."""
    steps: dict[StepPart, Mapping[float, float]] = field(default_factory=dict)
    """Over the long window, one value each state window, by its time."""
    cache_info: Series | None = None
    """Its labels are the content."""
    started: float | None = None
    """Unix seconds at which its server's process began; None where that is not exported."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """All labels of the running gauge: where a configured service label is found."""
    addresses: set[str] = field(default_factory=set)
    """Where its running gauge was scraped; several for a pod that changed its address."""
    window: float | None = None
    """Seconds of its state window; None: that of the fleet."""
    unreadable: str = ""
    """Which of its series cannot be what it says; empty when all can. Nothing of such an engine may be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """The metrics at the moment `at` (Unix seconds). If `error` is set, nothing can be concluded."""

    at: float
    state_window: float
    scrape_interval: float | None
    engines: Mapping[EngineKey, EngineSeries]
    error: NoData | None = None
    left_out: frozenset[str] = frozenset()
    """Namespaces that had more series than are read; of a failed round those that it may have failed for."""
    gauged: int = 0
    """Engines whose gauges were read, also those about which nothing else was asked."""


COUNTERS_ALONE: Final = (
    "it exports counters, but not how many requests run and wait, as Triton's vLLM backend and engines behind several "
    "API servers do; scrape a page that has vllm:num_requests_running"
)
FILED_AT_ONCE: Final = 5_000
"""Series that are sorted on the event loop: 50 ms. More are sorted in a thread."""
STATE_HISTOGRAMS: Final = (Meaning.TTFT, Meaning.ITL, Meaning.TPOT, Meaning.E2E)
LENGTHS: Final = (Meaning.PROMPT_LENGTH, Meaning.OUTPUT_LENGTH)
TIMES: Final = (Meaning.QUEUE_TIME, Meaning.PREFILL_TIME, Meaning.DECODE_TIME)
MEANS: Final = (*STATE_HISTOGRAMS, *TIMES, Meaning.STEP_TOKENS, *LENGTHS)
"""Histograms of which sum and count are read raw: their means are exact."""


Narrowed: TypeAlias = Callable[[Set[PodName]], tuple[MetricsSource, Set[str]]]
_Topic: TypeAlias = Meaning | StepPart | None
_Asked: TypeAlias = tuple[int | None, _Topic, Question]
"""The state window that a question is about (None: any), its topic, and the question."""
_Answered: TypeAlias = tuple[int | None, _Topic, Question, Sequence[Series]]


async def take_snapshot(
    source: MetricsSource, *, at: float, settings: WindowSettings, narrowed: Narrowed | None = None
) -> FleetSnapshot:
    """Ask everything about the moment `at` (Unix seconds). Never raises SourceError: a failed round is a value.

    `narrowed`: names, from the pods in which nothing waits, a source for the second round, which may be one of fewer
    namespaces, and these; the snapshot has their engines alone. Without it both rounds are about the same engines.
    """
    try:
        first = Samples(names=_names_of(Kind.GAUGE), window=settings.gauges)
        gauges = await source.ask(first, at=at)
        windows, gauged = windows_of(gauges, at=at, settings=settings), len({_place_of(series) for series in gauges})
        if narrowed is not None:
            source, namespaces = narrowed(quiet_pods(gauges, windows=windows, at=at))
            gauges = [series for series in gauges if series.labels.get("namespace", "") in namespaces]
            if not namespaces:
                usual, interval = windows.usual, windows.interval
                return FleetSnapshot(at=at, state_window=usual, scrape_interval=interval, engines={}, gauged=gauged)
        questions = _second_round(windows, settings=settings)
        beside = Beside(name=PROCESS_START, anchor=NAMES[Meaning.RUNNING].names[0])
        *answers, beginnings = await _all_answers(source, [*(question for _, _, question in questions), beside], at=at)
    except SourceError as error:
        problem = NoData(Absence.PROVIDER_ERROR, str(error))
        return FleetSnapshot(
            at=at, state_window=settings.state, scrape_interval=None, engines={}, error=problem, left_out=error.large
        )
    asked: list[_Answered] = [(None, None, first, gauges)]
    asked += [(*about, answer) for about, answer in zip(questions, answers, strict=True)]
    many = sum(len(answer) for *_, answer in asked) > FILED_AT_ONCE
    file = partial(_filed, asked, beginnings, windows=windows)
    engines = await asyncio.to_thread(file) if many else file()
    left_out = frozenset(_left_out(asked))
    for key, engine in engines.items():
        if key.namespace in left_out:
            engine.unreadable = f"namespace {key.namespace} has more series than are read (docs/budgets.md)"
    return FleetSnapshot(
        at=at,
        state_window=windows.usual,
        scrape_interval=windows.interval,
        engines=engines,
        left_out=left_out,
        gauged=gauged,
    )


async def _all_answers(
    source: MetricsSource, questions: Sequence[Question], *, at: float
) -> Sequence[Sequence[Series]]:
    """Ask everything at once. Raises SourceError when the last answer is there: what is left goes on otherwise."""
    found = await asyncio.gather(*(source.ask(question, at=at) for question in questions), return_exceptions=True)
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda each: not getattr(each, "large", ())):
        raise error
    return [each for each in found if not isinstance(each, BaseException)]


_Place: TypeAlias = tuple[str, str, str]
"""An EngineKey as a tuple: made and found in a fraction of its time, for 150 series of each engine."""


class _Engines(dict[_Place, EngineSeries]):
    """What has been filed so far."""

    def of(self, series: Series) -> EngineSeries:
        """The engine of a series; a new one where there is none yet."""
        found = self.get(place := _place_of(series))
        if found is None:
            found = self[place] = EngineSeries()
        return found


def _place_of(series: Series) -> _Place:
    labels = series.labels
    return labels.get("namespace", ""), labels.get("pod") or labels.get("instance", ""), labels.get("engine", "")


def _filed(
    asked: Sequence[_Answered], beginnings: Sequence[Series], *, windows: Windows
) -> dict[EngineKey, EngineSeries]:
    filed = _Engines()
    for window, topic, question, answer in asked:
        elsewhere = _not_of(window, windows)
        for series in answer:
            if LEFT_OUT not in series.labels and not (elsewhere and elsewhere(series)):
                _file_or_refuse(filed, series, topic=topic, question=question)
    engines = {EngineKey(*place): engine for place, engine in filed.items()}
    for key, engine in engines.items():
        engine.window = windows.of(key)
    _file_starts(engines, beginnings)
    _file_rejections(engines)
    _refuse_counters_alone(engines)
    return engines


def _not_of(window: int | None, windows: Windows) -> Callable[[Series], bool] | None:
    """Whether a series is of an engine with another window; None where no engine can be."""
    if window is None or (window == windows.usual and not windows.own):
        return None
    return lambda series: windows.of(key_of(series)) != window


def _left_out(asked: Sequence[_Answered]) -> Iterator[str]:
    for *_, answer in asked:
        yield from (one.labels["namespace"] for one in answer if LEFT_OUT in one.labels)


def _second_round(windows: Windows, *, settings: WindowSettings) -> list[_Asked]:
    parts = tuple(f"{name}{end}" for meaning in MEANS for name in NAMES[meaning].names for end in ("_sum", "_count"))

    return [
        (None, None, Samples(names=(*_names_of(Kind.COUNTER), *parts), window=settings.gauges)),
        (None, None, Samples(names=(CACHE_INFO,), window=settings.gauges)),
        *((None, meaning, Buckets(names=NAMES[meaning].names, window=settings.long)) for meaning in LENGTHS),
        *(
            (window, topic, question)
            for window in windows.different
            for topic, question in _of_window(window, settings=settings)
        ),
    ]


def _of_window(window: int, *, settings: WindowSettings) -> Iterator[tuple[_Topic, Question]]:
    def growths(meaning: Meaning, end: str) -> Growths:
        names = tuple(f"{name}_{end}" for name in NAMES[meaning].names)
        return Growths(names=names, window=settings.long, step=window)

    for meaning in STATE_HISTOGRAMS:
        yield meaning, Buckets(names=NAMES[meaning].names, window=window)
    prompted = NAMES[Meaning.PROMPT_TOKENS].names
    yield StepPart.RUNNING, Means(name=NAMES[Meaning.RUNNING].names[0], window=settings.long, step=window)
    yield StepPart.ITL_SECONDS, growths(Meaning.ITL, "sum")
    yield StepPart.ITL_COUNT, growths(Meaning.ITL, "count")
    yield StepPart.PROMPT_TOKENS, Growths(names=prompted, window=settings.long, step=window)
    yield StepPart.TTFT_SECONDS, growths(Meaning.TTFT, "sum")
    yield StepPart.TTFT_COUNT, growths(Meaning.TTFT, "count")


def _file_or_refuse(engines: _Engines, series: Series, *, topic: Meaning | StepPart | None, question: Question) -> None:
    try:
        _file(engines, series, topic=topic, question=question)
    except OddSeries as error:
        # Whoever is scraped chooses what is on its page: an odd series costs the engine whose labels it bears.
        engine = engines.of(series)
        engine.unreadable, engine.labels = engine.unreadable or str(error), engine.labels or series.labels


def _file(engines: _Engines, series: Series, *, topic: Meaning | StepPart | None, question: Question) -> None:
    """Put a series where it belongs. Raises OddSeries."""
    match question:
        case Samples():
            _file_raw(engines, series)
        case Buckets() if isinstance(topic, Meaning):
            engine = engines.of(series)
            if topic in STATE_HISTOGRAMS:
                _refuse_stranger(engine, series)
            shelf = engine.long_buckets if topic in LENGTHS else engine.buckets
            edges, edge = shelf.setdefault(topic, {}), edge_of(series)
            edges[edge] = edges.get(edge, 0.0) + series.values[-1]
        case Means() | Growths() if isinstance(topic, StepPart):
            engine = engines.of(series)
            # A window with a gap has no mean.
            points = {time: value for time, value in zip(series.times, series.values, strict=True) if isfinite(value)}
            known = engine.steps.get(topic, {})
            if topic is not StepPart.RUNNING:
                # Growths are per address: those of a pod that changed it add up. A mean does not.
                points = {time: value + known.get(time, 0.0) for time, value in points.items()}
            engine.steps[topic] = {**known, **points}
        case _:
            raise AssertionError(f"a question without a shelf: {question}")


def _file_raw(engines: _Engines, series: Series) -> None:
    engine = engines.of(series)
    name = series.name
    if name == CACHE_INFO:
        if not series.values:
            return  # its labels are the content, but the newest of several cannot be told
        # A restarted engine may have found another pool: the labels differ, so the old series stays for a while.
        if engine.cache_info is None or series.times[-1] > engine.cache_info.times[-1]:
            engine.cache_info = series
        return
    family, part = _split(name)
    meaning = canonical_names().get(family)
    if meaning is None:
        raise OddSeries(f"the source answers with {name[:100] or 'a series without a name'}, which was not asked for")
    match NAMES[meaning].kind:
        case Kind.GAUGE if meaning is Meaning.WAITING_BY_REASON:
            refuse_odd_levels(series, meaning=meaning)
            _keep(engine.waiting_by_reason, series.labels.get("reason", ""), series)
        case Kind.GAUGE:
            refuse_odd_levels(series, meaning=meaning)
            _keep(engine.gauges, meaning, series)
            if meaning is Meaning.RUNNING:
                engine.addresses.add(series.labels.get("instance", ""))
                engine.labels = engine.gauges[meaning].labels
        case Kind.COUNTER:
            refuse_odd_counts(series)
            part = series.labels.get(PARTS[meaning], "") if meaning in PARTS else ""
            _keep(engine.counters.setdefault(meaning, {}), part, series)
        case Kind.HISTOGRAM:
            refuse_odd_counts(series)
            _keep(engine.sums if part == "_sum" else engine.counts, meaning, series)


def _file_starts(engines: Mapping[EngineKey, EngineSeries], beginnings: Sequence[Series]) -> None:
    """A process has no engine label: its start is that of every engine core in its pod. The latest counts."""
    latest: dict[tuple[str, str], float] = {}
    for series in beginnings:
        if not series.values or not isfinite(series.values[-1]):
            continue
        key = key_of(series)
        place = (key.namespace, key.pod)
        latest[place] = max(latest.get(place, 0.0), series.values[-1])
    for key, engine in engines.items():
        engine.started = latest.get((key.namespace, key.pod))


def _file_rejections(engines: dict[EngineKey, EngineSeries]) -> None:
    """A server counts for all engine cores behind it. The first of its pod carries that, so that a sum is right."""
    for key in [
        key for key, engine in engines.items() if set(engine.counters) == {OF_THE_SERVER} and not engine.gauges
    ]:
        counted = engines.pop(key).counters[OF_THE_SERVER]
        cores = [other for other in engines if (other.namespace, other.pod) == (key.namespace, key.pod)]
        if cores:
            engines[min(cores)].counters[OF_THE_SERVER] = counted


def _refuse_stranger(engine: EngineSeries, series: Series) -> None:
    """Raise OddSeries for growth at an address where no requests of this engine are shown: it would be added up."""
    address = series.labels.get("instance", "")
    if engine.addresses and address not in engine.addresses:
        raise OddSeries(f"{address or 'something without an address'} reports histograms as this engine")


def _refuse_counters_alone(engines: Mapping[EngineKey, EngineSeries]) -> None:
    """Say of what counts tokens and shows no requests that it cannot be diagnosed: left out, it would seem healthy."""
    told = {(key.namespace, key.pod) for key, engine in engines.items() if Meaning.RUNNING in engine.gauges}
    for key, engine in engines.items():
        counters = [one for parts in engine.counters.values() for one in parts.values()]
        if counters and not engine.gauges and (key.namespace, key.pod) not in told:
            engine.unreadable = engine.unreadable or COUNTERS_ALONE
            engine.labels = engine.labels or counters[0].labels


def _keep(shelf: dict[_Shelf, Series], place: _Shelf, series: Series) -> None:
    """Put `series` on the shelf unless a better one is there: a newer name first, then the one that was seen last.

    Two series of one engine and name differ in a label that we do not know: a pod that came back under another
    address, a relabelling. The older of the two has ended. Where both go on, nobody can tell which one is the engine's:
    two scrape jobs, two models, or another pod with its labels. Raises OddSeries.
    """
    there = shelf.get(place)
    if there is not None and there.name == series.name and _go_on_together(there, series):
        differ = sorted(
            label for label in {*there.labels, *series.labels} if there.labels.get(label) != series.labels.get(label)
        )
        raise OddSeries(f"two series of {series.name} report as this engine; they differ in {', '.join(differ)}")
    if there is None or _rank(series) > _rank(there):
        shelf[place] = series


def _go_on_together(one: Series, other: Series) -> bool:
    """Whether two samples of each lie within the time of the other one."""
    begin, end = max(one.times[0], other.times[0]), min(one.times[-1], other.times[-1])
    return all(sum(begin <= time <= end for time in each.times) > 1 for each in (one, other))


def _rank(series: Series) -> tuple[int, float]:
    family, _ = _split(series.name)
    return -NAMES[canonical_names()[family]].names.index(family), series.times[-1]


def _split(name: str) -> tuple[str, str]:
    for end in ("_sum", "_count"):
        if name.endswith(end):
            return name.removesuffix(end), end
    return name, ""


def _names_of(kind: Kind) -> tuple[str, ...]:
    return tuple(name for entry in NAMES.values() if entry.kind is kind for name in entry.names)
