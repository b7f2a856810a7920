"""The short form of `make hostile`: every attack at once, beside an honest service whose canary is promoted."""

import time

import pytest

from e2e import odd_engines
from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.hostile.attacks import attacks
from e2e.hostile.cost import TICKS, Cost, Place
from e2e.hostile.limits import chart_limits
from e2e.hostile.story import QUICKLY, played
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERIES, OBJECTS = 70_000, 4
"""Beyond the budgets; the long form has 300,000 and 10."""


async def test_of_a_long_tick_only_what_the_operator_had_a_cpu_for_is_its_own() -> None:
    async def nowhere() -> Place | None:
        return None

    cost, now = Cost(nowhere), time.monotonic()
    cost._looks = [(now - before, waited) for before, waited in ((40, 0.0), (20, 5.0), (10, 12.0))]
    cost._told = 3
    # A tick of half a minute that was not told of ten seconds ago: it ran at both of the later looks.
    cost._take({f"{TICKS}_count": 1, f"{TICKS}_sum": 30.0})
    assert (cost.longest_tick, cost.longest_own) == (30.0, 23.0)


async def test_every_attack_at_once_is_reported_and_an_honest_canary_is_promoted_beside_them(
    bed: Bed, engines: None
) -> None:
    bed.set_images([*DEFAULT_IMAGES, SIMULATED_ENGINE, *odd_engines.ROWS, OPERATOR_IMAGE])
    limits = chart_limits()
    story = await played(bed, attacks(series=SERIES, objects=OBJECTS), name="hostile", pace=QUICKLY, first=True)
    assert not story.faults, story.faults
    assert story.outcome == "Succeeded, maxNumSeqs 4 -> 8"
    assert story.cost.restarts == 0
    assert story.cost.ticks > 10
    # What other tests on the machine take from it is none of the attackers' doing.
    assert 0 < story.cost.longest_own < limits.tick_seconds
    assert 0 < story.cost.peak_bytes < limits.memory_bytes
