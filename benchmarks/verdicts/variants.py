"""Both arms of a change in virtual time: pods of old and new, one load, and what the product measures of each.

Apart from the error rates, because this is slow: minutes of many engines for one row of pairs. Measured through the
product's own path (scrapes, snapshot, observation, `measure_per_pod`): buckets, rates and rounding are of production.
Must not: judge a pair.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from benchmarks.slow_engines import slower
from benchmarks.uneven_routers import Favouring
from benchmarks.verdicts.drawing import POD_SPEED_SPREAD, Case
from vllm_autotuner.api.spec import Profile
from vllm_autotuner.api.status import Measurement
from vllm_autotuner.change.comparison import Pair
from vllm_autotuner.change.verdict import measure_per_pod
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.simulation.routing import Router
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.simulated_pod import VirtualPod
from vllm_autotuner.simulation.traffic import Content, OpenLoop
from vllm_autotuner.simulation.virtual import ClientPatience, VirtualFleet

__all__ = ["SETTLED_AFTER", "WARM_UP", "Bed", "Played", "play", "with_ttft"]

EPOCH: Final = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
SCRAPED_EVERY: Final = 15
"""Seconds. What most Prometheus servers do; the product stretches its window to four scrapes."""
SETTLED_AFTER: Final = 180.0
"""Seconds that the old pods serve before the new ones come: caches warm, queues as they always are."""
WARM_UP: Final = 60.0
"""Seconds without judgement: `spec.tuning.strategy.warmUp` unless the user says otherwise."""
PATIENCE: Final = 120.0
"""Seconds after which a client gives up, so that an overloaded case does not queue for ever."""
NEUTRAL: Final = Target(quantile=0.95, seconds=1.0)
"""Only the quantile matters for a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The pairs of one case. `steps`: how many times as long the steps of the candidate are."""

    case: Case
    steps: float
    pairs: tuple[Pair, ...]


def play(case: Case, *, steps: float, windows: int, seed: int, share: float | None = None) -> Played:
    """Let old and new pods serve side by side, and measure `windows` windows of both arms after the warm-up.

    `share`: of the requests of another pod, what the router sends to the candidate; None routes as the case does.
    """
    router = None if share is None else Favouring(share, seed=seed)
    bed = Bed(case, seed=seed, router=router)
    stable = [bed.start() for _ in range(case.replicas)]
    bed.fleet.advance(SETTLED_AFTER)
    candidate = [bed.start(steps)]
    if router is not None:
        router.favoured = candidate
    reference = [bed.start()] if case.fresh_baseline else stable
    bed.serve(WARM_UP, scraping=(*candidate, *reference))
    found = bed.windows(windows, variants=(candidate, reference))
    return Played(case=case, steps=steps, pairs=tuple(Pair(candidate=ours, reference=theirs) for ours, theirs in found))


def with_ttft(window: Measurement, *, times: float) -> Measurement:
    """The window with its TTFT, quantile and mean, `times` as long."""
    quantile, mean = window.ttft_seconds, window.ttft_mean_seconds
    return window.updated(
        ttft_seconds=None if quantile is None else quantile * times,
        ttft_mean_seconds=None if mean is None else mean * times,
    )


class Bed:
    """The pods of one case under its load, scraped and measured as in production."""

    def __init__(self, case: Case, *, seed: int, router: Router | None = None) -> None:
        traffic = OpenLoop(case.rate, Content(case.mix), burstiness=case.burstiness, seed=seed)
        patience = ClientPatience(timeout=PATIENCE)
        self.fleet = VirtualFleet(traffic, routing=router or case.routing, patience=patience, seed=seed)
        self._case = case
        self._speeds = np.random.default_rng([seed, 72])
        self._recording = Recording()

    def start(self, steps: float = 1.0) -> VirtualPod:
        """Add a pod whose steps take so many times as long, give or take what pods differ by. It is ready at once."""
        factor = steps * float(np.exp(self._speeds.normal(0, POD_SPEED_SPREAD)))
        return self.fleet.start_pod(slower(self._case.engine, factor=factor))

    def serve(self, seconds: float, *, scraping: Sequence[VirtualPod]) -> None:
        """Let time pass, with a scrape of these pods every `SCRAPED_EVERY` seconds."""
        until = self.fleet.now + seconds
        while self.fleet.now < until:
            self.fleet.advance(self.fleet.now + SCRAPED_EVERY)
            at = EPOCH + self.fleet.now
            self._recording.forget(before=at - WindowSettings().gauges - 60)
            for pod in scraping:
                for name, labels, value in scraped(pod, extra={"namespace": "bench"}):
                    self._recording.add(Sample(name, labels, value, None), time=at)

    def windows(self, count: int, *, variants: Sequence[Sequence[VirtualPod]]) -> list[tuple[Measurement, ...]]:
        """Measure each arm over this many windows, one after the other, from now on."""
        found: list[tuple[Measurement, ...]] = []
        length = float(WindowSettings().state)
        while len(found) < count:
            began = self.fleet.now
            self.serve(length, scraping=[pod for variant in variants for pod in variant])
            measured, needed = asyncio.run(self._measured(variants))
            if self.fleet.now - began >= needed:
                found.append(measured)
            length = needed
        return found

    async def _measured(self, variants: Sequence[Sequence[VirtualPod]]) -> tuple[tuple[Measurement, ...], float]:
        """What the product measures of each arm now, and how long its window is."""
        snapshot = await take_snapshot(self._recording, at=EPOCH + self.fleet.now, settings=WindowSettings())
        targets = Targets(profile=Profile.LATENCY, ttft=NEUTRAL, tpot=NEUTRAL)
        names = [{pod.name for pod in variant} for variant in variants]
        seen = [observe(snapshot, [key for key in snapshot.engines if key.pod in variant]) for variant in names]
        return tuple(measure_per_pod(one, targets=targets) for one in seen), snapshot.state_window
