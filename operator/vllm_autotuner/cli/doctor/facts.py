"""The facts that the doctor checks, from six queries of a Prometheus or two scrapes of the engines.

Must not: judge. None means "not collected", and the checks skip it.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from vllm_autotuner.engine.metric_names import CACHE_INFO, NAMES, OF_THE_SERVER, Kind, Meaning
from vllm_autotuner.observation.access import Access, PrometheusAddress
from vllm_autotuner.observation.errors import Unreadable, Unusable
from vllm_autotuner.observation.label_matchers import selector
from vllm_autotuner.observation.metrics_text import Sample, read_samples
from vllm_autotuner.observation.prometheus import PageReader
from vllm_autotuner.observation.questions import IDENTITY
from vllm_autotuner.observation.scrape import SCRAPE_TIMEOUT, ScrapeTarget
from vllm_autotuner.observation.series import STALE_AFTER_INTERVALS, Series
from vllm_autotuner.observation.snapshot import EngineKey

__all__ = ["JUDGED", "EngineFacts", "Facts", "facts_of_engines", "facts_of_prometheus"]

JUDGED: Final = (Meaning.TTFT, Meaning.TPOT, Meaning.ITL)
"""Histograms that objectives are held against."""
BACK: Final = timedelta(minutes=10)
"""How far back scrapes are looked for: an engine that went silent must still be seen. Our choice."""
RESETS_BACK: Final = timedelta(minutes=30)
"""How far back counters are watched for falls. Our choice: the long window of a diagnosis."""


@dataclass(slots=True)
class EngineFacts:
    """One engine."""

    names: set[str] = field(default_factory=set)
    """Names of the families it exports, as in `NAMES`; histograms by their buckets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of its running gauge."""
    scrapers: list[Mapping[str, str]] = field(default_factory=list)
    """The labels of each live series of its running gauge: more than one means that it is scraped twice."""
    interval: float | None = None
    age: float | None = None
    """Seconds since its last scrape, by the server's clock."""
    edges: dict[Meaning, set[float]] = field(default_factory=dict)
    resets: float | None = None
    info: Mapping[str, str] | None = None


@dataclass(slots=True, kw_only=True)
class Facts:
    """Everything that the checks are given."""

    place: str
    scraped: bool
    """Whether a Prometheus scrapes the engines: then labels, intervals and clocks matter."""
    skew: float | None = None
    """Seconds that our clock is ahead of the server's; between the two times that the question was on its way."""
    engines: dict[EngineKey, EngineFacts] = field(default_factory=dict)
    routers: dict[EngineKey, int] = field(default_factory=dict)
    """What repeats the gauges of engines, and of how many."""
    warnings: list[str] = field(default_factory=list)

    def engine(self, key: EngineKey) -> EngineFacts:
        """The facts of an engine, begun when it is new."""
        return self.engines.setdefault(key, EngineFacts())


def facts_of_prometheus(address: PrometheusAddress, *, place: str, now: Callable[[], float]) -> Facts:
    """Ask a Prometheus. Raises SourceError; Denied when it does not let us in."""
    # Not for those who only ask other commands: the library and its requests take longer to import than all else.
    from vllm_autotuner.observation.prometheus_probe import PrometheusProbe

    probe = PrometheusProbe(address)
    try:
        facts = Facts(place=place, scraped=True)
        asked = now()
        server = _clock(probe.instant("time()"), place=place)
        facts.skew = (asked + now()) / 2 - server
        only = selector(match=address.match)
        running = selector(f'__name__=~"{"|".join(NAMES[Meaning.RUNNING].names)}"', match=address.match)
        for series in probe.instant(f"{running}[{_seconds(BACK)}s]"):
            _note_scrapes(facts.engine(_key(series.labels)), series, server=server)
        by = ", ".join(IDENTITY)
        # Not as of now: one scrape that fails takes every series away until the next.
        lately = f"[{_seconds(_lately(facts))}s]"
        present = selector(f'__name__=~"{"|".join(_presence())}"', match=address.match)
        for series in probe.instant(f"group by (__name__, {by}) (last_over_time({present}{lately}))"):
            facts.engine(_key(series.labels)).names.add(series.name.removesuffix("_bucket"))
        buckets = "|".join(f"{name}_bucket" for meaning in JUDGED for name in NAMES[meaning].names)
        judged = selector(f'__name__=~"{buckets}"', match=address.match)
        for series in probe.instant(f"group by (__name__, le, {by}) (last_over_time({judged}{lately}))"):
            _note_edge(facts.engine(_key(series.labels)), series.name, series.labels.get("le", ""))
        counter = NAMES[Meaning.GENERATION_TOKENS].names[0]
        for series in probe.instant(f"sum by ({by}) (resets({counter}{only}[{_seconds(RESETS_BACK)}s]))"):
            facts.engine(_key(series.labels)).resets = series.values[-1]
        for series in probe.instant(f"last_over_time({CACHE_INFO}{only}{lately})"):
            facts.engine(_key(series.labels)).info = series.labels
        facts.warnings = list(dict.fromkeys(probe.warnings))
        # An engine of which only remains are left (a counter, an info) is no engine.
        facts.engines = {key: engine for key, engine in facts.engines.items() if engine.scrapers or engine.names}
        _join_servers(facts.engines)
        _set_routers_apart(facts)
        return facts
    finally:
        probe.close()


