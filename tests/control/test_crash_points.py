"""Kill the operator at every request that changes something, before and after it takes effect, and start it anew.

The real fleet loop over the model of its world: same end, same history, same number of rollouts as if nothing had been.
"""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.control.cluster_model import Killed, Load
from tests.control.loop_bed import Bed, bed, queueing, slow_beyond_64

from vllm_autotuner.api.status import Outcome

ENOUGH = 44
"""Ticks after which every one of these stories is over, also when a restart cost it a window."""
BEFORE = re.compile(r" vs \d+ requests")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


@dataclass(frozen=True, kw_only=True)
class Story:
    id: str
    world: dict[str, Any]
    outcome: Outcome
    seats: int
    spec: dict[str, Any] = field(default_factory=dict)
    """What differs from the usual one."""
    rollouts: int
    """Times that a Deployment was applied."""
    replicas: int = 1
    deletes: int = 0
    """Times that one was deleted."""
    left: int = 0
    """Pods with the value that was undone: a Deployment takes none away before its new ones are ready."""


STORIES = (
    Story(id="a change that helps", world={"load": queueing}, outcome=Outcome.SUCCEEDED, seats=128, rollouts=2),
    Story(id="a change that harms", world={"load": slow_beyond_64}, outcome=Outcome.ROLLED_BACK, seats=64, rollouts=3),
    Story(
        id="a change that does not start",
        world={"load": queueing, "crashes": lambda seats: seats > 64},
        outcome=Outcome.ROLLED_BACK,
        seats=64,
        rollouts=3,
    ),
    Story(
        id="a canary that helps",
        world={"load": queueing},
        outcome=Outcome.SUCCEEDED,
        seats=128,
        replicas=3,
        rollouts=4,
        deletes=2,
    ),
    Story(
        id="a canary that harms",
        world={"load": slow_beyond_64},
        outcome=Outcome.ROLLED_BACK,
        seats=64,
        replicas=3,
        rollouts=3,
        deletes=2,
    ),
    Story(
        id="an engine that does not start, and its remedy",
        world={"holds": 4096},
        spec={"engine.maxModelLen": 8192, "tuning.maxModelLen": {"min": 1024, "max": 8192}},
        outcome=Outcome.SUCCEEDED,
        seats=64,
        rollouts=2,
    ),
    Story(
        id="an engine that does not start, and a remedy that does not either",
        world={"holds": 4096, "crashes": lambda seats: True},
        spec={"engine.maxModelLen": 8192, "tuning.maxModelLen": {"min": 1024, "max": 8192}},
        outcome=Outcome.ROLLED_BACK,
        seats=64,
        rollouts=3,
        left=1,
    ),
)


def figures(found: Bed) -> dict[str, Any]:
    """The end of a story, without the times at which it came about."""
    status = copy.deepcopy(found.api.objects["VLLMService", "chat"]["status"])
    # Made from the time of the question.
    status.get("recommendation", {}).pop("id", None)
    # A tick that is lost while the new pod starts is a window of before that was not measured.
    told = BEFORE.sub("", TIMES.sub("T", json.dumps(status)))
    template = found.deployment()["spec"]
    events = sorted((event.reason, event.transition.split("/")[0]) for event in found.api.events.values())
    return {
        "status": json.loads(told),
        "deployment": template,
        "rollouts": dict(found.api.applies),
        "deletes": dict(found.api.deletes),
        # A recommendation that comes and goes within one tick may be told or not.
        "events": [event for event in events if event[0] != "Recommended"],
    }


async def end_of(story: Story, *, disturb: Callable[[Bed, int], None] = lambda found, tick: None) -> Bed:
    found = bed(spec={"replicas": story.replicas, **story.spec}, **story.world)
    disturb(found, -1)
    for tick in range(ENOUGH):
        disturb(found, tick)
        try:
            await found.tick()
        except Killed:
            found.api.kill = None
            found.restart()
    return found


def restart_when(due: Callable[[int], bool]) -> Callable[[Bed, int], None]:
    def disturb(found: Bed, tick: int) -> None:
        if due(tick):
            found.restart()

    return disturb


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.id)
async def test_undisturbed(story: Story) -> None:
    found = await end_of(story)
    status = found.status()
    assert [entry.outcome for entry in status.history] == [story.outcome]
    assert (found.change(), found.seats()) == (None, story.seats)
    assert found.api.applies.total() == story.rollouts
    assert found.told.count("ChangeStarted") == found.told.count(f"Change{story.outcome}") == 1
    assert found.api.deletes.total() == story.deletes
    assert len(found.api.pods) == story.replicas + story.left


@pytest.mark.fault("T01", "T02")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.id)
async def test_killed_at_every_request(story: Story, when: str) -> None:
    undisturbed = await end_of(story)
    wanted = figures(undisturbed)
    assert undisturbed.api.point > 10
    for point in range(undisturbed.api.point):

        def kill(found: Bed, tick: int, point: int = point) -> None:
            if tick == -1:
                found.api.kill = (point, when)

        found = await end_of(story, disturb=kill)
        assert found.api.kill is None, f"request {point} never came"
        assert figures(found) == wanted, f"killed {when} request {point}"


@pytest.mark.fault("T32")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.id)
async def test_restarted_before_every_tick(story: Story) -> None:
    """T32: whatever a leader remembers, losing it costs time and nothing else."""
    wanted = figures(await end_of(story))
    for moment in range(20):
        found = await end_of(story, disturb=restart_when(moment.__eq__))
        assert figures(found) == wanted, f"restarted before tick {moment}"


@pytest.mark.fault("T32")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.id)
async def test_restarted_every_other_minute(story: Story) -> None:
    found = await end_of(story, disturb=restart_when(lambda tick: tick % 8 == 7))
    assert [entry.outcome for entry in found.status().history] == [story.outcome]
    assert (found.seats(), found.api.applies.total()) == (story.seats, story.rollouts)


def test_the_loads_are_what_the_stories_say() -> None:
    assert queueing(64).waiting > 0 == queueing(128).waiting
    assert slow_beyond_64(128).tpot > 0.05 > Load().tpot
