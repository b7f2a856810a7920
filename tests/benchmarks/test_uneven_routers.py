"""Routers that share out unevenly, and the closed loop behind one that prefers warm pods."""

import asyncio
from dataclasses import replace

import pytest
from tests.benchmarks.drawn import case

from benchmarks.closedloop.autotuner import Autotuner, Ended
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from benchmarks.uneven_routers import NEW_FOR, SHARE_OF_NEW
from vllm_autotuner.api.status import Outcome


def served(deployment: SimulatedCluster, *, since: float, until: float) -> list[int]:
    """Requests that arrived between two seconds, by pod in order of their start."""
    came = [one.pod for one in deployment.fleet.ledger if since <= one.arrival < until]
    return [came.count(pod.virtual.number) for pod in deployment.pods if pod.virtual is not None]


def test_a_new_pod_gets_less_until_it_is_warm() -> None:
    scenario = case(rate=6.0, seconds=2400.0, replicas=2, prefers_warm=True)
    owner, deployment = Owner(scenario), SimulatedCluster(scenario)
    deployment.apply(owner.rendered(seats=64, replicas=2), ready=True)
    deployment.apply(owner.rendered(seats=64, replicas=3))
    ready = scenario.startup
    deployment.advance(ready + NEW_FOR + 600)
    cold = served(deployment, since=ready + 10, until=ready + NEW_FOR - 10)
    share = SHARE_OF_NEW / (2 + SHARE_OF_NEW)
    assert [count / sum(cold) for count in cold] == pytest.approx([(1 - share) / 2, (1 - share) / 2, share], abs=0.03)
    warm = served(deployment, since=ready + NEW_FOR + 10, until=ready + NEW_FOR + 590)
    assert [count / sum(warm) for count in warm] == pytest.approx([1 / 3] * 3, abs=0.03)


def first_change(scenario: Scenario) -> Ended:
    """The first change that ends."""
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())
    asyncio.run(play(scenario, product, owner=owner, given_up=lambda deployment: bool(product.ended)))
    return product.ended[0]


TWO = case(rate=3.0, seconds=1800.0, seats=8, replicas=2, max_replicas=2)


def test_a_canary_that_gets_a_third_of_its_traffic_is_not_kept_for_it() -> None:
    even, warm = first_change(TWO), first_change(replace(TWO, prefers_warm=True))
    assert even.outcome is Outcome.SUCCEEDED
    assert warm.outcome is Outcome.ROLLED_BACK
    assert "no comparison: the canary got 31% of the requests" in warm.reason
