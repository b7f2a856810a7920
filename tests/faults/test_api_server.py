"""The API server lies, stutters, refuses or is away: the real fleet loop over the model of its world."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest
from tests.control.cluster_model import Body, Load
from tests.control.desk import TICK
from tests.control.loop_bed import Bed, Leader, bed, queueing, slow_beyond_64

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.change.edges import EDGES
from vllm_autotuner.cluster.errors import Unavailable


@dataclass(frozen=True, kw_only=True)
class Story:
    load: Callable[[int], Load]
    replicas: int = 1
    outcome: Outcome
    seats: int
    generation: int
    """Of the service's own Deployment: 1, and one more for each rollout."""

    def bed(self) -> Bed:
        return bed(spec={"replicas": self.replicas}, load=self.load)


STORIES = pytest.mark.parametrize(
    "story",
    [
        pytest.param(
            Story(load=slow_beyond_64, outcome=Outcome.ROLLED_BACK, seats=64, generation=3), id="a change that harms"
        ),
        pytest.param(
            Story(load=queueing, replicas=2, outcome=Outcome.SUCCEEDED, seats=128, generation=2),
            id="a canary that helps",
        ),
    ],
)
"""Together every write that a change can need; what differs in others is only the order."""
ENOUGH = 50
"""Ticks after which each of these stories is over."""
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


def assert_one_change(found: Bed, story: Story) -> None:
    assert (history(found), found.seats()) == ([story.outcome], story.seats)
    assert found.deployment()["metadata"]["generation"] == story.generation
    assert found.told.count("ChangeStarted") == found.told.count(f"Change{story.outcome}") == 1
    assert [name for kind, name in found.api.objects if kind == "Deployment"] == ["chat"], "a trial was left"
    assert set(found.api.deletes.values()) <= {1}
    moves = [ChangeState(state) for state in states_written(found)]
    assert all(after in EDGES[before] for before, after in pairwise(moves)), moves


def always(one: Body, body: Body) -> Body:
    return one


def as_it_was(found: Bed, age: timedelta) -> Callable[[Body], Body]:
    """Every VLLMService as it was stored `age` ago."""
    then = found.api.now - age
    seen = [body for stored, kind, body in found.api.versions if kind == "VLLMService" and stored <= then]
    return lambda body: seen[-1] if seen else body


@pytest.mark.fault("T03")
@STORIES
async def test_an_answer_that_is_lost_after_the_write_costs_nothing(story: Story) -> None:
    """Every write of a story in turn; the operator goes on without knowing that it was carried out."""
    undisturbed = story.bed()
    await undisturbed.ticks(ENOUGH)
    for point in range(undisturbed.api.point):
        found = story.bed()
        found.api.loses = point
        await found.ticks(ENOUGH)
        assert_one_change(found, story)
        assert found.api.applies.keys() == undisturbed.api.applies.keys()


@pytest.mark.fault("T04")
@pytest.mark.parametrize(
    ("age", "moments"),
    [
        pytest.param(timedelta(minutes=1), range(5, 26, 5), id="a minute old"),
        # Long enough for a change to have been judged harmful since, and undone.
        pytest.param(timedelta(minutes=5), range(23, 27), id="five minutes old"),
    ],
)
@STORIES
async def test_a_restart_that_reads_the_past_writes_nothing_on_it(story: Story, age: timedelta, moments: range) -> None:
    for moment in moments:
        found = story.bed()
        await found.ticks(moment)
        found.api.shows = as_it_was(found, age)
        found.restart()
        await found.ticks(4)
        found.api.shows = lambda body: body
        await found.ticks(ENOUGH)
        assert_one_change(found, story)


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
async def test_events_that_come_twice_and_in_any_order_cost_no_write(story: Story) -> None:
    calm = story.bed()
    await calm.ticks(ENOUGH)
    for seed in range(2):
        chance, found = random.Random(seed), story.bed()
        for _ in range(ENOUGH):
            await found.tick()
            for _, kind, body in chance.choices(found.api.versions, k=30):
                if kind == "VLLMService":
                    found.registry.services.see(body)
                elif kind == "Deployment":
                    found.registry.deployments.see(body)
        assert_one_change(found, story)
        assert found.api.requests == calm.api.requests


@pytest.mark.fault("T08")
@pytest.mark.parametrize("leads", [True, False], ids=["it still leads", "its lease is over"])
@STORIES
async def test_an_api_server_that_is_away_for_ten_minutes_is_waited_for(story: Story, leads: bool) -> None:
    for moment in range(4, 24, 5):
        found = story.bed()
        await found.ticks(moment)
        last = found.api.objects["VLLMService", "chat"]
        found.api.refuses = lambda verb, name: Unavailable("no answer", reason="NoAnswer")
        found.api.shows = partial(always, last)
        found.leader.is_leader = leads
        await found.ticks(AWAY)
        found.api.refuses = lambda verb, name: None
        found.api.shows = lambda body: body
        found.leader.is_leader, found.leader.epoch = True, 1 if leads else 2
        await found.ticks(ENOUGH)
        assert_one_change(found, story)


@pytest.mark.fault("T09")
@STORIES
async def test_two_operators_that_both_think_they_lead_make_one_change(story: Story) -> None:
    """A partition that the Lease did not prevent; each sees the world as it was before the other wrote."""
    for turn in (0, 1):
        first = story.bed()
        second = Bed(first.api)
        second.leader = Leader(epoch=2)
        second.start()
        for tick in range(ENOUGH):
            first.api.pass_time(TICK)
            pair = [first, second] if (tick + turn) % 2 else [second, first]
            for each in pair:
                first.api.tell(each.registry)
            for each in pair:
                await each.loop.tick()
        assert_one_change(first, story)
