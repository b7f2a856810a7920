"""Hours that no scenario has: loads that come and go at once, silence, an outage, an engine that hangs, a bad image.

The operator's own code decides; whatever it meets, no tick of it may fail, and what it writes is a valid status. The
loop of the benchmark raises for a service that could not be decided.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.scenario import Disturbance, MetricsOutage, Scenario, Upgrade, Wedge
from benchmarks.closedloop.scenarios import SCENARIOS
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.trial import CaseOf
from vllm_autotuner.api.status import parse_status
from vllm_autotuner.simulation.arrivals import RateCurve

SECONDS = 3600.0
SILENCE = 900.0
"""Longer than any window that is looked back on but the longest."""


def odd(seed: int) -> Scenario:
    source = random.Random(seed)
    name = source.choice(list(SCENARIOS))
    usual = CaseOf(scenario=name, seed=seed, hardware=hardware_of(None), quick=True).drawn()
    busy = max(usual.rate.rate(0.0), 0.01)
    silent = source.uniform(300.0, SECONDS - SILENCE - 300.0)
    moments = sorted(source.uniform(0.0, SECONDS) for _ in range(source.randint(3, 8)))
    levels = [(at, source.choice([0.0, 0.002, 0.3 * busy, busy, 2.5 * busy])) for at in (0.0, *moments)]
    outside = [(at, rate) for at, rate in levels if not silent <= at < silent + SILENCE]
    possible: tuple[Disturbance, ...] = (
        MetricsOutage(at=(at := source.uniform(60.0, SECONDS)), until=at + source.choice([30.0, 200.0, 900.0])),
        Wedge(at=(at := source.uniform(60.0, SECONDS)), repaired=at + source.uniform(100.0, 900.0)),
        Upgrade(
            at=source.uniform(60.0, SECONDS),
            image="another:1",
            step_factor=source.choice([1.0, 2.0]),
            pool_factor=source.choice([1.0, 0.5, 0.0]),
        ),
    )
    return replace(
        usual,
        duration=SECONDS,
        rate=RateCurve.steps(sorted([*outside, (silent, 0.0), (silent + SILENCE, busy), (SECONDS, 0.0)])),
        steady_from=None,
        disturbances=tuple(one for one in possible if source.random() < 0.4),
        replicas=source.randint(1, 3),
        max_replicas=4,
        burstiness=source.choice([1.0, 4.0]),
        startup=source.choice([20.0, 90.0, 300.0]),
        scales=source.random() < 0.8,
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_tick_of_an_odd_hour_fails(seed: int) -> None:
    scenario = odd(seed)
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())
    asyncio.run(play(scenario, product, owner=owner))
    assert sum(product.classes.values()) > 200
    assert parse_status(product.status).diagnosis is not None
