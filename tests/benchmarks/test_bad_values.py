"""Secretly bad values in the closed loop: they really run, they are found out, and what they cost is counted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.candidates import Candidates, Way
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.fleets import FLEETS, draw_fleet
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.harm import HarmTask, HarmTrial, harm_of, seconds_below
from benchmarks.closedloop.harm_report import harm_summary
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.pods import NAME
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.status import Outcome

FLEET = case(rate=7.0, seconds=600.0, seats=8, replicas=3, scales=False)
"""Three replicas of eight seats finish 5.2 requests a second: they queue, and the product asks for more seats."""
TEN_WINDOWS = 1000.0
"""Seconds for a trial of ten windows of a minute, and its pods to start and to go."""
DIES_SOON = (60.0, 200.0)
"""Seconds after which an engine that dies or hangs later does, so that its trial sees it."""


def arguments(seats: int) -> tuple[str, ...]:
    return ("serve", "model", "--max-num-seqs", str(seats))


def tuned(**changes: Any) -> tuple[Autotuner, SimulatedCluster]:
    scenario = replace(FLEET, **changes)
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())
    return product, asyncio.run(play(scenario, product, owner=owner)).cluster


def test_what_the_user_wrote_is_never_bad_and_of_the_rest_as_much_as_was_asked_for() -> None:
    cases = [Candidates.of(replace(FLEET, seed=seed, bad=0.3), start=arguments(8)) for seed in range(20)]
    found = [case.flaw(arguments(seats)) for case in cases for seats in range(9, 109)]
    assert not any(case.flaw(arguments(8)) for case in cases)
    assert sum(flaw is not None for flaw in found) == pytest.approx(600, abs=60)
    assert len({flaw.way for flaw in found if flaw is not None}) == len(Way)


def test_candidate_and_fresh_baseline_serve_beside_the_replicas() -> None:
    _, cluster = tuned()
    tracks = [(pod.template.track, pod.virtual.config.max_num_seqs) for pod in cluster.pods if pod.virtual is not None]
    assert tracks[:3] == [("stable", 8)] * 3
    (baseline, old), (candidate, new) = sorted(tracks[3:5])
    assert (baseline, old, candidate) == ("baseline", 8, "canary")
    assert new > 8
    ledger = cluster.fleet.ledger.between(0.0, cluster.now)
    canary = next(pod for pod in cluster.pods if pod.template.track == "canary")
    ((since, until),) = canary.serving(cluster.now)
    during = (ledger.arrival >= since) & (ledger.arrival < until)
    assert canary.virtual is not None
    share = (ledger.pod[during] == canary.virtual.number).mean()
    assert 0.1 < share < 0.35, "one of five equal pods"


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (Way.SLOWER, "TPOT"),
        (Way.DOES_NOT_START, "the engine does not start"),
        (Way.DIES_LATER, "the engine crashed"),
        (Way.HANGS_LATER, "the engine hangs: "),
        (Way.FAILS_REQUESTS, "the engine fails requests"),
    ],
)
def test_a_bad_value_is_found_out_and_taken_back(way: Way, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.closedloop.candidates.WAYS", (way,))
    monkeypatch.setattr("benchmarks.closedloop.candidates.DIES_AFTER", DIES_SOON)
    product, cluster = tuned(bad=1.0, duration=TEN_WINDOWS)
    first = product.ended[0]
    assert any(pod.bad == f"maxNumSeqs={first.to_value}: {way.value}" for pod in cluster.pods)
    assert first.outcome is Outcome.ROLLED_BACK
    assert says in first.reason
    assert [pod.bad for pod in cluster.pods if pod.deployment == NAME] == [""] * 3
    assert seconds_below(3, cluster.pods, until=TEN_WINDOWS) == 0


def test_the_floor_counts_every_second_without_enough_pods() -> None:
    owner = Owner(FLEET)
    cluster = asyncio.run(play(FLEET, Fixed(owner, 8, 3), owner=owner)).cluster
    assert seconds_below(3, cluster.pods, until=600.0) == 0
    assert seconds_below(3, cluster.pods[1:], until=600.0) == 600


def test_what_bad_values_cost_is_counted_by_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.closedloop.candidates.WAYS", (Way.SLOWER,))
    found = asyncio.run(harm_of(case(rate=5.0, seconds=600.0, seats=8, replicas=3, scales=False, bad=1.0)))
    assert found["bad_pods"] == 1
    assert found["bad_serving_seconds"] > 100
    assert 0 <= found["spoiled_by_bad_values"] < 0.3
    lost = 1 - found["served_well"]["tuned"] / found["served_well"]["off"]
    assert found["goodput_lost_to_tuning"] == pytest.approx(lost)
    task = HarmTask(scenario="capped", seed=1, share=1.0, hardware=())
    summary = harm_summary([HarmTrial(task=task, figures=found)])
    assert summary["bad_values_tried"] == {"slower": 1}
    assert summary["goodput_lost_to_tuning"] == pytest.approx(lost)


@pytest.mark.parametrize("name", FLEETS)
def test_fleets_have_replicas_for_a_canary_that_nothing_else_changes(name: str) -> None:
    for seed in (1, 2, 3):
        drawn = draw_fleet(name, seed=seed, hardware=hardware_of(None), bad=0.3)
        assert drawn.replicas >= 3
        assert not drawn.scales
        assert drawn.bad == 0.3


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_with_few_slots_is_an_object_that_reads(name: str) -> None:
    """Six seats were below the least that the user allowed: the run ended there, hours into it."""
    drawn = [draw_fleet(name, seed=seed, hardware=hardware_of(None), bad=0.3) for seed in range(1, 40)]
    assert all(Owner(each).service().spec.engine is not None for each in drawn)


def test_past_the_knee_and_with_a_full_kv_cache_there_is_something_to_try() -> None:
    """Nothing was tried in ten of thirty cases: fewer slots would only have made requests wait."""
    hardware = hardware_of(None)
    knee, full = (draw_fleet(name, seed=1, hardware=hardware, bad=0.3) for name in ("past-knee", "kv"))
    assert len(knee.parallel_sizes) == 2
    assert full.kv_cache_dtypes == ("auto", "fp8")
