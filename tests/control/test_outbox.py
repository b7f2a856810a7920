"""An Event belongs to a transition that was written, and is told once, however long it cannot be posted."""

from collections import Counter
from datetime import timedelta

import pytest
from tests.control.loop_bed import Bed, bed, queueing

from vllm_autotuner.api.status import UNTOLD_LENGTH, VLLMServiceStatus
from vllm_autotuner.cluster.errors import Refused, Unavailable
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.control.write.event_outbox import remembering

ENDS = 44
"""Ticks after which the change is over; it is kept."""
TOLD = ["Started", "Verifying", "WarmingUp", "Analyzing", "Baking", "Succeeded"]
MUTE = {
    "a permission is missing": Refused("events is forbidden", reason="Forbidden", status=403),
    "the API server does not answer": Unavailable("no answer", reason="NoAnswer"),
}


def changes(found: Bed) -> list[str]:
    return [reason.removeprefix("Change") for reason in found.told if reason.startswith("Change")]


@pytest.mark.fault("T38")
@pytest.mark.parametrize("error", MUTE.values(), ids=MUTE.keys())
@pytest.mark.parametrize("restarts", [False, True], ids=["one leader", "a new leader every few minutes"])
async def test_events_that_cannot_be_posted_for_hours_are_told_once_and_in_order(
    error: Exception, restarts: bool
) -> None:
    found = bed(load=queueing)
    found.api.refuses = lambda verb, name: error if verb == "event" else None
    for tick in range(ENDS):
        if restarts and tick % 13 == 12:
            found.restart()
        await found.tick()
    assert found.status().history
    assert found.told == []
    assert [each.reason for each in found.status().untold][-len(TOLD) :] == [f"Change{name}" for name in TOLD]
    found.api.pass_time(timedelta(hours=4))  # nothing of it is news any more
    await found.ticks(3)
    writes = found.api.requests["status"]
    await found.ticks(3)
    assert found.api.requests["status"] == writes, "what waits is written once"
    found.restart()
    found.api.refuses = lambda verb, name: None
    await found.ticks(5)
    assert changes(found) == TOLD
    assert max(Counter(found.told).values()) == 1
    assert found.status().untold == ()


async def test_what_was_written_while_the_answer_got_lost_is_told_when_the_api_is_back_after_half_an_hour() -> None:
    found = bed(load=queueing)
    await found.ticks(3)
    while found.change() is None:
        found.api.loses = found.api.point  # the answer to whatever is written next
        await found.tick()
        assert found.status().history == ()
    found.api.refuses = lambda verb, name: MUTE["the API server does not answer"]
    await found.tick()
    found.api.pass_time(timedelta(minutes=30))
    await found.tick()
    found.api.refuses, found.api.loses = lambda verb, name: None, None
    await found.ticks(2)
    assert changes(found)[0] == "Started"


async def test_an_event_that_is_posted_at_the_second_attempt_costs_no_write_of_a_status() -> None:
    """Where every third answer is 429, those of a fleet would be two more writes for each Event."""

    async def writes(*, fails: bool) -> int:
        found, failed = bed(spec={"tuning.mode": "Recommend"}, load=queueing), list[str]()

        def refuse_one(verb: str, name: str) -> Exception | None:
            if not fails or verb != "event" or failed:
                return None
            failed.append(name)
            return Unavailable("too many requests", reason="TooManyRequests", status=429)

        found.api.refuses = refuse_one
        await found.ticks(15)
        assert found.told == ["Recommended"]
        return found.api.requests["status"]

    assert await writes(fails=True) == await writes(fails=False)


async def test_events_that_nobody_answers_are_tried_once_in_two_ticks_and_not_in_front_of_each_write() -> None:
    """Each attempt takes ten seconds, and what is written to the workload waits for it."""
    found = bed("chat", "code", "search", spec={"tuning.mode": "Recommend"}, load=queueing)
    found.api.refuses = lambda verb, name: Unavailable("no answer", reason="NoAnswer") if verb == "event" else None
    while not found.api.requests["event"]:
        await found.tick()
    await found.ticks(6)
    assert found.api.requests["event"] <= 4
    found.api.refuses = lambda verb, name: None
    await found.ticks(3)
    assert found.told == ["Recommended"] * 3


async def test_an_event_that_is_refused_delays_no_other() -> None:
    found = bed(load=queueing)
    wrong = Refused("note is too long", reason="Invalid", status=422)
    refused: list[str] = []

    def refuse_one(verb: str, name: str) -> Exception | None:
        if verb == "event" and not refused:
            refused.append(name)
            return wrong
        return None

    found.api.refuses = refuse_one
    await found.ticks(ENDS)
    assert refused
    assert changes(found)[-1] == "Succeeded"
    assert found.status().untold == ()


def test_a_status_remembers_the_newest_and_no_more_than_it_has_room_for() -> None:
    events = [
        Event(reason=f"R{number}", note="n" * 2000, action="Tune", transition=str(number)) for number in range(30)
    ]
    kept = VLLMServiceStatus.model_validate(remembering(VLLMServiceStatus(), events).model_dump()).untold
    assert [each.reason for each in kept] == [f"R{number}" for number in range(30 - UNTOLD_LENGTH, 30)]
