"""Fixed settings found by trying: the oracle, which knows the whole run, and an offline sweep, which does not.

Must not: be compared on cost alone: the oracle is free and impossible, the sweep pays for its trials.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import Scenario, Wedge
from benchmarks.closedloop.scoring import Score, score, served_well
from benchmarks.closedloop.service import Owner
from vllm_autotuner.simulation.arrivals import RateCurve

__all__ = ["Found", "Swept", "best_fixed", "grid", "most_in_flight", "sweep"]

TIE: Final = 0.01
"""Settings within 1 % of the best goodput are equally good, and the one with the fewest GPU-hours wins."""
TRIAL_SECONDS: Final = 300.0
"""Of load for each trial of the sweep: auto_tune.sh runs 100 to 1,000 prompts (peers 1.12)."""
REFINEMENTS: Final = 2
"""Rounds in which the sweep also tries the values half way to its neighbours: 8 to 12 trials in all (peers: 10-18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best fixed setting, and what was tried."""

    seats: int
    replicas: int
    kv_cache_dtype: str
    score: Score
    tried: int
    """Runs that were begun."""
    covered: int
    """Settings whose outcome is known: a run in which no seat was ever missing stands for all larger values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What an offline sweep found, and what it cost before the service even began."""

    seats: int
    restarts: int
    gpu_hours: float


def grid(scenario: Scenario, *, fine: bool) -> list[int]:
    """max-num-seqs to try, within the user's bounds: a factor of 2 apart with `fine`, of 4 without."""
    low, high = scenario.seat_bounds
    values = {low, high}
    step = 8
    while step <= high:
        values.add(step)
        step *= 2 if fine else 4
    return sorted(value for value in values if low <= value <= high)


async def best_fixed(scenario: Scenario, *, fine: bool, told: Callable[[], None] = lambda: None) -> Found:
    """Run every seats x replicas x KV dtype over the whole scenario, and return the best by goodput, then GPU-hours.

    It knows the load, and not what will break: where an engine hangs until a person comes, the setting is chosen on the
    same run without that, and scored on the real one. Chosen with the hang it would be a spare replica bought hours
    before, which no policy can know of, and which this product by design does not buy afterwards either.
    Three shortcuts that miss nothing better: where requests in flight never reached the seats, a larger value seats
    nobody else and at most takes memory from the pool; where every request was served well, more replicas only cost;
    and a run that has already served too many badly to come near the best one ends there.
    """
    real, scenario = scenario, _without_hangs(scenario)
    runs: list[tuple[Score, int, int, str]] = []
    covered, tried = 0, 1
    requests, seats_grid = _count(scenario), grid(scenario, fine=fine)
    # The most of everything is rarely bad: known first, it ends the runs that are.
    owner = Owner(scenario)
    largest = score(scenario, await play(scenario, Fixed(owner, seats_grid[-1], scenario.max_replicas), owner=owner))
    told()
    for dtype in scenario.kv_cache_dtypes:
        for replicas in range(1, scenario.max_replicas + 1):
            perfect = False
            for index, seats in enumerate(seats_grid):
                owner = Owner(scenario)
                best_yet = max(one.goodput for one in (largest, *(run[0] for run in runs)))
                hopeless = _Hopeless(scenario, requests, best=best_yet)
                cluster = await play(scenario, Fixed(owner, seats, replicas, dtype), owner=owner, given_up=hopeless)
                told()
                covered, tried = covered + 1, tried + 1
                if hopeless.found:
                    continue
                found = score(scenario, cluster)
                runs.append((found, seats, replicas, dtype))
                perfect |= found.attainment == 1.0
                if most_in_flight(cluster) <= seats:
                    covered += len(seats_grid) - index - 1
                    break
            if perfect:
                break
    most = max(run[0].goodput for run in runs)
    enough = [run for run in runs if run[0].goodput >= most * (1 - TIE)]
    best, seats, replicas, dtype = min(enough, key=lambda run: (run[0].gpu_hours, -run[0].goodput, -run[1]))
    if scenario is not real:
        owner = Owner(real)
        best = score(real, await play(real, Fixed(owner, seats, replicas, dtype), owner=owner))
    return Found(seats=seats, replicas=replicas, kv_cache_dtype=dtype, score=best, tried=tried, covered=covered)


class _Hopeless:
    """Asked during a run: whether so many requests were served badly that even without another one it is no tie."""

    def __init__(self, scenario: Scenario, requests: int, *, best: float) -> None:
        self._scenario, self._since, self._bad = scenario, -1.0, 0
        # A request more than the arithmetic says, which rounds.
        self._may_be_bad = requests - best * (1 - TIE) * scenario.duration + 1
        self.found = False

    def __call__(self, cluster: SimulatedCluster) -> bool:
        ended = cluster.fleet.ledger.between(self._since, cluster.now)
        self._since = cluster.now
        self._bad += len(ended) - int(served_well(self._scenario, ended).sum())
        self.found = self._bad > self._may_be_bad
        return self.found


def _count(scenario: Scenario) -> int:
    """How many requests come in the whole run."""
    traffic, count = scenario.traffic(), 0
    while traffic.peek() < math.inf:
        traffic.take()
        count += 1
    return count


def _without_hangs(scenario: Scenario) -> Scenario:
    kept = tuple(one for one in scenario.disturbances if not isinstance(one, Wedge))
    return scenario if len(kept) == len(scenario.disturbances) else replace(scenario, disturbances=kept)


def most_in_flight(cluster: SimulatedCluster) -> int:
    """The most requests that one pod ever had at once, waiting ones included."""
    ended = cluster.fleet.ledger.between(-1.0, cluster.now)
    most = 0
    for pod in np.unique(ended.pod):
        mine = ended.pod == pod
        times = np.concatenate([ended.arrival[mine], ended.ended[mine]])
        change = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        # What comes counts before what goes at the same moment: too many is the safe side here.
        most = max(most, int(np.cumsum(change[np.lexsort((-change, times))]).max()))
    return most


async def sweep(scenario: Scenario) -> Swept:
    """Try max-num-seqs by doubling, on one replica of its own, under its share of the first minutes' load."""
    trial = _trial(scenario)
    tried: dict[int, float] = {}
    for seats in _order(scenario, tried):
        owner = Owner(trial)
        cluster = await play(trial, Fixed(owner, seats, 1), owner=owner, faults=False)
        tried[seats] = score(trial, cluster).goodput
    best = max(tried, key=lambda seats: (tried[seats], seats))
    gpus = scenario.hardware.tensor_parallel_size
    hours = len(tried) * (scenario.startup + trial.duration) * gpus / 3600
    return Swept(seats=best, restarts=len(tried), gpu_hours=hours)


def _order(scenario: Scenario, tried: dict[int, float]) -> Iterator[int]:
    """Values to try next; looks at what was found so far."""
    yield from grid(scenario, fine=True)
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
    early = replace(scenario, duration=seconds, disturbances=(), moments=(0.0,))
    levels = [(float(at), scenario.rate.rate(at) / scenario.replicas) for at in range(int(seconds))]
    return replace(early, rate=RateCurve.steps([*levels, (seconds, 0.0)]))
