"""Which services the verdict is tried on: engine, lengths, load, routing and objectives, drawn by seed.

Must not: play anything, or know how a verdict is found.

| drawn | range | why |
|---|---|---|
| engine | every profile of the simulator at every measured TP | what measured curves exist for |
| replicas beside the candidate | 2 to 4 | a canary needs two; from 3 there is a fresh baseline pod |
| median prompt, output | 100 to 2,000, 40 to 400 tokens, p95 2 to 4 times that | chat, retrieval, code |
| mean batch of a pod | 2 to 64, at most 60 % of what the KV pool holds, at most 2.5 requests/s | from idle to busy |
| seats | half: plenty; half: 1.0 to 1.4 times the mean batch | with and without a queue |
| rate over time | a third each: constant, a swing of 20 to 50 % in 10 to 40 min, steps of that size | load moves |
| burstiness | 1 to 2 | measured chat: 1.09; gateways with retries: more |
| routing | random, round robin, least outstanding | kube-proxy, ingress, inference gateway |
| shared beginning of prompts | half: none; half: 0.5 to 2 times the median prompt | cold prefix cache of a new pod |
| jitter of steps | 0 to 0.15 | recordings of real engines |
| speed of a pod | log-normal, 1.5 % | GPUs of one type differ. Our choice, unmeasured |
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.closedloop.capacity import Means, engine_of, kv_batch, means_of, rate_at, step_seconds
from benchmarks.closedloop.hardware import hardware_of
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.lengths import LogNormal
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.traffic import Mix

__all__ = ["FRESH_BASELINE_FROM", "POD_SPEED_SPREAD", "Case", "draw_case"]

FRESH_BASELINE_FROM: Final = 3
"""Replicas from which the reference is one pod that starts with the candidate. Design, changes.md item 2."""
POD_SPEED_SPREAD: Final = 0.015
"""Standard deviation of the logarithm of a pod's speed."""
MOST_REQUESTS: Final = 2.5
"""Requests per second of one pod. More of them say more: fewer are the harder case, and faster to play."""
ROUTINGS: Final = (Routing.RANDOM, Routing.ROUND_ROBIN, Routing.LEAST_OUTSTANDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One service under one load."""

    seed: int
    name: str
    engine: EngineConfig
    replicas: int
    """Of the old configuration, beside the candidate and the fresh baseline."""
    mix: Mix
    rate: RateCurve
    """Requests per second over all pods."""
    burstiness: float
    routing: Routing
    growing_share: float
    """Part of a step that grows with the batch."""

    @property
    def fresh_baseline(self) -> bool:
        """Whether the reference is a pod as new as the candidate."""
        return self.replicas >= FRESH_BASELINE_FROM

    def step_factor(self, tpot: float) -> float:
        """How much longer steps must be for a TPOT `tpot` times as long: the batch grows with the steps.

        A step is f * (s0 + s1 * batch), the batch is rate * output * step; solved for f.
        """
        return tpot / (1 + (tpot - 1) * self.growing_share)


def draw_case(seed: int) -> Case:
    """Return the case of this seed."""
    source = np.random.default_rng([seed, 71])

    def between(low: float, high: float) -> float:
        return float(source.uniform(low, high))

    def log_between(low: float, high: float) -> float:
        return float(np.exp(source.uniform(np.log(low), np.log(high))))

    hardware = hardware_of(None)
    chosen = hardware[int(source.integers(len(hardware)))]
    engine = engine_of(chosen)
    prompt, output = log_between(100, 2000), log_between(40, 400)
    mix = Mix(
        prompt=LogNormal(p50=prompt, p95=prompt * between(2, 4), longest=6000),
        output=LogNormal(p50=output, p95=output * between(2, 4), longest=4000),
        shared_tokens=int(prompt * between(0.5, 2.0)) * int(source.integers(2)),
    )
    mean = means_of(mix)
    means = Means(prompt=mean.prompt + mix.shared_tokens, output=mean.output)
    batch = min(log_between(2, 64), 0.6 * kv_batch(engine, means))
    while rate_at(engine, means, batch=batch) > MOST_REQUESTS:
        batch *= 0.9
    tight_seats = max(2, round(batch * between(1.0, 1.4)))
    seats = tight_seats if source.integers(2) else engine.max_num_seqs
    step = step_seconds(engine, means, batch=batch)
    replicas = int(source.integers(2, 5))
    pods = replicas + (2 if replicas >= FRESH_BASELINE_FROM else 1)
    return Case(
        seed=seed,
        name=chosen.name,
        engine=replace(engine, max_num_seqs=seats, jitter=between(0, 0.15)),
        replicas=replicas,
        mix=mix,
        rate=_rate(rate_at(engine, means, batch=batch) * pods, source),
        burstiness=between(1, 2),
        routing=ROUTINGS[int(source.integers(3))],
        growing_share=1 - step_seconds(engine, means, batch=0) / step,
    )


def _rate(mean: float, source: np.random.Generator) -> RateCurve:
    kind, swing, period = source.integers(3), float(source.uniform(0.2, 0.5)), float(source.integers(600, 2401))
    if kind == 0:
        return RateCurve.constant(mean)
    if kind == 1:
        ratio = (1 + swing / 2) / (1 - swing / 2)
        return RateCurve.diurnal(mean, peak_to_trough=ratio, period=period, peak_at=float(source.uniform(0, period)))
    halves = [(0.0, mean * (1 - swing / 2)), (period / 2, mean * (1 + swing / 2))]
    return RateCurve.steps(halves, period=period)
