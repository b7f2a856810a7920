"""What was decided reaches the cluster most urgent first, a few at a time, and each service once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vllm_autotuner.control.run.effects import Effects, Urgency, Waits, Work


class Slow:
    """An API server that answers when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.answers = asyncio.Event()

    def write(self, name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            self.begun.append(name)
            await self.answers.wait()

        return work


async def test_a_few_at_a_time_and_the_most_urgent_first() -> None:
    api, effects = Slow(), Effects(at_once=2)
    for name, urgency in (
        ("told", Urgency.REPORT),
        ("told-too", Urgency.REPORT),
        ("replicas", Urgency.REPLICAS),
        ("change", Urgency.CHANGE),
        ("told-last", Urgency.REPORT),
    ):
        effects.add(name, api.write(name), urgency=urgency)
    await asyncio.sleep(0)
    assert api.begun == ["told", "told-too"], "what has begun is not interrupted"
    api.answers.set()
    await effects.settled(within=5)
    assert api.begun[2:] == ["change", "replicas", "told-last"]
    assert len(effects) == 0


async def test_who_waits_does_not_wait_for_ever_and_a_service_is_on_its_way_once() -> None:
    api, effects = Slow(), Effects(at_once=1)
    effects.add("a", api.write("a"), urgency=Urgency.CHANGE)
    effects.add("b", api.write("b"), urgency=Urgency.CHANGE)
    await effects.settled(within=0.01)
    assert effects.on_their_way() == {"a", "b"}
    with pytest.raises(ValueError, match="on its way"):
        effects.add("b", api.write("b"), urgency=Urgency.CHANGE)


async def test_how_many_wait_and_for_how_long_is_known_by_urgency() -> None:
    api, effects = Slow(), Effects(at_once=1)
    assert effects.waits() == dict.fromkeys(Urgency, Waits())
    effects.add("a", api.write("a"), urgency=Urgency.CHANGE)
    effects.add("b", api.write("b"), urgency=Urgency.REPORT)
    await asyncio.sleep(0.02)
    effects.add("c", api.write("c"), urgency=Urgency.REPORT)
    waits = effects.waits()
    assert {urgency: found.services for urgency, found in waits.items()} == {
        Urgency.CHANGE: 1,
        Urgency.REPLICAS: 0,
        Urgency.BEGIN: 0,
        Urgency.REPORT: 2,
    }
    assert waits[Urgency.REPORT].seconds >= 0.02
    api.answers.set()
    await effects.settled(within=5)
    assert effects.waits() == dict.fromkeys(Urgency, Waits())


async def test_what_has_not_begun_is_dropped_when_another_leads() -> None:
    api, effects = Slow(), Effects(at_once=1)
    effects.add("a", api.write("a"), urgency=Urgency.CHANGE)
    effects.add("b", api.write("b"), urgency=Urgency.CHANGE)
    await asyncio.sleep(0)
    effects.drop_waiting()
    api.answers.set()
    await effects.settled(within=5)
    assert api.begun == ["a"]
    assert len(effects) == 0


async def test_what_breaks_is_raised_where_somebody_waits_and_the_others_go_on() -> None:
    api, effects = Slow(), Effects(at_once=1)

    async def broken() -> None:
        raise RuntimeError("a defect")

    effects.add("a", broken, urgency=Urgency.CHANGE)
    effects.add("b", api.write("b"), urgency=Urgency.CHANGE)
    api.answers.set()
    with pytest.raises(RuntimeError, match="a defect"):
        await effects.settled(within=5)
    await effects.settled(within=5)
    assert api.begun == ["b"]


async def test_what_is_left_of_work_waits_behind_all_that_is_as_urgent() -> None:
    order, effects = list[str](), Effects(at_once=1)

    def in_two_parts(name: str) -> Work:
        async def rest() -> None:
            order.append(f"rest of {name}")

        async def first() -> Work:
            order.append(name)
            return rest

        return first

    for name, urgency in (("a", Urgency.BEGIN), ("b", Urgency.BEGIN), ("told", Urgency.REPORT)):
        effects.add(name, in_two_parts(name), urgency=urgency)
    await effects.settled(within=5)
    assert order == ["a", "b", "rest of a", "rest of b", "told", "rest of told"]
    assert len(effects) == 0


async def test_what_is_left_of_work_is_dropped_with_what_waits() -> None:
    answers, order, effects = asyncio.Event(), list[str](), Effects()

    async def rest() -> None:
        order.append("rest")

    async def first() -> Work:
        await answers.wait()
        return rest

    effects.add("a", first, urgency=Urgency.BEGIN)
    await asyncio.sleep(0)
    effects.drop_waiting()
    assert effects.on_their_way() == {"a"}
    answers.set()
    await effects.settled(within=5)
    assert (order, len(effects)) == ([], 0)
