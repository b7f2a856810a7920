"""The record of recommendations over many ticks: made, carried out by a person, compared, told once."""

import pytest
from tests.builders import engine, latency, observation
from tests.control.desk import CAPPED, HARMED, HELPED, Desk, desk
from tests.planning.situations import line, served

from vllm_autotuner.api.status import ComparedBy, Foretold
from vllm_autotuner.observation.observation import Observation

STEPS = line(8, 16, 32, 60, base=0.010, per_sequence=0.000128)
OUTPUT = 1640.0
"""Tokens of an answer, so that 64 sequences at 18.2 ms each finish as many requests as `served` counts."""
FULL = served(CAPPED, steps=STEPS, output=OUTPUT)
NO_QUEUE = served(
    observation(engine(running=64.0, kv=0.32), ttft=latency(0.1), tpot=latency(0.0182), itl=latency(0.0182)),
    output=OUTPUT,
)
"""As many requests come as before, and none waits."""


def advised() -> Desk:
    found = desk(tuning__mode="Recommend")
    found.ticks(6, FULL)
    return found


def done_by_hand(found: Desk, seats: int, seen: Observation, *, ticks: int = 12) -> Foretold:
    found.edit(engine__maxNumSeqs=seats)
    found.newest_since = found.now
    found.ticks(ticks, seen)
    (record,) = found.read.track_record
    return record


@pytest.mark.parametrize(("seen", "held"), [(NO_QUEUE, True), (served(HARMED), False)], ids=["as foretold", "worse"])
def test_what_a_person_carried_out_is_compared_with_what_was_foretold(seen: Observation, *, held: bool) -> None:
    found = advised()
    (foretold,) = found.read.track_record
    standing = found.read.recommendation
    assert standing is not None
    assert (foretold.id, foretold.recommended, foretold.came) == (standing.id, standing.recommended, None)
    came = done_by_hand(found, int(foretold.recommended), seen).came
    assert came is not None
    assert (came.compared_by, came.held) == (ComparedBy.VALUE, held)
    assert came.at > foretold.made_at


def test_a_standing_recommendation_writes_once() -> None:
    found = advised()
    writes = found.writes
    found.ticks(20, FULL)
    assert found.writes == writes


def test_another_value_than_the_recommended_one_tells_nothing() -> None:
    assert done_by_hand(advised(), 80, served(HELPED)).came is None


def test_windows_from_before_the_new_pods_are_ready_do_not_count() -> None:
    found = advised()
    wanted = int(found.read.track_record[0].recommended)
    assert done_by_hand(found, wanted, served(HELPED), ticks=4).came is None


def test_what_the_operator_tries_itself_has_a_verdict_instead() -> None:
    found = advised()
    found.edit(tuning__mode="Automatic")
    found.until("Analyzing", FULL)
    assert found.read.track_record == ()
