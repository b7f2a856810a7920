"""The oracle's approximation against exact runs, its choice, and the noise that every policy of a case meets."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop import oracle
from benchmarks.closedloop.api_server import ApiServer
from benchmarks.closedloop.capacity import engine_of
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.fluid import demand_of, erlang_c, largest_rate
from benchmarks.closedloop.noise import QUIET, drawn_noise
from benchmarks.closedloop.oracle import (
    SLOT,
    Plan,
    best_on_demand,
    best_with_fixed_gpus,
    enough_gpus,
    flags_of,
    plans,
)
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import Scenario, Wedge
from benchmarks.closedloop.scoring import Score, score
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.settling import Patience
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.planning.feasibility import Feasible, Infeasible, placeable, rolls_out
from vllm_autotuner.simulation.arrivals import RateCurve

HOUR = 3600.0
PATIENCE = Patience(fewest=1800.0, error=0.1, gpus=0.1, whole_day=False)
CAPPED = case(rate=4.0, seconds=24 * HOUR, seats=16, steady_from=0.0)
"""Sixteen seats finish 3.4 requests a second; sixty-four more than ten."""


def attained(scenario: Scenario, *, seats: int | None) -> float:
    owner = Owner(scenario)
    return score(scenario, asyncio.run(play(scenario, Fixed(owner, seats, 1), owner=owner))).attainment


def test_erlangs_c_is_the_tables() -> None:
    assert erlang_c(8.0, 10.0) == pytest.approx(0.409, abs=0.001)
    assert erlang_c(0.5, 1.0) == pytest.approx(0.5)
    assert erlang_c(10.0, 10.0) == 1.0


@pytest.mark.parametrize("seats", [8, 32, None])
def test_the_approximation_is_near_what_an_exact_run_serves(seats: int | None) -> None:
    scenario = case()
    engine = engine_of(scenario.hardware, seats=seats)
    demand = demand_of(scenario.content.first, burstiness=1.0)
    limit = largest_rate(engine, demand, objectives=scenario.objectives)
    assert limit > 1
    loaded = [case(rate=limit * part, seconds=3000.0) for part in (0.8, 1.15)]
    below, above = (attained(one, seats=seats) for one in loaded)
    assert below == 1.0
    assert above < 0.9


def test_flags_are_worth_what_the_replicas_cost_that_they_save() -> None:
    free, frozen = (asyncio.run(best_on_demand(CAPPED, frozen=each, patience=PATIENCE)) for each in (False, True))
    assert free.score.attainment >= 0.99
    assert free.score.gpu_hours == pytest.approx(24.0, rel=0.01)
    assert free.plan.flags.seats is not None
    assert free.plan.flags.seats > 16
    assert frozen.plan.flags.seats == 16
    assert frozen.score.gpu_hours == pytest.approx(48.0, rel=0.01)


def test_a_fixed_number_of_gpus_is_shared_by_tp_and_replicas() -> None:
    scenario = replace(CAPPED, replicas=2, tensor_parallel_sizes=(1, 2), scales=False, duration=2 * HOUR)
    found = asyncio.run(best_with_fixed_gpus(scenario, patience=PATIENCE))
    assert found.plan.schedule[0][1] * found.plan.flags.tensor_parallel_size == 2
    assert found.score.attainment >= 0.99


def test_a_fixed_number_of_gpus_is_one_with_which_the_best_flags_keep_the_objectives() -> None:
    """16 slots serve half of the load: with other flags one GPU is enough."""
    assert enough_gpus(CAPPED) == 1
    assert enough_gpus(replace(CAPPED, tunes=False)) == 2


def test_the_operator_sees_that_the_gpus_are_fixed() -> None:
    """Two of three are held, so a pod of a trial finds one, and two replicas of two GPUs each find no place."""
    scenario = replace(CAPPED, replicas=2, gpus_there=3)
    owner = Owner(scenario)
    cluster = SimulatedCluster(scenario)
    cluster.apply(owner.rendered(seats=16, replicas=2), ready=True)
    api = cast(Cluster, ApiServer(owner, cluster, status={}, gpus=scenario.gpus_there))
    lookup = FreeGpuLookup(api, enabled=True, monotonic=time.monotonic, beat=lambda: None)
    asyncio.run(lookup.look(cluster.wall()))
    found = lookup.of(owner.service(), [pod.name for pod in cluster.pods], now=cluster.wall())
    assert found is not None
    assert isinstance(placeable(found, devices=1), Feasible)
    assert isinstance(rolls_out(found, devices=2, replicas=2), Infeasible)


def test_only_what_the_user_lets_change_is_searched() -> None:
    assert len(flags_of(replace(CAPPED, tunes=False))) == 1
    searched = flags_of(replace(CAPPED, kv_cache_dtypes=("auto", "fp8")))
    assert {one.kv_cache_dtype for one in searched} == {"auto", "fp8"}
    assert all(4 <= (one.seats or 64) <= 256 for one in searched)
    assert searched[0].seats == 16, "the start first"


def test_a_schedule_asks_for_replicas_before_they_are_needed_and_knows_of_a_hang() -> None:
    levels = [(0.0, 2.0), (2 * HOUR, 12.0), (3 * HOUR, 2.0)]
    moving = case(rate=2.0, seconds=4 * HOUR, startup=300.0, seats=32)
    moving = replace(moving, rate=RateCurve.steps([*levels, (4 * HOUR, 0.0)]))
    schedule = plans(moving, flags_of(moving)[:1])[0][0].schedule
    assert schedule[0] == (0.0, 1)
    assert schedule[1] == (2 * HOUR - SLOT, 2)
    assert schedule[-1][1] == 1
    hanging = case(rate=2.0, seconds=4 * HOUR, disturbances=(Wedge(at=HOUR, repaired=1.5 * HOUR),))
    replicas = plans(hanging, flags_of(hanging)[:1])[0][0].schedule
    assert max(count for _, count in replicas) == 2


@pytest.mark.parametrize("missed", range(6))
def test_of_a_load_that_moves_the_cheapest_plan_in_order_is_found_by_few_plays(
    missed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three that were played all missed, and the oracle attained 73 % where 100 % could be had (diurnal)."""
    swing = [(300.0 * step, 20.0 - 14.0 * math.cos(math.tau * step / 48)) for step in range(48)]
    moving = case(seconds=4 * HOUR, startup=300.0, seats=16, max_replicas=12)
    moving = replace(moving, rate=RateCurve.steps([*swing, (4 * HOUR, 0.0)]), steady_from=None)
    prices = [level[0].gpu_seconds for level in plans(moving, flags_of(moving))]
    assert len(prices) == 5

    async def judged(scenario: Scenario, plan: Plan, *, patience: Patience | None) -> Any:
        in_order = prices.index(plan.gpu_seconds) >= missed
        return SimpleNamespace(attainment=1.0 if in_order else 0.7, gpu_hours=plan.gpu_seconds / HOUR)

    monkeypatch.setattr(oracle, "_judged", judged)
    found = asyncio.run(best_on_demand(moving, patience=PATIENCE))
    assert found.plan.gpu_seconds == (prices[missed] if missed < 5 else pytest.approx(min(prices[2:])))
    assert found.played <= 3


