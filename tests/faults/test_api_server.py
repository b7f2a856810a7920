"""The API server lies, stutters, refuses or is away: the real fleet loop over the model of its world."""

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from tests.control.cluster_model import Body
from tests.control.desk import TICK
from tests.control.loop_bed import Bed, Leader, bed, queueing, slow_beyond_64

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.change.edges import EDGES
from vllm_autotuner.cluster.errors import Unavailable

STORIES = pytest.mark.parametrize(
    ("load", "outcome", "seats", "rollouts"),
    [
        pytest.param(queueing, Outcome.SUCCEEDED, 128, 2, id="a change that helps"),
        pytest.param(slow_beyond_64, Outcome.ROLLED_BACK, 64, 3, id="a change that harms"),
    ],
)
AWAY = 40
"""Ticks: ten minutes."""


def history(found: Bed) -> list[Outcome]:
    return [entry.outcome for entry in found.status().history]


def states_written(found: Bed) -> list[str]:
    """The states of the one change, in the order in which they were stored; repeats left out."""
    states: list[str] = []
    for _, kind, body in found.api.versions:
        change = (body.get("status") or {}).get("activeChange") if kind == "VLLMService" else None
        if change is not None and states[-1:] != [change["state"]]:
            states.append(change["state"])
    return states


def assert_one_change(found: Bed, outcome: Outcome, *, seats: int, rollouts: int) -> None:
    assert (history(found), found.seats()) == ([outcome], seats)
    assert found.deployment()["metadata"]["generation"] == rollouts
    assert found.told.count("ChangeStarted") == found.told.count(f"Change{outcome}") == 1
    moves = [ChangeState(state) for state in states_written(found)]
    assert all(after in EDGES[before] for before, after in pairwise(moves)), moves


def always(one: Body, body: Body) -> Body:
    return one


def as_it_was(found: Bed, age: timedelta) -> Callable[[Body], Body]:
    """Every VLLMService as it was stored `age` ago."""
    then = found.api.now - age
    seen = [body for stored, kind, body in found.api.versions if kind == "VLLMService" and stored <= then]
    return lambda body: seen[-1] if seen else body


@pytest.mark.fault("T04")
@pytest.mark.parametrize(
    ("age", "moments"),
    [
        pytest.param(timedelta(minutes=1), range(5, 26, 3), id="a minute old"),
        # Long enough for a change to have been judged harmful since, and undone.
        pytest.param(timedelta(minutes=5), range(22, 27), id="five minutes old"),
    ],
)
@STORIES
async def test_a_restart_that_reads_the_past_writes_nothing_on_it(
    load: Callable[[int], object], outcome: Outcome, seats: int, rollouts: int, age: timedelta, moments: range
) -> None:
    for moment in moments:
        found = bed(load=load)
        await found.ticks(moment)
        found.api.shows = as_it_was(found, age)
        found.restart()
        await found.ticks(4)
        found.api.shows = lambda body: body
        await found.ticks(34)
        assert_one_change(found, outcome, seats=seats, rollouts=rollouts)


def asking_for(seats: int) -> Callable[[Body], None]:
    def edit(body: Body) -> None:
        body["spec"]["engine"]["maxNumSeqs"] = seats

    return edit


@pytest.mark.fault("T05")
async def test_an_edit_there_and_back_that_no_watch_told_of_rolls_nothing() -> None:
    found = bed()
    await found.ticks(8)
    rollouts, seen = found.api.applies.total(), found.api.objects["VLLMService", "chat"]
    found.api.shows = lambda body: seen
    for seats in (32, 64):
        found.api.edit("chat", asking_for(seats))
        for _ in range(4):
            found.api.pass_time(TICK)
            found.api.tell(found.registry)
            await found.loop.tick()
    found.api.shows = lambda body: body
    await found.ticks(4)
    assert found.status().observed_generation == 3
    assert (found.api.applies.total(), found.seats()) == (rollouts, 64)
    assert not found.status().history


@pytest.mark.fault("T06")
@STORIES
async def test_events_that_come_twice_and_in_any_order_cost_no_write(
    load: Callable[[int], object], outcome: Outcome, seats: int, rollouts: int
) -> None:
    calm = bed(load=load)
    await calm.ticks(36)
    for seed in range(5):
        chance, found = random.Random(seed), bed(load=load)
        for _ in range(36):
            await found.tick()
            for _, kind, body in chance.choices(found.api.versions, k=30):
                if kind == "VLLMService":
                    found.registry.services.see(body)
                elif kind == "Deployment":
                    found.registry.deployments.see(body)
        assert_one_change(found, outcome, seats=seats, rollouts=rollouts)
        assert found.api.requests == calm.api.requests


@pytest.mark.fault("T08")
@pytest.mark.parametrize("leads", [True, False], ids=["it still leads", "its lease is over"])
@STORIES
async def test_an_api_server_that_is_away_for_ten_minutes_is_waited_for(
    load: Callable[[int], object], outcome: Outcome, seats: int, rollouts: int, leads: bool
) -> None:
    for moment in range(3, 22, 3):
        found = bed(load=load)
        await found.ticks(moment)
        last = found.api.objects["VLLMService", "chat"]
        found.api.refuses = lambda verb, name: Unavailable("no answer", reason="NoAnswer")
        found.api.shows = partial(always, last)
        found.leader.is_leader = leads
        await found.ticks(AWAY)
        found.api.refuses = lambda verb, name: None
        found.api.shows = lambda body: body
        found.leader.is_leader, found.leader.epoch = True, 1 if leads else 2
        await found.ticks(36)
        assert_one_change(found, outcome, seats=seats, rollouts=rollouts)


@pytest.mark.fault("T09")
@STORIES
async def test_two_operators_that_both_think_they_lead_make_one_change(
    load: Callable[[int], object], outcome: Outcome, seats: int, rollouts: int
) -> None:
    """A partition that the Lease did not prevent; each sees the world as it was before the other wrote."""
    for turn in (0, 1):
        first = bed(load=load)
        second = Bed(first.api)
        second.leader = Leader(epoch=2)
        second.start()
        for tick in range(40):
            first.api.pass_time(TICK)
            pair = [first, second] if (tick + turn) % 2 else [second, first]
            for each in pair:
                first.api.tell(each.registry)
            for each in pair:
                await each.loop.tick()
        assert_one_change(first, outcome, seats=seats, rollouts=rollouts)
