"""The Events of a written status: one a transition, none for a repeat, and the same ones after a crash."""

from collections import Counter
from datetime import timedelta

import pytest
from tests.control.desk import BLIND, CAPPED, HARMED, HEALTHY, HELPED, IDLE, OVERLOADED, Desk, desk, scaled

from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.cluster.events import Event, event_name
from vllm_autotuner.control.write.announcements import RECENT, announcements, standing


def names(events: list[Event]) -> list[str]:
    return [event_name(event, name="chat", uid="u-1") for event in events]


def story(kind: str) -> Desk:
    found = desk()
    found.until("Provisioning", CAPPED)
    match kind:
        case "helps":
            found.until(None, HELPED)
        case "harms":
            found.until("RollingBack", HARMED)
            found.until(None, HARMED)
        case "crashes":
            found.tick(CAPPED, rollout=found.rollout(settled=False, crashed="OutOfMemory"))
            found.until(None, CAPPED)
        case "held":
            found.until("Analyzing", HELPED)
            found.ticks(4, BLIND)
            found.until(None, HELPED)
        case "superseded":
            found.edit(engine__maxNumSeqs=80)
            found.tick(HEALTHY)
        case "aborted":
            found.edit(tuning__mode="Off")
            found.until(None, HEALTHY)
        case _:
            raise AssertionError(kind)
    return found


STORIES = {
    "helps": ["Started", "Verifying", "WarmingUp", "Analyzing", "Baking", "Succeeded"],
    "harms": ["Started", "Verifying", "WarmingUp", "Analyzing", "RollingBack", "RolledBack"],
    "crashes": ["Started", "RollingBack", "RolledBack"],
    "held": ["Started", "Verifying", "WarmingUp", "Analyzing", "Held", "Analyzing", "Baking", "Succeeded"],
    "superseded": ["Started", "Superseded"],
    "aborted": ["Started", "RollingBack", "RolledBack"],
}


@pytest.mark.parametrize(("kind", "told"), STORIES.items(), ids=STORIES.keys())
def test_one_event_for_each_transition(kind: str, told: list[str]) -> None:
    found = story(kind)
    changes = [event for event in found.events if event.reason.startswith("Change")]
    assert [event.reason for event in changes] == [f"Change{name}" for name in told]
    assert len(set(names(found.events))) == len(found.events)


@pytest.mark.parametrize(
    ("kind", "warnings"),
    [
        ("helps", set()),
        ("harms", {"ChangeRollingBack", "ChangeRolledBack"}),
        ("crashes", {"ChangeRollingBack", "ChangeRolledBack"}),
        ("superseded", set()),
        ("aborted", set()),
    ],
)
def test_only_harm_is_a_warning(kind: str, warnings: set[str]) -> None:
    assert {event.reason for event in story(kind).events if event.warning} == warnings


def test_notes_tell_what_and_why() -> None:
    notes = {event.reason: event.note for event in story("harms").events}
    assert notes["ChangeStarted"].startswith("Started maxNumSeqs 64 -> 128: All 64 slots (max-num-seqs) are in use")
    assert notes["ChangeRollingBack"].startswith(
        "maxNumSeqs=128 entered RollingBack: TTFT 6.0 s -> 400 ms, TPOT 18 ms -> 90 ms"
    )
    assert notes["ChangeRolledBack"].startswith("Rolled back maxNumSeqs 64 -> 128: TTFT 6.0 s")


def test_a_standing_recommendation_is_told_once() -> None:
    found = desk(tuning__mode="Recommend")
    found.ticks(20, CAPPED)
    assert found.reasons == ["Recommended"]
    assert found.events[0].note.startswith("Recommended maxNumSeqs 64 -> 128: All 64 slots (max-num-seqs) are in use")


def test_a_recommendation_that_comes_back_is_told_again() -> None:
    found = desk(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    found.ticks(3, HEALTHY)
    found.ticks(3, CAPPED)
    assert found.reasons == ["Recommended", "Recommended"]
    assert len(set(names(found.events))) == 2


def test_scaling_is_told_with_its_cause() -> None:
    found = scaled()
    found.ticks(3, HEALTHY)
    found.ticks(2, OVERLOADED)
    found.ticks(50, IDLE)
    assert found.reasons == ["ScaledOut", "ScaledIn"]
    out, back = found.events
    assert out.note.startswith("Scaled out replicas 1 -> 2: demand exceeds capacity: Up to 9 requests wait for")
    assert back.note.startswith("Scaled in replicas 2 -> 1: idle for 600 s")


def test_a_status_that_did_not_change_tells_nothing() -> None:
    found = desk(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    assert list(announcements(found.service, found.read, ended=None)) == []


# What a leader wrote and may not have lived to tell


@pytest.mark.parametrize("kind", STORIES)
def test_told_again_it_is_the_same_event(kind: str) -> None:
    """At whatever tick the leader died: the API server knows the name of all that its successor tells again."""
    found = desk()
    told: list[str] = []
    replay = story(kind)
    found.until("Provisioning", CAPPED)
    told = names(replay.events)
    again = names(list(standing(replay.read, now=replay.now)))
    assert again
    assert set(again) <= set(told)
    assert set(names(list(standing(found.read, now=found.now)))) <= set(told)


def test_while_a_change_is_under_way_its_start_and_its_state_are_told_again() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    again = list(standing(found.read, now=found.now))
    assert [event.reason for event in again] == ["ChangeStarted", "ChangeAnalyzing"]


def test_what_is_no_news_is_not_told_again() -> None:
    found = story("harms")
    later = found.now + RECENT
    assert list(standing(found.read, now=later)) == []
    assert list(standing(VLLMServiceStatus(), now=later)) == []


def test_each_change_of_a_day_is_told_apart() -> None:
    found = desk(tuning__cooldown="1m")
    for _ in range(2):
        found.until("Provisioning", CAPPED)
        found.tick(CAPPED, rollout=found.rollout(settled=False, crashed="OutOfMemory"))
        found.until(None, CAPPED)
        found.now += timedelta(minutes=2)
    counted = Counter(event.reason for event in found.events)
    assert counted["ChangeStarted"] == counted["ChangeRolledBack"] == 2
    assert len(set(names(found.events))) == len(found.events)