@pytest.mark.parametrize("enough", [1, 2, 3, 4])
def test_where_the_approximation_promises_too_much_more_replicas_are_played(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica was held for enough at a burst's price, none had two, and the oracle attained 9 % (bursty)."""
    bursts = replace(CAPPED, burstiness=4.0, max_replicas=4, rate=RateCurve.steps([(0.0, 2.0), (24 * HOUR, 0.0)]))

    async def judged(scenario: Scenario, plan: Plan, *, patience: Patience | None) -> Any:
        in_order = plan.schedule[0][1] >= enough
        return SimpleNamespace(attainment=1.0 if in_order else 0.09, gpu_hours=plan.gpu_seconds / HOUR)

    monkeypatch.setattr(oracle, "_judged", judged)
    found = asyncio.run(best_on_demand(bursts, patience=PATIENCE))
    assert found.plan.schedule == ((0.0, enough),)
    assert found.score.attainment == 1.0


def _ends_early(morning: float, stages: Sequence[tuple[Patience, float]]) -> bool:
    """Whether a run that attains so much in the morning ends with one of its stages."""
    return any(morning < enough for _, enough in stages)


def test_a_run_in_stages_ends_where_one_for_that_stage_alone_would() -> None:
    """What goes on is not begun anew, and it is the same day to the last digit."""
    scenario = case(rate=2.0, seconds=2 * HOUR, seats=16, steady_from=0.0)
    plan = plans(scenario, flags_of(scenario)[:1])[0][0]
    brief, longer = replace(PATIENCE, fewest=900.0), replace(PATIENCE, fewest=HOUR)

    def scored(*stages: tuple[Patience, float]) -> Score:
        return asyncio.run(oracle._played(scenario, plan, *stages))

    first, second, whole = scored((brief, math.inf)), scored((longer, math.inf)), scored()
    hours = [one.extrapolated_from_hours for one in (first, second, whole)]
    assert hours[0] is not None
    assert hours[1] is not None
    assert hours[0] < hours[1]
    assert hours[2] is None
    assert scored((brief, math.inf), (longer, math.inf)) == first
    assert scored((brief, 0.0), (longer, math.inf)) == second
    assert scored((brief, 0.0), (longer, 0.0)) == whole


def test_a_plan_that_holds_for_a_calm_morning_only_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    async def played(scenario: Scenario, plan: Plan, *stages: tuple[Patience, float]) -> Any:
        ends = _ends_early(1.0, stages)
        attainment = 0.95 if not ends and plan.schedule[0][1] < 2 else 1.0
        hours = 5.0 if ends else None
        return SimpleNamespace(
            attainment=attainment, goodput=1.0, gpu_hours=plan.gpu_seconds / HOUR, extrapolated_from_hours=hours
        )

    monkeypatch.setattr(oracle, "_played", played)
    steady, whole = replace(CAPPED, max_replicas=4), replace(PATIENCE, whole_day=True)
    found = asyncio.run(best_on_demand(steady, patience=whole))
    assert (found.plan.schedule, found.score.extrapolated_from_hours) == (((0.0, 2),), None)
    first_look = asyncio.run(best_on_demand(steady, patience=PATIENCE))
    assert first_look.plan.schedule == ((0.0, 1),)
    fixed = asyncio.run(best_with_fixed_gpus(replace(steady, replicas=1, scales=False), patience=whole))
    assert fixed.score.attainment == 0.95


@pytest.mark.parametrize("scales", [True, False])
def test_a_plan_that_nearly_held_for_a_calm_morning_does_not_win_by_it(
    monkeypatch: pytest.MonkeyPatch, scales: bool
) -> None:
    """What is chosen is played to its end, whatever it is: one replica is within 1 % of the best in the morning only.

    Of GPUs that stay the first flags are the better ones in the morning, and the worse ones over the day.
    """
    first: list[object] = []

    async def played(scenario: Scenario, plan: Plan, *stages: tuple[Patience, float]) -> Any:
        first.append(plan.flags)
        lucky = plan.schedule[0][1] < 2 if scales else plan.flags == first[0]
        morning = 0.985 if lucky else 0.992 if scenario.scales else 0.95
        ends = _ends_early(morning, stages)
        attainment = morning if ends or not lucky else 0.80
        hours, gpus = 5.0 if ends else None, plan.gpu_seconds / HOUR
        return SimpleNamespace(attainment=attainment, goodput=1.0, gpu_hours=gpus, extrapolated_from_hours=hours)

    monkeypatch.setattr(oracle, "_played", played)
    given, whole = replace(CAPPED, max_replicas=4, replicas=1, scales=scales), replace(PATIENCE, whole_day=True)
    found = asyncio.run((best_on_demand if scales else best_with_fixed_gpus)(given, patience=whole))
    assert found.score.attainment == (0.992 if scales else 0.95)
    assert found.score.extrapolated_from_hours is None


def test_of_flags_that_the_approximation_holds_for_equal_the_fewest_slots_are_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int | None] = []

    async def judged(scenario: Scenario, plan: Plan, *, patience: Patience | None) -> Any:
        seen.append(plan.flags.seats)
        return SimpleNamespace(attainment=0.95, gpu_hours=plan.gpu_seconds / HOUR)

    monkeypatch.setattr(oracle, "_judged", judged)
    bursts = replace(CAPPED, burstiness=4.0, max_replicas=1)
    asyncio.run(best_on_demand(bursts, patience=PATIENCE))
    assert 1 < len(seen) <= 3
    strains = {plan.flags.seats: round(plan.strain, 2) for plan in plans(bursts, flags_of(bursts))[0]}
    equal = [seats for seats, strain in strains.items() if seats is not None and strain == min(strains.values())]
    assert len(equal) > 1
    assert seen[0] == min(equal)


