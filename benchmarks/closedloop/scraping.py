"""Every pod's metrics, at its own moments of virtual time, where decisions look for them.

Two readers: the product asks a `Recording` as it would ask a Prometheus; rivals read gauges of the last minutes.
Both see the same scrapes, and neither sees anything during an outage. Must not: fill a gap.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.pods import EPOCH, NAMESPACE, Pod
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.simulation.scrapes import scraped

__all__ = ["TICK", "Gauges", "Scraper"]

TICK: Final = 15
"""Seconds between the operator's looks, and between those of the rivals' controllers."""
KEPT: Final = WindowSettings().long + 300
"""Seconds of samples kept: what the longest question looks back on, and one raw window more for its edge."""
FORGET_EVERY: Final = 300.0
"""Seconds between two clearances of what is older."""
GAUGES_KEPT: Final = 64
"""Scrapes of gauges kept for the rivals, whose longest window is a minute; staleness is told by the rest."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One scrape of one pod."""

    time: float
    running: float
    waiting: float
    kv: float
    prompt_tokens: float = 0.0
    """Computed since the start of the engine, as the next two."""
    generated_tokens: float = 0.0
    finished: float = 0.0
    pool_tokens: float = 0.0
    """Tokens that the KV pool holds, as `vllm:cache_config_info` tells."""


@dataclass(slots=True)
class Scraper:
    """Scrapes a fleet. The recording's clock is Unix time, as everywhere in the product."""

    recording: Recording = field(default_factory=Recording)
    gauges: dict[str, deque[Gauges]] = field(default_factory=dict)
    """By pod name, newest last; pods that went away are left out."""
    records: bool = True
    """Whether the whole page is kept; rivals look at gauges only, and a page costs more than the engine behind it."""

    _forget_at: float = 0.0

    def until(self, cluster: SimulatedCluster, now: float) -> None:
        """Let the cluster come to `now`, and scrape each ready pod on the way when its turn is."""
        noise, since = cluster.scenario.noise, cluster.now
        due = [
            (at, pod)
            for pod in cluster.ready
            if pod.virtual is not None
            for at in noise.scrapes(pod.virtual.number, after=since, until=now)
        ]
        for at, pod in sorted(due, key=lambda one: one[0]):
            if at > cluster.now:
                cluster.advance(at)
            if pod.ready and cluster.scraped:
                self._scrape(pod, cluster)
        if now > cluster.now:
            cluster.advance(now)
        serving = {pod.name for pod in cluster.ready}
        self.gauges = {name: kept for name, kept in self.gauges.items() if name in serving}
        if self.records and cluster.now >= self._forget_at:
            self._forget_at = cluster.now + FORGET_EVERY
            self.recording.forget(before=EPOCH.timestamp() + cluster.now - KEPT)

    def _scrape(self, pod: Pod, cluster: SimulatedCluster) -> None:
        virtual = pod.virtual
        assert virtual is not None
        assert virtual.engine is not None
        if self.records:
            at = EPOCH.timestamp() + cluster.now
            for metric, labels, value in scraped(virtual, extra={"namespace": NAMESPACE}):
                self.recording.add(Sample(metric, labels, value, None), time=at)
        metrics = virtual.engine.metrics
        kept = self.gauges.setdefault(pod.name, deque(maxlen=GAUGES_KEPT))
        kept.append(
            Gauges(
                cluster.now,
                metrics.running,
                metrics.waiting,
                metrics.kv_usage,
                prompt_tokens=metrics.prompt_tokens,
                generated_tokens=metrics.generation_tokens,
                finished=metrics.finished["stop"] + metrics.finished["length"],
                pool_tokens=(virtual.config.num_gpu_blocks - 1) * virtual.config.block_size,
            )
        )
