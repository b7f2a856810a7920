"""What a person reads whose request finds nothing to act upon: told once, with what works, and over."""

import pytest
from tests.control.desk import CAPPED, HEALTHY, HELPED, Desk, desk

from vllm_autotuner.api.annotations import PREFIX
from vllm_autotuner.api.status import Outcome
from vllm_autotuner.control.decide.annotation_commands import RequestKind
from vllm_autotuner.control.write.announcements import standing

ROLLBACK = f"{PREFIX}{RequestKind.ROLLBACK}"
NOTHING = "no change in progress, nothing to roll back. "


def kept(**changes: object) -> Desk:
    """A service whose change from 64 to 128 seats has been kept."""
    found = desk(**changes)
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    assert found.read.history[-1].outcome is Outcome.SUCCEEDED
    return found


def answer(found: Desk) -> str | None:
    """What stands in the status; the Event says the same."""
    (request,) = found.read.handled_requests
    told = [event for event in found.events if event.reason == "NothingToDo"]
    assert [event.note for event in told if event.warning] == [f"rollback={request.nonce}: {request.answer}"]
    return request.answer


def ask(found: Desk, nonce: str = "1") -> None:
    found.annotations[ROLLBACK] = nonce


def test_after_a_change_was_kept_what_brings_the_old_value_back_is_told_once() -> None:
    found = kept()
    found.ticks(2, HELPED)
    ask(found)
    found.tick(HELPED)
    assert answer(found) == (
        f"{NOTHING}Tuned values in force: maxNumSeqs=128. "
        "To restore maxNumSeqs=64, exclude 128 from spec.tuning.maxNumSeqs"
    )
    writes = found.writes
    found.ticks(20, HELPED)
    assert (found.writes, found.seats) == (writes, 128)


def test_what_is_told_is_what_works() -> None:
    found = kept()
    ask(found)
    found.tick(HELPED)
    found.edit(tuning__maxNumSeqs={"min": 16, "max": 127})
    found.ticks(2, HEALTHY)
    assert found.seats == 64


def test_another_request_is_answered_again_and_its_event_is_another_one() -> None:
    found = kept()
    for nonce in ("1", "2"):
        ask(found, nonce)
        found.ticks(3, HELPED)
    told = [event for event in found.events if event.reason == "NothingToDo"]
    assert [event.note.partition(":")[0] for event in told] == ["rollback=1", "rollback=2"]
    assert len({event.transition for event in told}) == 2


def test_it_does_not_wait_for_the_next_change() -> None:
    found = desk()
    ask(found)
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    assert found.read.history[-1].outcome is Outcome.SUCCEEDED
    assert found.read.failure_memory == ()


def test_where_nothing_was_tuned_the_spec_is_named() -> None:
    found = desk()
    ask(found)
    found.ticks(3, HEALTHY)
    assert answer(found) == f"{NOTHING}No tuned value is in force: edit spec.engine instead"


@pytest.mark.parametrize("mode", ["Recommend", "Approve"])
def test_where_only_a_recommendation_stands_the_no_to_it_is_named(mode: str) -> None:
    found = desk(tuning__mode=mode)
    found.tick(CAPPED)
    advice = found.read.recommendation
    assert advice is not None
    ask(found)
    found.tick(CAPPED)
    assert (answer(found) or "").endswith(f"To reject the recommendation: vllm-autotuner.dev/reject={advice.id}")
    found.annotations[f"{PREFIX}{RequestKind.REJECT}"] = advice.id
    found.tick(CAPPED)
    assert [entry.candidate for entry in found.read.failure_memory] == ["maxNumSeqs=128"]


def test_a_change_that_is_taken_back_is_told_by_itself() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    ask(found)
    found.until(None, CAPPED)
    assert [request.answer for request in found.read.handled_requests] == [None]
    assert "NothingToDo" not in found.reasons


def test_a_leader_that_did_not_live_to_tell_is_followed_by_one_that_does() -> None:
    found = kept()
    ask(found)
    found.tick(HELPED)
    (told,) = (event for event in found.events if event.reason == "NothingToDo")
    assert told in list(standing(found.read, now=found.now))
