"""What is promised and what it costs: windows, scores, when a run has settled, and the draws."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop.drawing import TooSlow
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.offline import knee_of, sweep
from benchmarks.closedloop.playing import Run, play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import MetricsOutage, Scenario
from benchmarks.closedloop.scenarios import SCENARIOS, draw
from benchmarks.closedloop.scoring import score
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.settling import Patience, Settling
from benchmarks.closedloop.windows import judged
from vllm_autotuner.simulation.ledger import Period
from vllm_autotuner.simulation.traffic import Change

HOUR = 3600.0


def played(scenario: Scenario, policy: Fixed, *, patience: Patience | None = None) -> Run:
    settling = None if patience is None else Settling(scenario=scenario, patience=patience)
    return asyncio.run(play(scenario, policy, owner=policy.owner, settling=settling))


def fixed(scenario: Scenario, *, seats: int = 64, replicas: int = 1, patience: Patience | None = None) -> Run:
    return played(scenario, Fixed(Owner(scenario), seats, replicas), patience=patience)


def ended(*requests: tuple[float, float, float]) -> Period:
    """Requests as (arrival, TTFT, TPOT), each over a second later."""
    arrival, ttft, tpot = (np.array(column, dtype=np.float64) for column in zip(*requests, strict=True))
    nothing = np.zeros(len(requests), dtype=np.int64)
    return Period(
        seconds=1.0,
        number=nothing,
        arrival=arrival,
        ended=arrival + 1,
        ttft=ttft,
        tpot=tpot,
        prompt_tokens=nothing,
        output_tokens=nothing,
        pod=nothing,
        fate=nothing,
    )


def test_a_window_is_in_order_when_each_objective_held_at_its_quantile() -> None:
    scenario = case()  # TTFT 2 s, TPOT 40 ms, both at p95
    good, slow, late, failed = (1.0, 0.03), (1.0, 0.05), (3.0, 0.03), (float("nan"), float("nan"))

    def window(at: float, *, others: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
        return [(at, *one) for one in [*others, *[good] * (100 - len(others))]]

    requests = [
        *window(0.0, others=[slow] * 5),  # 95 of 100 in time: in order
        *window(300.0, others=[slow] * 6),  # 94: not
        *window(600.0, others=[slow] * 5 + [late] * 5),  # each objective by itself: in order
        *window(900.0, others=[late] * 3 + [failed] * 3),  # a failed one has met neither
        # nobody from 1200 on: no window
        *window(1500.0, others=[]),
    ]
    found = judged(scenario, ended(*requests), since=0.0, until=1800.0)
    assert found.begin.tolist() == [0.0, 300.0, 600.0, 900.0, 1500.0]
    assert found.held.tolist() == [True, False, True, False, True]
    assert found.attainment == 3 / 5


def test_a_run_that_serves_everything_well() -> None:
    scenario = case(rate=1.0, seconds=900.0)
    run = fixed(scenario)
    found = score(scenario, run)
    assert found.requests == run.cluster.fleet.arrived > 700
    assert (found.attainment, found.in_time, found.failed, found.restarts, found.scalings) == (1.0, 1.0, 0, 0, 0)
    assert found.goodput == pytest.approx(found.requests / 900)
    assert found.gpu_hours == pytest.approx(900 / 3600)
    assert found.settled_gpus == pytest.approx(1.0)
    assert found.extrapolated_from_hours is None


def test_requests_without_an_answer_in_time_have_failed() -> None:
    scenario = case(rate=3.0, seconds=900.0)
    found = score(scenario, fixed(scenario, seats=4))
    # Four seats at 20.9 ms a step could finish 4 / (200 * 20.9 ms) = 0.96 a second. Worse than the two thirds that are
    # too many: who comes to a seat has waited so long that most give up before the last token.
    assert found.failed / found.requests > 2 / 3
    assert found.attainment == 0.0


def test_a_settled_run_is_as_good_as_the_whole_of_it() -> None:
    whole = case(rate=2.0, seconds=8 * HOUR, steady_from=0.0)
    policy = Fixed(Owner(whole), 64, 1)
    settling = Settling(scenario=whole, patience=Patience(fewest=HOUR, error=0.05))
    run = asyncio.run(play(whole, policy, owner=policy.owner, settling=settling, exact=True))
    assert run.shorter is not None
    long, short = score(whole, run), score(whole, run.shorter)
    assert long.extrapolated_from_hours is None
    assert short.extrapolated_from_hours is not None
    assert 1.0 < short.extrapolated_from_hours < 3.0
    assert short.gpu_hours == pytest.approx(long.gpu_hours, rel=0.01)
    assert short.attainment == pytest.approx(long.attainment, abs=0.02)
    assert short.goodput == pytest.approx(long.goodput, rel=0.02)


def test_a_load_that_moves_and_a_policy_that_waits_are_never_settled() -> None:
    patience = Patience(fewest=600.0, error=0.5)
    moving = case(rate=1.0, seconds=2 * HOUR)
    assert fixed(moving, patience=patience).settled_since is None
    steady = replace(moving, steady_from=0.0)
    assert fixed(steady, patience=patience).settled_since is not None
    scheduled = Fixed(Owner(steady), 64, 1, schedule=((0.0, 1), (6600.0, 2)))
    run = played(steady, scheduled, patience=patience)
    assert run.settled_since is None
    assert [count for _, count in run.cluster.scalings] == [1, 2]


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


def test_the_sweep_pays_for_its_trials() -> None:
    scenario = case(rate=3.0, seconds=300.0, seats=8)
    found = asyncio.run(sweep(scenario))
    assert 6 <= found.restarts <= 18
    assert found.seats >= 16
    assert found.gpu_hours == pytest.approx(found.restarts * (60 + 300) / 3600)


def test_the_knee_is_the_smallest_of_objective_slots_and_pool() -> None:
    # 20 ms + b * (0.1 ms + 0.4 * 0.05 ms + 300 / 200 * 0.02 ms) = 40 ms at b = 133.
    assert knee_of(case(seats=None)) == pytest.approx(133, abs=1)
    assert knee_of(case(seats=64)) == 64


@pytest.mark.parametrize("name", SCENARIOS)
def test_another_seed_is_another_case_of_the_same_kind(name: str) -> None:
    cases = [draw(name, seed=seed, hardware=hardware_of(None), quick=True) for seed in (1, 1, 2, 3)]
    assert cases[0] == cases[1]
    assert len({one.story for one in cases}) == 3
    assert len({(one.rate.rate(1.0), one.objectives) for one in cases}) == 3
    for one in cases:
        Owner(one).service()
        assert one.min_replicas <= one.replicas <= one.max_replicas
        assert one.rate.rate(one.duration) == 0.0
        assert all(0 <= moment < one.duration for moment in one.moments)
        assert one.duration / 2 <= one.settled_from < one.duration
        assert one.noise.pod_spread > 0


def test_the_default_pace_leaves_the_rhythm_to_the_product() -> None:
    slow, quick = (draw("cap-bound", seed=1, hardware=hardware_of(None), quick=each) for each in (False, True))
    tuning = Owner(slow).service().spec.tuning
    assert (tuning.cooldown.total_seconds(), tuning.strategy.bake.total_seconds()) == (6 * HOUR, HOUR / 2)
    assert tuning.budget.changes_per_day == 2
    assert Owner(quick).service().spec.tuning.budget.changes_per_day == 12
    assert (slow.duration, quick.duration) == (24 * HOUR, 24 * HOUR)


def test_bounds_are_those_of_the_knobs_that_the_user_lets_change() -> None:
    scenario = case(tensor_parallel_sizes=(1, 2), kv_cache_dtypes=("auto", "fp8"), length_bounds=(2048, 8192))
    tuning = Owner(scenario).service().spec.tuning
    assert tuning.tensor_parallel_size is not None
    assert tuning.tensor_parallel_size.allowed == (1, 2)
    assert tuning.max_model_len is not None
    closed = Owner(replace(scenario, tunes=False)).service().spec.tuning
    bounds = (closed.max_num_seqs, closed.max_model_len, closed.kv_cache_dtype, closed.tensor_parallel_size)
    assert bounds == (None,) * 4


def test_an_engine_that_is_too_slow_for_the_case_is_not_drawn() -> None:
    slow, fast = hardware_of(["llama-3.1-70b-h200"])[0], hardware_of(["llama-3.1-8b-h100"])[0]
    for seed in range(5):
        assert draw("past-knee-20ms", seed=seed, hardware=[slow, fast], quick=True).hardware is fast
    with pytest.raises(TooSlow):
        draw("past-knee-20ms", seed=1, hardware=[slow], quick=True)