def times(seed: int, pod: int) -> Sequence[float]:
    return list(drawn_noise(seed, name="case").scrapes(pod, after=0.0, until=24 * HOUR))


def test_pods_differ_by_one_to_three_per_cent_and_start_as_they_like() -> None:
    noise = [drawn_noise(seed, name="case") for seed in range(20)]
    assert all(0.01 <= one.pod_spread <= 0.03 for one in noise)
    assert {one.interval for one in noise} == {15, 30}
    one = noise[0]
    speeds = [one.speed(pod) for pod in range(200)]
    assert len(set(speeds)) > 100
    assert all(abs(speed - 1) <= 2 * one.pod_spread + 1e-9 for speed in speeds)
    assert 0.5 < min(one.startup(pod) for pod in range(200)) < 1 < max(one.startup(pod) for pod in range(200)) < 2
    assert one.speed(3) == drawn_noise(0, name="case").speed(3), "the same in every process"
    assert (QUIET.speed(1), QUIET.startup(1)) == (1.0, 1.0)


def test_scrapes_come_at_a_pods_own_phase_and_a_few_are_lost() -> None:
    noise = drawn_noise(1, name="case")
    mine, other = times(1, 0), times(1, 1)
    phases, others = ([at % noise.interval for at in one] for one in (mine, other))
    assert 0 < max(phases) - min(phases) <= noise.late <= 0.05, "some milliseconds late"
    assert abs(phases[0] - others[0]) > noise.late
    asked = 24 * HOUR / noise.interval
    assert 0.005 * asked < asked - len(mine) < 0.06 * asked
    halves = [*noise.scrapes(0, after=0.0, until=HOUR), *noise.scrapes(0, after=HOUR, until=24 * HOUR)]
    assert halves == mine, "none twice and none between two looks"
    assert list(QUIET.scrapes(0, after=0.0, until=45.0)) == [15.0, 30.0, 45.0]
