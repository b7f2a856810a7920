"""The closed loop: the product's decisions reach engines and come back, and nothing else does."""

import asyncio
from dataclasses import asdict, replace

import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.playing import Run, play
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import MetricsOutage, Scenario, Upgrade, Wedge
from benchmarks.closedloop.scoring import score
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.status import Outcome, parse_status

CAPPED = case(rate=3.0, seconds=1200.0, seats=8, max_replicas=1)
"""Eight seats finish 1.7 requests a second; thirty-two would finish 6. Long enough for one change, with its rest."""


def tuned(scenario: Scenario) -> tuple[Autotuner, SimulatedCluster]:
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())
    return product, asyncio.run(play(scenario, product, owner=owner)).cluster


def fixed(scenario: Scenario, *, seats: int | None, replicas: int) -> Run:
    owner = Owner(scenario)
    return asyncio.run(play(scenario, Fixed(owner, seats, replicas), owner=owner))


def whole(scenario: Scenario, deployment: SimulatedCluster) -> Run:
    return Run(cluster=deployment, played=scenario.duration)


@pytest.fixture(scope="module")
def capped() -> tuple[Autotuner, SimulatedCluster]:
    return tuned(CAPPED)


def test_a_change_happens_in_the_engine_and_is_kept(capped: tuple[Autotuner, SimulatedCluster]) -> None:
    product, deployment = capped
    assert [(one.knob, one.outcome) for one in product.ended][:1] == [("maxNumSeqs", Outcome.SUCCEEDED)]
    served = [pod for pod in deployment.pods if pod.virtual is not None]
    found = [pod.virtual.config.max_num_seqs for pod in served if pod.virtual is not None]
    assert found[0] == 8
    assert str(found[-1]) == product.ended[-1].to_value
    before = score(CAPPED, fixed(CAPPED, seats=8, replicas=1))
    assert score(CAPPED, whole(CAPPED, deployment)).settled_goodput > before.settled_goodput


def test_the_status_is_carried_from_tick_to_tick(capped: tuple[Autotuner, SimulatedCluster]) -> None:
    product, _ = capped
    status = parse_status(product.status)
    assert [entry.to_value for entry in status.history] == [one.to_value for one in product.ended]
    assert status.effective is not None
    assert str(status.effective.max_num_seqs) == product.ended[-1].to_value
    assert status.budget is not None
    assert status.budget.changes_today == len(product.ended)


def test_the_same_seed_gives_the_same_run(capped: tuple[Autotuner, SimulatedCluster]) -> None:
    product, deployment = tuned(CAPPED)
    assert asdict(score(CAPPED, whole(CAPPED, deployment))) == asdict(score(CAPPED, whole(CAPPED, capped[1])))
    assert product.status == capped[0].status


def test_another_policy_gets_the_same_requests() -> None:
    scenario = case(seconds=300.0)
    runs = [fixed(scenario, seats=64, replicas=1), fixed(scenario, seats=4, replicas=2)]
    sent = [sorted((one.number, one.arrival, one.prompt_tokens) for one in run.cluster.fleet.ledger) for run in runs]
    assert sent[0] == sent[1]
    assert len(sent[0]) > 100


def test_nothing_changes_while_metrics_are_out() -> None:
    outage = MetricsOutage(at=15.0, until=1200.0)
    product, deployment = tuned(replace(CAPPED, disturbances=(outage,)))
    until = [at for at, _ in (*deployment.seats, *deployment.scalings) if 15.0 <= at < 1200.0]
    assert until == []
    assert product.classes["MetricsBlind"] > 60


def test_a_wedged_engine_is_named_and_never_answered_with_replicas() -> None:
    scenario = case(rate=3.0, seconds=1200.0, disturbances=(Wedge(at=300.0, repaired=900.0),))
    product, deployment = tuned(scenario)
    assert product.classes["Wedged"] > 20
    assert [replicas for at, replicas in deployment.scalings if 300.0 <= at < 900.0] == []
    assert score(scenario, whole(scenario, deployment)).failed > 0
    assert len(deployment.pods) == 2, "the person replaced the pod"


def test_an_image_that_does_not_start_leaves_the_old_pods_serving() -> None:
    scenario = case(seconds=600.0, disturbances=(Upgrade(at=100.0, image="vllm/vllm-openai:bad", pool_factor=0.0),))
    product, deployment = tuned(scenario)
    assert score(scenario, whole(scenario, deployment)).in_time == 1.0
    crashing = [pod for pod in deployment.pods if pod.restarts]
    assert len(crashing) == 1
    text = asyncio.run(deployment.pod_log("bench", crashing[0].name, "vllm", previous=True, tail_bytes=32_768))
    assert "No available memory for the cache blocks" in text
    assert product.ended == []


def test_a_rollout_keeps_the_replicas_and_pays_for_the_surge() -> None:
    scenario = case(seconds=600.0, replicas=2, disturbances=(Upgrade(at=90.0, image="vllm/vllm-openai:next"),))
    run = fixed(scenario, seats=64, replicas=2)
    deployment = run.cluster
    assert score(scenario, run).failed == 0
    assert score(scenario, run).restarts == 0, "the user's own rollout is not counted"
    assert [pod.deleted for pod in deployment.pods] == [True, True, False, False]
    # Two pods for ten minutes, and a third one while each of the two starts and the old one finishes its work.
    assert 2 * 600 + 2 * 60 <= deployment.gpu_seconds(0.0, 600.0) <= 2 * 600 + 2 * 60 + 2 * 20
