"""One simulated service under one load, and the operator's diagnosis of what a Prometheus would have scraped.

Apart from the sweep, which runs many. The diagnosis is that of `evaluation`: scrapes go into a recording as they would
from a real engine. Must not: hold a threshold, or print.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.evaluate.evaluation import Evaluated, ServiceReport, Subject, evaluate
from vllm_autotuner.cli.evaluate.moments import REMOTE_TICK, Schedule
from vllm_autotuner.cli.evaluate.service_groups import one_service
from vllm_autotuner.cli.simulate.request import Load
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.simulation.configuration import EngineConfig, configure
from vllm_autotuner.simulation.ledger import Ledger, Period
from vllm_autotuner.simulation.profiles import ProfileDocument
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.simulated_pod import VirtualPod
from vllm_autotuner.simulation.virtual import VirtualFleet

__all__ = ["Gauges", "Run", "Scenario", "run"]

SCRAPE: Final = 5.0
"""Seconds between scrapes: as often as Prometheus is set to for a service that is watched closely."""
SLOW_SCRAPE: Final = 15.0
"""The same for runs above `LONG_RUN`: a third of the memory. What Prometheus is often set to."""
LONG_RUN: Final = 7200.0
"""Seconds. A run of this length holds about half a million samples per engine."""
RUN_IN: Final = 60.0
"""Seconds before the measured time from which the operator looks: it names a class after several looks agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One service and its load. Seconds."""

    flags: EngineFlags
    profile: ProfileDocument
    replicas: int
    load: Load
    warm_up: float
    measured: float
    seed: int
    subject: Subject


@dataclass(frozen=True, slots=True)
class Gauges:
    """One scrape of all pods. KV usage 0..1."""

    time: float
    running: int
    waiting: int
    kv_mean: float
    kv_most: float
    """Of the fullest pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of it. Everything but `gauges` and `ledger` is of the measured time only."""

    scenario: Scenario
    config: EngineConfig
    period: Period
    ledger: Ledger
    gauges: Sequence[Gauges]
    arrived: int
    unanswered: int
    """Requests still under way at the end."""
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    report: ServiceReport

    @property
    def measured_gauges(self) -> Sequence[Gauges]:
        """The scrapes of the measured time."""
        return [each for each in self.gauges if each.time > self.scenario.warm_up]

    @property
    def classes(self) -> Sequence[tuple[DiagnosisClass, float]]:
        """Each class that was named, with the part of the time that it was; the longest first."""
        named = [point.diagnosis.primary for point in self.report.timeline]
        found = sorted(set(named), key=lambda each: (-named.count(each), each.value))
        return [(each, named.count(each) / len(named)) for each in found]

    @property
    def judged(self) -> Evaluated:
        """The last judgement that named the class which held longest."""
        longest, _ = self.classes[0]
        return [point for point in self.report.timeline if point.diagnosis.primary is longest][-1]


def run(scenario: Scenario, *, passed: Callable[[float], None] = lambda seconds: None) -> Run:
    """Simulate. `passed` hears of virtual seconds as they go by. Raises StartupRefused as the engine would."""
    config = configure(scenario.flags, profile=scenario.profile.profile)
    fleet = VirtualFleet(scenario.load.traffic(scenario.seed), seed=scenario.seed)
    for _ in range(scenario.replicas):
        fleet.start_pod(config)
    recording, gauges = Recording(), list[Gauges]()
    end = scenario.warm_up + scenario.measured
    before, arrived_before = (0, 0, 0), 0
    for at in _scrape_times(scenario.warm_up, end):
        passed(at - fleet.now)
        fleet.advance(at)
        gauges.append(_looked(fleet.pods, at=at))
        for pod in fleet.pods:
            for name, labels, value in scraped(pod):
                recording.add(Sample(name=name, labels=labels, value=value, time=None), time=at)
        if at == scenario.warm_up:
            before, arrived_before = _counted(fleet.pods), fleet.arrived
    grown = [now - then for now, then in zip(_counted(fleet.pods), before, strict=True)]
    return Run(
        scenario=scenario,
        config=config,
        period=fleet.ledger.between(scenario.warm_up, end),
        ledger=fleet.ledger,
        gauges=gauges,
        arrived=fleet.arrived - arrived_before,
        unanswered=fleet.in_flight,
        preemptions=grown[0],
        prompt_tokens=grown[1],
        generation_tokens=grown[2],
        report=asyncio.run(_judged(recording, scenario=scenario, config=config)),
    )


def _scrape_times(warm_up: float, end: float) -> list[float]:
    """Evenly, and where measuring begins and ends: counters are read there."""
    step = SCRAPE if end <= LONG_RUN else SLOW_SCRAPE
    evenly = (step * index for index in range(1, int(end / step) + 1))
    return sorted({*evenly, *({warm_up} - {0.0}), end})


def _looked(pods: Sequence[VirtualPod], *, at: float) -> Gauges:
    seen = [pod.engine.metrics for pod in pods if pod.engine is not None]
    return Gauges(
        at,
        running=sum(each.running for each in seen),
        waiting=sum(each.waiting for each in seen),
        kv_mean=sum(each.kv_usage for each in seen) / len(seen),
        kv_most=max(each.kv_usage for each in seen),
    )


def _counted(pods: Sequence[VirtualPod]) -> tuple[int, int, int]:
    seen = [pod.engine.metrics for pod in pods if pod.engine is not None]
    return (
        sum(each.preemptions for each in seen),
        sum(each.prompt_tokens for each in seen),
        sum(each.generation_tokens for each in seen),
    )


async def _judged(recording: Recording, *, scenario: Scenario, config: EngineConfig) -> ServiceReport:
    """Evaluate the recording with the operator's own functions, at its interval."""
    end = scenario.warm_up + scenario.measured
    count = max(1, int((scenario.measured + min(RUN_IN, scenario.warm_up)) / REMOTE_TICK))
    ticks = tuple(end - REMOTE_TICK * index for index in range(count - 1, -1, -1))
    # Here, other than in a cluster, every setting is known.
    knobs = EngineKnobs(
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        kv_cache_dtype=config.kv_cache_dtype,
        tensor_parallel_size=config.tensor_parallel_size,
    )
    (report,) = await evaluate(
        recording,
        schedule=Schedule(ticks=ticks, shown=frozenset(tick for tick in ticks if tick > scenario.warm_up)),
        grouping=one_service,
        subject=replace(scenario.subject, knobs=knobs),
        settings=WindowSettings(),
    )
    return report
