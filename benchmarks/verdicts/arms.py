"""Both arms of a change in virtual time: pods of old and new, one load, and what the product measures of each.

Apart from the error rates, because this is slow: minutes of many engines for one row of pairs. Measured through the
product's own path (scrapes, snapshot, observation, `measure`), so buckets, rates and rounding are those of production.
Must not: judge a pair.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from benchmarks.verdicts.drawing import POD_SPEED_SPREAD, Case
from vllm_autotuner.api.spec import Profile
from vllm_autotuner.change.comparison import Pair
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.exposition import Sample
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.pods import VirtualPod
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.traffic import Content, OpenLoop
from vllm_autotuner.simulation.virtual import ClientPatience, VirtualFleet

__all__ = ["Played", "play"]

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


def play(case: Case, *, steps: float, windows: int, seed: int) -> Played:
    """Let old and new pods serve side by side, and measure `windows` windows of both arms after the warm-up."""
    return asyncio.run(_play(case, steps=steps, windows=windows, seed=seed))


async def _play(case: Case, *, steps: float, windows: int, seed: int) -> Played:
    speeds = np.random.default_rng([seed, 72])
    traffic = OpenLoop(case.rate, Content(case.mix), burstiness=case.burstiness, seed=seed)
    fleet = VirtualFleet(traffic, routing=case.routing, patience=ClientPatience(timeout=PATIENCE), seed=seed)

    def start(factor: float = 1.0) -> VirtualPod:
        factor *= float(np.exp(speeds.normal(0, POD_SPEED_SPREAD)))
        return fleet.start_pod(_slower(case.engine, factor=factor))

    stable = [start() for _ in range(case.replicas)]
    fleet.advance(SETTLED_AFTER)
    candidate = [start(steps)]
    reference = [start()] if case.fresh_baseline else stable
    recording = Recording()
    pairs: list[Pair] = []
    next_window = SETTLED_AFTER + WARM_UP
    while len(pairs) < windows:
        fleet.advance(fleet.now + SCRAPED_EVERY)
        at = EPOCH + fleet.now
        recording.forget(before=at - WindowSettings().gauges - 60)
        for pod in (*candidate, *reference):
            for name, labels, value in scraped(pod, extra={"namespace": "bench"}):
                recording.add(Sample(name, labels, value, None), time=at)
        if fleet.now >= next_window:
            pair, length = await _measured(recording, candidate=candidate, reference=reference, at=at)
            next_window = fleet.now + length
            if fleet.now >= SETTLED_AFTER + WARM_UP + length:
                pairs.append(pair)
    return Played(case=case, steps=steps, pairs=tuple(pairs))


def _slower(engine: EngineConfig, *, factor: float) -> EngineConfig:
    law = engine.law
    slower = replace(
        law,
        base=law.base * factor,
        per_sequence=law.per_sequence * factor,
        per_held_token=law.per_held_token * factor,
        per_prefill_token=law.per_prefill_token * factor,
    )
    return replace(engine, law=slower)


async def _measured(
    recording: Recording, *, candidate: list[VirtualPod], reference: list[VirtualPod], at: float
) -> tuple[Pair, float]:
    snapshot = await take_snapshot(recording, at=at, settings=WindowSettings())
    targets = Targets(profile=Profile.LATENCY, ttft=NEUTRAL, tpot=NEUTRAL)
    ours, theirs = (
        measure(observe(snapshot, [key for key in snapshot.engines if key.pod in names]), targets=targets)
        for names in ({pod.name for pod in candidate}, {pod.name for pod in reference})
    )
    return Pair(candidate=ours, reference=theirs), snapshot.state_window
