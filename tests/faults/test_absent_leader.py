"""While no operator runs, time passes: what nobody watched is not proven, and what nobody tried has not failed."""

from datetime import timedelta

import pytest
from tests.control.cluster_model import Load
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import ask, until

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.cluster.errors import Unavailable

HARMFUL = Load(running=128.0, kv=0.6, ttft=9.0, tpot=0.2)


def turns_harmful(found: Bed) -> None:
    found.api.load = lambda seats: HARMFUL if seats > 64 else queueing(seats)


async def ended(found: Bed, *, at_most: int = 200) -> Outcome:
    await until(found, None, at_most=at_most)
    (entry,) = found.status().history
    return entry.outcome


@pytest.mark.fault("T48")
@pytest.mark.parametrize("away", [timedelta(minutes=3), timedelta(minutes=45), timedelta(days=2)], ids=str)
async def test_harm_that_began_while_no_operator_watched_the_bake_is_found(away: timedelta) -> None:
    found = bed(load=queueing, spec={"tuning.strategy": {"warmUp": "15s", "analysis": "90s", "bake": "10m"}})
    await until(found, ChangeState.BAKING)
    turns_harmful(found)
    found.api.pass_time(away)
    found.restart()
    assert await ended(found) is Outcome.ROLLED_BACK
    assert found.seats() == 64


@pytest.mark.fault("T48")
async def test_a_good_bake_goes_on_where_it_was_left() -> None:
    found = bed(load=queueing, spec={"tuning.strategy": {"warmUp": "15s", "analysis": "90s", "bake": "10m"}})
    await until(found, ChangeState.BAKING)
    await found.ticks(20)
    found.api.pass_time(timedelta(hours=1))
    found.restart()
    back = found.api.now
    assert await ended(found) is Outcome.SUCCEEDED
    assert timedelta(minutes=4) <= found.api.now - back <= timedelta(minutes=7), "five of ten minutes were watched"


@pytest.mark.fault("T51")
async def test_a_rollback_whose_deadline_passed_before_it_was_tried_is_tried() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    lost = Unavailable("no answer", reason="NoAnswer")
    found.api.refuses = lambda verb, name: lost if verb == "apply Deployment" else None
    ask(found, "rollback", "now")
    await found.tick()
    change = found.change()
    assert change is not None
    assert (change.state, found.seats()) == (ChangeState.ROLLING_BACK, 128), "the intent is written, the effect is not"
    found.api.refuses = lambda verb, name: None
    found.api.pass_time(timedelta(hours=3))
    found.restart()
    assert await ended(found) is Outcome.ROLLED_BACK
    assert found.seats() == 64


@pytest.mark.fault("T51")
async def test_a_rollback_that_is_refused_all_the_time_fails_at_last() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    lost = Unavailable("no answer", reason="NoAnswer")
    found.api.refuses = lambda verb, name: lost if verb == "apply Deployment" else None
    ask(found, "rollback", "now")
    await found.tick()
    found.api.pass_time(timedelta(hours=3))
    found.restart()
    assert await ended(found, at_most=400) is Outcome.ROLLBACK_FAILED