async def facts_of_engines(targets: Sequence[ScrapeTarget], *, access: Access) -> Facts:
    """Read each engine's page. Raises SourceError."""
    reader = PageReader(timeout=SCRAPE_TIMEOUT, access=access)
    try:
        pages = await asyncio.gather(*(reader.fetch(target.url) for target in targets))
    finally:
        await reader.close()
    facts = Facts(place=" ".join(target.place for target in targets), scraped=False)
    for target, page in zip(targets, pages, strict=True):
        try:
            for sample in read_samples(page.splitlines()):
                _note_sample(facts, sample, pod=target.pod or target.place)
        except Unreadable as error:
            raise Unreadable(f"{target.place} does not answer with metrics ({error})") from error
    _join_servers(facts.engines)
    _set_routers_apart(facts)
    return facts


def _clock(answer: Sequence[Series], *, place: str) -> float:
    if len(answer) != 1 or not math.isfinite(answer[0].values[-1]):
        raise Unusable(f"{place} does not say what time it is: it answers the query time() with no number")
    return answer[0].values[-1]


def _join_servers(engines: dict[EngineKey, EngineFacts]) -> None:
    """What a server counts is told of each engine core behind it; a server is no engine."""
    of_servers = set(NAMES[OF_THE_SERVER].names)
    for key in [key for key, engine in engines.items() if engine.names and engine.names <= of_servers]:
        names = engines.pop(key).names
        for other, engine in engines.items():
            if (other.namespace, other.pod) == (key.namespace, key.pod):
                engine.names |= names


def _set_routers_apart(facts: Facts) -> None:
    """A series with the address of an engine in its label `server` is a router's view of that engine."""
    for key, engine in list(facts.engines.items()):
        seen = {one["server"] for one in engine.scrapers if "://" in one.get("server", "")}
        if seen:
            facts.routers[key] = len(seen)
            del facts.engines[key]


def _note_sample(facts: Facts, sample: Sample, *, pod: str) -> None:
    labels = dict(sample.labels)
    name = sample.name.removesuffix("_bucket")
    if name not in _known() and name != CACHE_INFO:
        return
    engine = facts.engine(EngineKey("", pod, labels.get("engine", "")))
    engine.names.add(name)
    if name == CACHE_INFO:
        engine.info = labels
    elif "le" in labels:
        _note_edge(engine, sample.name, labels["le"])
    elif name in NAMES[Meaning.RUNNING].names:
        engine.labels = labels
        engine.scrapers.append(labels)


def _note_scrapes(engine: EngineFacts, series: Series, *, server: float) -> None:
    age = server - series.times[-1]
    engine.interval = max(filter(None, (engine.interval, series.pace)), default=None)
    if engine.age is None or age < engine.age:
        engine.age, engine.labels = age, series.labels
    # The series of a pod that came back under another address ends; two that both go on are two scrapes of one engine.
    if series.pace is not None and not series.is_stale(at=server, interval=series.pace):
        engine.scrapers.append(series.labels)


def _lately(facts: Facts) -> timedelta:
    """How far back a series counts as exported: as long as its engine is not silent."""
    paces = [engine.interval for engine in facts.engines.values() if engine.interval is not None]
    return min(BACK, timedelta(seconds=math.ceil(STALE_AFTER_INTERVALS * max(paces)))) if paces else BACK


def _note_edge(engine: EngineFacts, name: str, edge: str) -> None:
    for meaning in JUDGED:
        if name.removesuffix("_bucket") in NAMES[meaning].names:
            with suppress(ValueError):  # an edge that is no number measures nothing
                if (upper := float(edge)) >= 0:
                    engine.edges.setdefault(meaning, set()).add(upper)


def _key(labels: Mapping[str, str]) -> EngineKey:
    return EngineKey(
        labels.get("namespace", ""), labels.get("pod") or labels.get("instance", ""), labels.get("engine", "")
    )


def _known() -> frozenset[str]:
    return frozenset(name for entry in NAMES.values() for name in entry.names)


def _presence() -> Iterable[str]:
    for entry in NAMES.values():
        yield from (re.escape(f"{name}_bucket" if entry.kind is Kind.HISTOGRAM else name) for name in entry.names)


def _seconds(duration: timedelta) -> int:
    return round(duration.total_seconds())
