"""The arithmetic of scores, the search for the best fixed setting, and the draws."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop.drawing import TooSlow
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import MetricsOutage
from benchmarks.closedloop.scenarios import SCENARIOS, draw
from benchmarks.closedloop.scoring import recovery, score, timeline
from benchmarks.closedloop.searching import best_fixed, grid, most_in_flight, sweep
from benchmarks.closedloop.service import Owner
from vllm_autotuner.simulation.traffic import Change


def test_goodput_is_counted_by_the_minute_of_arrival() -> None:
    arrival = np.array([0.0, 30.0, 59.9, 60.0, 130.0])
    goodput, came, share = timeline(arrival, np.array([True, False, True, True, False]), duration=240.0)
    assert goodput.tolist() == [2 / 60, 1 / 60, 0.0, 0.0]
    assert came.tolist() == [3 / 60, 1 / 60, 1 / 60, 0.0]
    assert share.tolist() == [2 / 3, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("shares", "since", "found"),
    [
        pytest.param([1.0] * 10, 0.0, 0.0, id="never was in trouble"),
        pytest.param([0.2, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 1.0], 0.0, 120.0, id="from the first good minute"),
        pytest.param([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.0, 240.0, id="a short rest is none"),
        pytest.param([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], 90.0, 30.0, id="counted from the trouble"),
        pytest.param([0.0] * 10, 0.0, None, id="never"),
        pytest.param([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 0.0, None, id="too late to be believed"),
    ],
)
def test_recovery_needs_five_good_minutes(shares: Sequence[float], since: float, found: float | None) -> None:
    assert recovery(shares, since=since, until=60.0 * len(shares)) == found


def test_a_run_that_serves_everything_well() -> None:
    scenario = case(rate=1.0, seconds=600.0)
    owner = Owner(scenario)
    deployment = asyncio.run(play(scenario, Fixed(owner, 64, 1), owner=owner))
    found = score(scenario, deployment)
    assert found.requests == deployment.fleet.arrived > 500
    assert (found.attainment, found.failed, found.restarts, found.scalings) == (1.0, 0, 0, 0)
    assert found.goodput == pytest.approx(found.requests / 600)
    assert found.gpu_hours == pytest.approx(600 / 3600)
    assert found.settled_gpus == pytest.approx(1.0)
    assert sum(found.per_minute) * 60 == pytest.approx(found.requests, abs=0.1)


def test_no_policy_has_settled_while_it_is_blind() -> None:
    """The second half counts; where metrics are out in it, what comes two minutes and a start after they are back."""
    scenario = case(rate=1.0, seconds=1000.0)
    early = replace(scenario, disturbances=(MetricsOutage(at=100.0, until=200.0),))
    late = replace(scenario, disturbances=(MetricsOutage(at=400.0, until=600.0),))
    assert (scenario.settled_from, early.settled_from) == (500.0, 500.0)
    assert late.settled_from == 720.0 + scenario.startup
    mix = scenario.content.first
    drifting = replace(scenario, content=replace(scenario.content, changes=(Change(at=400.0, mix=mix, over=200.0),)))
    assert drifting.settled_from == late.settled_from, "nor while prompts still grow"
    owner = Owner(late)
    deployment = asyncio.run(play(late, Fixed(owner, 64, 2), owner=owner))
    assert score(late, deployment).settled_goodput == pytest.approx(1.0, rel=0.2)
    assert score(late, deployment).settled_gpus == pytest.approx(2.0)


def test_requests_that_nobody_answers_in_time_have_failed() -> None:
    scenario = case(rate=3.0, seconds=600.0)
    owner = Owner(scenario)
    deployment = asyncio.run(play(scenario, Fixed(owner, 4, 1), owner=owner))
    found = score(scenario, deployment)
    # Four seats at 20.9 ms a step could finish 4 / (200 * 20.9 ms) = 0.96 a second. Worse than the two thirds that are
    # too many: who comes to a seat has waited so long that most give up before the last token.
    assert found.failed / found.requests > 2 / 3
    assert found.attainment < 0.1
    assert found.recoveries == (None,)


def test_the_oracle_finds_the_fewest_gpus_that_serve_everybody() -> None:
    # One replica finishes 32 / (200 * 26 ms) = 6.2 requests a second with 32 seats: 8 a second need two or more seats.
    scenario = case(rate=8.0, seconds=300.0, seat_bounds=(8, 128), max_replicas=3)
    best = asyncio.run(best_fixed(scenario, fine=True))
    runs = {}
    for replicas in (1, 2, 3):
        for seats in grid(scenario, fine=True):
            owner = Owner(scenario)
            runs[seats, replicas] = score(
                scenario, asyncio.run(play(scenario, Fixed(owner, seats, replicas), owner=owner))
            )
    most = max(one.goodput for one in runs.values())
    assert best.score.goodput >= 0.99 * most
    assert best.score.gpu_hours == min(one.gpu_hours for one in runs.values() if one.goodput >= 0.99 * most)
    assert best.tried < len(runs), "the shortcuts saved something"


def test_in_flight_counts_each_pod_by_itself() -> None:
    scenario = case(rate=2.0, seconds=200.0)
    owner = Owner(scenario)
    one = asyncio.run(play(scenario, Fixed(owner, 4, 1), owner=owner))
    two = asyncio.run(play(scenario, Fixed(Owner(scenario), 64, 2), owner=owner))
    assert most_in_flight(one) > 4 > 0
    assert most_in_flight(two) < most_in_flight(one)


def test_the_sweep_pays_for_its_trials() -> None:
    scenario = case(rate=3.0, seconds=300.0, seats=8)
    found = asyncio.run(sweep(scenario))
    assert 6 <= found.restarts <= 18
    assert found.seats >= 16
    assert found.gpu_hours == pytest.approx(found.restarts * (60 + 300) / 3600)


@pytest.mark.parametrize("name", SCENARIOS)
def test_another_seed_is_another_case_of_the_same_kind(name: str) -> None:
    cases = [draw(name, seed=seed, hardware=hardware_of(None), quick=True) for seed in (1, 1, 2, 3)]
    assert cases[0] == cases[1]
    assert len({one.story for one in cases}) == 3
    assert len({(one.rate.rate(1.0), one.objectives) for one in cases}) == 3
    for one in cases:
        assert one.min_replicas <= one.replicas <= one.max_replicas
        assert one.rate.rate(one.duration) == 0.0
        assert all(0 <= moment < one.duration for moment in one.moments)
        assert one.duration / 2 <= one.settled_from < one.duration


def test_an_engine_that_is_too_slow_for_the_case_is_not_drawn() -> None:
    slow, fast = hardware_of(["llama-3.1-70b-h200"])[0], hardware_of(["llama-3.1-8b-h100"])[0]
    for seed in range(5):
        assert draw("past-knee-20ms", seed=seed, hardware=[slow, fast], quick=True).hardware is fast
    with pytest.raises(TooSlow):
        draw("past-knee-20ms", seed=1, hardware=[slow], quick=True)
