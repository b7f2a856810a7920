"""Plays one service with the simulator, and records what a Prometheus would have scraped of it.

The changed service gets the same requests, and has its setting from the start: compared are two steady states, not the
way from one to the other. Must not: diagnose or judge.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.randomservices.drawing import Odd, Service
from benchmarks.slow_engines import slower
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.engine.metric_names import PROCESS_START
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.configuration import EngineConfig, configure
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.ledger import Period
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.simulated_pod import VirtualPod
from vllm_autotuner.simulation.traffic import Content, OpenLoop
from vllm_autotuner.simulation.virtual import VirtualFleet

__all__ = ["EPOCH", "Gauges", "Played", "play"]

EPOCH: Final = 1_800_000_000.0
"""Unix seconds at second 0."""
SLOWER: Final = 2.5
"""Times a step of the slow replica."""
COLD_FOR: Final = 100.0
"""Seconds before the diagnosis at which the cold replica became ready."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One replica at one moment. KV usage 0..1."""

    pod: str
    running: int
    waiting: int
    kv: float
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened, and what was scraped of it."""

    config: EngineConfig
    replicas: int
    seen: Period
    """The second half of the time before the diagnosis."""
    judged: Period
    """The time after it."""
    gauges: Sequence[Gauges]
    """Of the same time as `seen`."""
    recording: Recording

    @property
    def gpus(self) -> int:
        """Of all replicas."""
        return self.replicas * self.config.tensor_parallel_size


def play(service: Service, *, flags: EngineFlags, replicas: int, scraped_too: bool = True) -> Played:
    """Play the service with these flags and replicas. Raises StartupRefused as the engine would.

    `scraped_too`: record what is scraped; of a service that nobody will diagnose that is only work.
    """
    config = configure(flags, profile=service.profile)
    rate = RateCurve.constant(service.rate)
    traffic = OpenLoop(rate, Content(service.mix), burstiness=service.burstiness, seed=service.seed)
    fleet = VirtualFleet(traffic, routing=service.routing, seed=service.seed)
    for index in range(replicas):
        _start(fleet, service, config=config, odd=service.odd if index == replicas - 1 else Odd.NONE)
    recording, gauges = Recording(), list[Gauges]()
    dice = random.Random(f"scrapes of {service.seed}")
    lost: dict[str, bool] = {}
    at = dice.uniform(1, service.interval)
    while at <= service.seen:
        fleet.advance(at)
        for pod in fleet.pods:
            lost[pod.name] = dice.random() < service.lost and not lost.get(pod.name)
            if scraped_too and not lost[pod.name]:
                _record(recording, pod, at=at)
            if at > service.seen / 2:
                gauges += _looked(pod)
        at += service.interval
    fleet.advance(service.seen)
    end = service.seen + service.judged
    fleet.advance(end)
    return Played(
        config=config,
        replicas=replicas,
        seen=fleet.ledger.between(service.seen / 2, service.seen),
        judged=fleet.ledger.between(service.seen, end),
        gauges=gauges,
        recording=recording,
    )


def _start(fleet: VirtualFleet, service: Service, *, config: EngineConfig, odd: Odd) -> None:
    match odd:
        case Odd.NONE:
            fleet.start_pod(config)
        case Odd.SLOW:
            fleet.start_pod(slower(config, factor=SLOWER))
        case Odd.HANGS:
            fleet.start_pod(config, faults=Faults(wedge_after=0.75 * service.seen))
        case Odd.COLD:
            fleet.start_pod(config, startup=service.seen - COLD_FOR)


def _record(recording: Recording, pod: VirtualPod, *, at: float) -> None:
    if pod.engine is None:
        return
    for name, labels, value in scraped(pod):
        recording.add(Sample(name=name, labels=labels, value=value, time=None), time=EPOCH + at)
    started = Sample(name=PROCESS_START, labels=(("pod", pod.name),), value=EPOCH + pod.engine.started, time=None)
    recording.add(started, time=EPOCH + at)


def _looked(pod: VirtualPod) -> list[Gauges]:
    if pod.engine is None:
        return []
    seen = pod.engine.metrics
    return [Gauges(pod.name, seen.running, seen.waiting, seen.kv_usage, seen.preemptions)]
