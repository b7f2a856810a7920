"""A thousand hours of healthy services with noise: none is called anything but healthy, idle or too many replicas.

Drawn without an engine, so that it takes seconds: load wanders, bursts queue for a moment, histograms jitter, scrapes
are missed, counters begin again.
"""

from collections import Counter
from random import Random

from tests.builders import NOW, diagnosed, engine, latency, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.observation import Observation, StepPoint

HOURS = 1000
EVERY = 300.0
"""Seconds between two evaluations: twelve in an hour keep the test short; each is as noisy as its neighbours."""
SEATS = 64
FINE = {DiagnosisClass.HEALTHY, DiagnosisClass.IDLE, DiagnosisClass.UNDERUTILIZED}


def window(random: Random, *, pod: str, load: float, scrapes: int) -> EngineWindow:
    """One engine at `load` (0..1 of half of its seats): a queue in at most a fifth of the scrapes, a pool with room."""
    running = [max(0.0, random.gauss(load * SEATS / 2, 0.15 * load * SEATS)) // 1 for _ in range(scrapes)]
    waiting = [0.0] * scrapes
    for _ in range(random.choice((0, 0, 0, 1, 2, 3)) if load > 0 else 0):
        waiting[random.randrange(scrapes)] = random.randint(1, 6)
    kv = [min(0.85, max(0.0, each / SEATS * random.gauss(1.0, 0.1))) for each in running]
    served = load * random.uniform(20, 60) // 1
    return engine(
        pod=pod,
        running=running,
        waiting=waiting,
        kv=kv,
        finished=served,
        prompt_tokens=served * 800,
        generation_tokens=served * 200,
        stalled_for=random.uniform(0, 4) if load > 0 else 3600.0,
        prefill_seconds=served * random.uniform(0.05, 0.15),
        finished_by={"stop": served * 0.7, "length": served * 0.3},
        scrapes=scrapes,
    )


def healthy(random: Random, *, pods: int, load: float, at: float) -> Observation:
    scrapes = random.choice((15, 15, 14, 8))
    base, slope = 0.012, 0.0002
    batch = load * SEATS / 2
    itl = (base + slope * batch) * random.gauss(1.0, 0.08)
    steps = tuple(
        StepPoint(running=each, itl=(base + slope * each) * random.gauss(1.0, 0.1), tokens=random.uniform(100, 5000))
        for each in (random.uniform(0.5, 40) for _ in range(30))
    )
    count = max(1.0, load * 200)
    ttft = 0.15 * random.lognormvariate(0.0, 0.3)
    return observation(
        *(window(random, pod=f"chat-{number}", load=load, scrapes=scrapes) for number in range(pods)),
        # Healthy means inside the objective, which is 2 s at p95.
        ttft=latency(ttft, tail=min(1.9, ttft * random.uniform(1.5, 6)), count=count),
        tpot=latency(itl, tail=itl * random.uniform(1.05, 1.6), count=count),
        itl=latency(itl, tail=itl * random.uniform(1.05, 1.6), count=100 * count),
        queue_time=latency(0.01),
        prefill_time=latency(0.1),
        prompt_length=latency(800, tail=3200, count=1800),
        output_length=latency(200, tail=900, count=1800),
        steps=steps,
        at=at,
    )


def test_a_thousand_noisy_healthy_hours_raise_nothing() -> None:
    random = Random(20261121)
    raised: Counter[str] = Counter()
    evaluations = 0
    for hour in range(HOURS):
        pods, history = random.choice((1, 1, 2, 3)), History()
        # Every tenth hour is quiet; in the others the load wanders.
        load = 0.0 if hour % 10 == 0 else random.uniform(0.05, 1.0)
        for tick in range(int(3600 / EVERY)):
            load = 0.0 if load == 0 else min(1.0, max(0.05, load * random.gauss(1.0, 0.15)))
            found, history = diagnosed(
                healthy(random, pods=pods, load=load, at=NOW + 3600 * hour + EVERY * tick),
                targets=targets(),
                knobs=EngineKnobs(max_num_seqs=random.choice((SEATS, None))),
                history=history,
            )
            evaluations += 1
            if found.primary not in FINE:
                raised[found.message] += 1
    assert evaluations == HOURS * 12
    assert raised == Counter()
