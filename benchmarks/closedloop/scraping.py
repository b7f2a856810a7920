"""Every pod's metrics, every 15 s of virtual time, where decisions look for them.

Two readers: the product asks a `Recording` as it would ask a Prometheus; rivals read three gauges over the last minute.
Both see the same scrapes, and neither sees anything during an outage. Must not: fill a gap.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.closedloop.fleet import EPOCH, NAMESPACE, Fleet
from benchmarks.closedloop.pod import Phase
from vllm_autotuner.engine.metric_names import CACHE_INFO, canonical_names
from vllm_autotuner.observation.exposition import Sample
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.simulation.exposition import Family, cache_config_labels, families
from vllm_autotuner.simulation.metrics import Histogram
from vllm_autotuner.simulation.scheduler import SimulatedEngine

__all__ = ["INTERVAL", "Gauges", "Scraper", "samples_of"]

INTERVAL: Final = 15
"""Seconds between scrapes, and between the operator's looks (architecture: one fleet loop every 15 s)."""
KEPT: Final = WindowSettings().long + 300
"""Seconds of samples kept: what the longest question looks back on, and one raw window more for its edge."""
GAUGES_KEPT: Final = 600
"""Seconds of gauges kept for the rivals, of which the longest window is a minute; staleness is told by the rest."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One scrape of one pod."""

    time: float
    running: float
    waiting: float
    kv: float


@dataclass(slots=True)
class Scraper:
    """Scrapes a fleet. The recording's clock is Unix time, as everywhere in the product."""

    recording: Recording = field(default_factory=Recording)
    gauges: dict[str, deque[Gauges]] = field(default_factory=dict)
    """By pod name, newest last; pods that went away are left out."""

    def scrape(self, fleet: Fleet) -> None:
        """Read every ready pod, unless metrics are out."""
        serving = {pod.name: pod for pod in fleet.pods if pod.phase is Phase.READY}
        self.gauges = {name: kept for name, kept in self.gauges.items() if name in serving}
        at = EPOCH.timestamp() + fleet.now
        self.recording.forget(before=at - KEPT)
        if not fleet.scraped:
            return
        for name, pod in serving.items():
            assert pod.engine is not None
            for sample in samples_of(pod.engine, pod=name):
                self.recording.add(sample, time=at)
            metrics = pod.engine.metrics
            kept = self.gauges.setdefault(name, deque(maxlen=GAUGES_KEPT // INTERVAL))
            kept.append(Gauges(fleet.now, metrics.running, metrics.waiting, metrics.kv_usage))


def samples_of(engine: SimulatedEngine, *, pod: str) -> Iterable[Sample]:
    """The samples that the product asks for, of one page of `/metrics`, without going through its text."""
    wanted = canonical_names()
    common = {"model_name": engine.config.model_name, "engine": "0", "namespace": NAMESPACE, "pod": pod}
    for family in families(engine.metrics):
        if family.name in wanted or f"{family.name}_total" in wanted:
            yield from _samples(family, common)
    labels = {**cache_config_labels(engine.config), "namespace": NAMESPACE, "pod": pod}
    yield Sample(CACHE_INFO, _sorted(labels), 1.0, None)


def _samples(family: Family, common: Mapping[str, str]) -> Iterable[Sample]:
    if not isinstance(family.values, Histogram):
        suffix = "_total" if family.kind == "counter" else ""
        for labels, value in family.values:
            yield Sample(f"{family.name}{suffix}", _sorted({**common, **labels}), float(value), None)
        return
    below = 0
    for edge, count in zip((*map(repr, family.values.edges), "+Inf"), family.values.counts, strict=True):
        below += count
        yield Sample(f"{family.name}_bucket", _sorted({**common, "le": edge}), float(below), None)
    yield Sample(f"{family.name}_count", _sorted(common), float(below), None)
    yield Sample(f"{family.name}_sum", _sorted(common), family.values.total, None)


def _sorted(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
