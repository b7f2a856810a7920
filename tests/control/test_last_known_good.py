"""What a rollback returns to is what was seen to serve: no candidate and no failed edit ever takes its place."""

from collections.abc import Callable

import pytest
from tests.control.desk import BLIND, CAPPED, HARMED, HEALTHY, HELPED, Desk, desk

from vllm_autotuner.api.status import LastKnownGood, Outcome


def known_good(found: Desk) -> LastKnownGood:
    good = found.read.last_known_good
    assert good is not None
    return good


def crashes_at_start(found: Desk) -> None:
    found.until("Provisioning", CAPPED)
    found.tick(CAPPED, rollout=found.rollout(settled=False, ready=1, crashed="OutOfMemory: CUDA out of memory"))


def makes_tokens_slow(found: Desk) -> None:
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.until("RollingBack", HARMED)


def is_never_judged(found: Desk) -> None:
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.until("RollingBack", BLIND, at_most=400)


def is_taken_back_by_a_person(found: Desk) -> None:
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.edit(tuning__mode="Recommend")
    found.tick(HELPED)


@pytest.mark.parametrize(
    "story",
    [crashes_at_start, makes_tokens_slow, is_never_judged, is_taken_back_by_a_person],
    ids=lambda one: one.__name__,
)
def test_a_candidate_that_fails_never_becomes_what_is_known_as_good(story: Callable[[Desk], None]) -> None:
    found = desk()
    found.tick(HEALTHY)
    before = known_good(found)
    assert before.max_num_seqs == 64
    story(found)
    assert known_good(found) == before, "while it is undone"
    found.until(None, CAPPED)
    assert found.read.history[-1].outcome is not Outcome.SUCCEEDED
    assert known_good(found) == before, "not even written anew: the time of its verification stands"
    assert found.seats == 64


def test_an_edit_that_never_serves_does_not_become_what_is_known_as_good() -> None:
    found = desk(tuning__mode="Recommend")
    found.tick(HEALTHY)
    before = known_good(found)
    found.edit(engine__maxNumSeqs=256)
    found.ticks(20, HEALTHY, rollout=found.rollout(settled=False, ready=0, crashed="OutOfMemory"))
    assert known_good(found) == before
    found.tick(HEALTHY)
    assert known_good(found).max_num_seqs == 256, "once its pods are ready it does"
