"""What a person finds out before the run, with a load generator and one replica: seats by a sweep, and the knee.

Must not: look at the run itself, or cost anything in it: the trials are told beside the figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.closedloop.capacity import engine_of, knee_batch, kv_batch, means_of
from benchmarks.closedloop.fluid import POOL_USED
from benchmarks.closedloop.noise import QUIET
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scoring import score
from benchmarks.closedloop.service import Owner
from vllm_autotuner.simulation.arrivals import RateCurve

__all__ = ["Swept", "knee_of", "sweep"]

TRIAL_SECONDS: Final = 300.0
"""Of load for each trial of the sweep: auto_tune.sh runs 100 to 1,000 prompts (peers 1.12)."""
REFINEMENTS: Final = 2
"""Rounds in which the sweep also tries the values half way to its neighbours: 8 to 12 trials in all (peers: 10-18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What an offline sweep found, and what it cost before the service even began."""

    seats: int
    restarts: int
    gpu_hours: float


def knee_of(scenario: Scenario) -> float:
    """The largest batch of the engine of the start inside the TPOT objective, its seats and its pool."""
    engine, means = engine_of(scenario.hardware, seats=scenario.seats), means_of(scenario.content.first)
    knee = knee_batch(engine, means, tpot=scenario.objectives.tpot)
    return max(1.0, min(knee, float(engine.max_num_seqs), POOL_USED * kv_batch(engine, means)))


async def sweep(scenario: Scenario) -> Swept:
    """Try max-num-seqs by doubling, on one replica of its own, under its share of the first minutes' load."""
    trial = _trial(scenario)
    tried: dict[int, float] = {}
    for seats in _order(scenario, tried):
        owner = Owner(trial)
        run = await play(trial, Fixed(owner, seats, 1), owner=owner, faults=False)
        tried[seats] = score(trial, run).goodput
    best = max(tried, key=lambda seats: (tried[seats], seats))
    gpus = scenario.hardware.tensor_parallel_size
    hours = len(tried) * (scenario.startup + trial.duration) * gpus / 3600
    return Swept(seats=best, restarts=len(tried), gpu_hours=hours)


def _order(scenario: Scenario, tried: dict[int, float]) -> Iterator[int]:
    """Values to try next; looks at what was found so far."""
    low, high = scenario.seat_bounds
    seats = max(8, low)
    while seats < high:
        yield seats
        seats *= 2
    yield high
    for _ in range(REFINEMENTS):
        best = max(tried, key=lambda seats: (tried[seats], seats))
        known = sorted(tried)
        place = known.index(best)
        for neighbour in known[max(0, place - 1) : place] + known[place + 1 : place + 2]:
            between = (best + neighbour) // 2
            if between not in tried:
                yield between


def _trial(scenario: Scenario) -> Scenario:
    seconds = min(TRIAL_SECONDS, scenario.duration)
    early = replace(
        scenario, duration=seconds, disturbances=(), moments=(0.0,), noise=QUIET, steady_from=None, min_replicas=1
    )
    levels = [(float(at), scenario.rate.rate(at) / scenario.replicas) for at in range(int(seconds))]
    return replace(early, rate=RateCurve.steps([*levels, (seconds, 0.0)]))
