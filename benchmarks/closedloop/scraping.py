"""Every pod's metrics, every 15 s of virtual time, where decisions look for them.

Two readers: the product asks a `Recording` as it would ask a Prometheus; rivals read three gauges over the last minute.
Both see the same scrapes, and neither sees anything during an outage. Must not: fill a gap.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.pods import EPOCH, NAMESPACE
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.simulation.scrapes import scraped

__all__ = ["INTERVAL", "Gauges", "Scraper"]

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

    def scrape(self, cluster: SimulatedCluster) -> None:
        """Read every ready pod, unless metrics are out."""
        serving = {pod.name: pod.virtual for pod in cluster.ready if pod.virtual is not None}
        self.gauges = {name: kept for name, kept in self.gauges.items() if name in serving}
        at = EPOCH.timestamp() + cluster.now
        self.recording.forget(before=at - KEPT)
        if not cluster.scraped:
            return
        for name, pod in serving.items():
            for metric, labels, value in scraped(pod, extra={"namespace": NAMESPACE}):
                self.recording.add(Sample(metric, labels, value, None), time=at)
            assert pod.engine is not None
            metrics = pod.engine.metrics
            kept = self.gauges.setdefault(name, deque(maxlen=GAUGES_KEPT // INTERVAL))
            kept.append(Gauges(cluster.now, metrics.running, metrics.waiting, metrics.kv_usage))
