"""How many requests per second one replica serves in order, by arithmetic on the simulated engine's own law.

A fluid of sequences with the fluctuation of Poisson arrivals around it, and Erlang's C for who waits for a seat. It
only orders what the oracle then plays exactly, and tells an offline load test's knee. Must not: be used by a policy
that runs, or be told for a figure.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from benchmarks.closedloop.capacity import Means, kv_batch, means_of, step_seconds
from benchmarks.closedloop.scenario import Objectives
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.traffic import Mix

__all__ = ["Demand", "demand_of", "erlang_c", "largest_rate"]

TAIL: Final = 1.3
"""Deviations of the batch at which its steps are judged: tokens of a request see a mean over its life, so less than
the 1.65 of a 95th percentile. Chosen against exact runs; what it misses the exact plays of the oracle find."""
POOL_USED: Final = 0.93
"""Of the KV pool before preemption costs more than the last sequences bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What requests are like, and how unevenly they come."""

    means: Means
    long_prompt: float
    """95th percentile, tokens."""
    burstiness: float


@lru_cache(maxsize=64)
def demand_of(mix: Mix, *, burstiness: float) -> Demand:
    """The demand of a mix."""
    return Demand(means=means_of(mix), long_prompt=mix.prompt.at(0.95), burstiness=burstiness)


def largest_rate(engine: EngineConfig, demand: Demand, *, objectives: Objectives) -> float:
    """Requests per second of one replica up to which both objectives hold; 0 when they never do."""
    low, high = 0.0, 1.0
    while _holds(engine, demand, high, objectives=objectives) and high < MOST:
        low, high = high, 2 * high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _holds(engine, demand, middle, objectives=objectives) else (low, middle)
    return low


MOST: Final = 1e4
"""Requests per second that no replica serves."""


def _holds(engine: EngineConfig, demand: Demand, rate: float, *, objectives: Objectives) -> bool:
    law, means = engine.law, demand.means
    seats = min(float(engine.max_num_seqs), POOL_USED * kv_batch(engine, means))
    prefill = rate * means.prompt * law.per_prefill_token
    if seats < 1 or prefill >= 0.95:
        return False
    # n = rate * output * step, and step = (base + n * (...)) / (1 - prefill): solved for the step.
    growth = law.per_sequence + law.per_held_token * means.held
    room = 1 - prefill - rate * means.output * growth
    free_batch = rate * means.output * law.base / room if room > 0 else math.inf
    # Bursts raise the variance of arrivals; in the batch they are smoothed over the life of a request.
    spread = math.sqrt((1 + demand.burstiness**2) / 2)
    peak = min(seats, free_batch + TAIL * spread * math.sqrt(free_batch)) if free_batch < math.inf else seats
    if _step(engine, means, batch=peak, prefill=prefill) > objectives.tpot:
        return False
    own = law.per_prefill_token * demand.long_prompt + 2 * _step(engine, means, batch=peak, prefill=prefill)
    # Prompts wait for one another as well: a queue with one server that serves them for `prefill` of the time.
    own += 3 * prefill / (1 - prefill) * law.per_prefill_token * means.prompt * spread**2 / 2
    left = objectives.ttft - own
    if left <= 0:
        return False
    life = means.output * _step(engine, means, batch=min(seats, free_batch), prefill=prefill)
    return _waits(rate * life / spread**2, seats / spread**2, life=life, longer_than=left) <= 1 - objectives.quantile


def _step(engine: EngineConfig, means: Means, *, batch: float, prefill: float) -> float:
    """A step with this batch where prompts take that part of the time; never faster than in the steady state."""
    law = engine.law
    alone = law.base + batch * (law.per_sequence + law.per_held_token * means.held)
    return max(alone / (1 - prefill), min(step_seconds(engine, means, batch=batch), alone / (1 - prefill)))


def _waits(load: float, servers: float, *, life: float, longer_than: float) -> float:
    """The part of requests that wait longer for a seat: Erlang's C with an exponential tail."""
    if load >= servers:
        return 1.0
    return erlang_c(load, servers) * math.exp(-(servers - load) * longer_than / life)


def erlang_c(load: float, servers: float) -> float:
    """The part of requests that find all servers taken. Worked: 8 Erlang on 10 servers make 0.409 wait."""
    count = max(1, round(servers))
    if load >= count:
        return 1.0
    blocked = 1.0
    for number in range(1, count + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / count * (1 - blocked))
