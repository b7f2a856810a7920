"""History, failure memory, cooldown and circuit breaker after a change."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.change.worlds import NOW, analysis, change
from tests.planning.situations import situation
from tests.workload.services import service

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import (
    ActiveChange,
    BudgetStatus,
    ChangeState,
    CircuitState,
    Outcome,
    VLLMServiceStatus,
    parse_status,
)
from vllm_autotuner.change.failure_memory import environment_of, failed_values, without_declined
from vllm_autotuner.change.finishing import finished
from vllm_autotuner.change.machine import Ending
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.guardrails.cooldown import spent

SPEC = service({"tuning.cooldown": "2h"}).spec
DAY = timedelta(days=1)
HARMFUL, WITHOUT_EFFECT, NEVER_JUDGED = True, False, None


def ended(
    status: VLLMServiceStatus | None = None,
    outcome: Outcome = Outcome.ROLLED_BACK,
    *,
    harmful: bool | None = HARMFUL,
    now: datetime = NOW,
    spec: Any = SPEC,
    **changed: Any,
) -> VLLMServiceStatus:
    """The status after a change, as it comes back from the API server."""
    ending_one = change(ChangeState.ROLLING_BACK, harmful=harmful, analysis=analysis(good=1), **changed)
    before = status or VLLMServiceStatus().updated(active_change=ending_one)
    after = finished(before, ending_one, Ending(outcome=outcome, reason="TTFT rose"), spec=spec, now=now)
    assert parse_status(to_wire(after)) == after, "it does not survive the way to the API server and back"
    return after


def failed_seats(spec: Any, status: VLLMServiceStatus, *, now: datetime) -> tuple[int, ...]:
    """What planning avoids by this memory."""
    failed = failed_values(spec, status, now=now)
    return situation(primary=DiagnosisClass.HEALTHY, failed_values=failed).failed_seats


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_ending_leaves_one_history_entry_and_a_cooldown(outcome: Outcome) -> None:
    after = ended(outcome=outcome, harmful=None)
    assert after.active_change is None
    assert after.cooldown_until == NOW + timedelta(hours=2)
    (entry,) = after.history
    assert (entry.id, entry.knob, entry.from_value, entry.to_value) == ("c1", "maxNumSeqs", "64", "96")
    assert (entry.outcome, entry.reason, entry.finished_at) == (outcome, "TTFT rose", NOW)
    assert entry.before is not None
    assert entry.after is not None


@pytest.mark.parametrize(
    ("outcome", "harmful", "declined", "hours"),
    [
        pytest.param(Outcome.ROLLED_BACK, WITHOUT_EFFECT, None, 0.5, id="no clear effect: as long as a bake"),
        pytest.param(Outcome.ROLLED_BACK, NEVER_JUDGED, None, 0.5, id="never judged"),
        pytest.param(Outcome.ROLLED_BACK, HARMFUL, None, 6, id="harm"),
        pytest.param(Outcome.ROLLED_BACK, NEVER_JUDGED, True, 6, id="a user asked for the rollback"),
        pytest.param(Outcome.SUCCEEDED, NEVER_JUDGED, None, 6, id="kept: the next one goes on from it, or waits"),
        pytest.param(Outcome.SUPERSEDED, NEVER_JUDGED, None, 6, id="a new spec"),
        pytest.param(Outcome.ROLLBACK_FAILED, WITHOUT_EFFECT, None, 6, id="what ran before does not run again"),
    ],
)
def test_what_did_no_harm_keeps_no_other_value_waiting(
    outcome: Outcome, harmful: bool | None, declined: bool | None, hours: float
) -> None:
    after = ended(outcome=outcome, harmful=harmful, spec=service({}).spec, declined=declined)
    assert after.cooldown_until == NOW + timedelta(hours=hours)
    written = ended(outcome=outcome, harmful=harmful, spec=SPEC, declined=declined)
    assert written.cooldown_until == NOW + timedelta(hours=2)


@pytest.mark.parametrize(("harmful", "hours"), [(NEVER_JUDGED, 6), (WITHOUT_EFFECT, 0.5)])
def test_a_promotion_that_found_no_room_is_not_tried_again_at_once(harmful: bool | None, hours: float) -> None:
    """Its value is not remembered, because it was not to blame: the next change would be the same."""
    spec = service({}).spec
    after = ended(harmful=harmful, promoted=True, spec=spec)
    assert after.cooldown_until == NOW + timedelta(hours=hours)
    assert bool(failed_values(spec, after, now=NOW)) == (harmful is not None)


def test_an_undone_change_ends_no_cooldown_of_before() -> None:
    """Kept, then another knob that did no harm: half an hour later the way back would be allowed (T31)."""
    kept = ended(outcome=Outcome.SUCCEEDED, harmful=NEVER_JUDGED, spec=service({}).spec)
    after = ended(kept, harmful=WITHOUT_EFFECT, spec=service({}).spec, now=NOW + timedelta(hours=1))
    assert after.cooldown_until == kept.cooldown_until == NOW + timedelta(hours=6)
    later = ended(kept, harmful=WITHOUT_EFFECT, spec=service({}).spec, now=NOW + timedelta(hours=5, minutes=45))
    assert later.cooldown_until == NOW + timedelta(hours=6, minutes=15)


@pytest.mark.fault("T35")
def test_history_keeps_the_newest_ten() -> None:
    """More would be refused by the API server, and the status could never be written again."""
    status = VLLMServiceStatus()
    for number in range(12):
        status = ended(status, Outcome.SUCCEEDED, harmful=None, id=f"c{number}")
    assert [entry.id for entry in status.history] == [f"c{number}" for number in range(2, 12)]


@pytest.mark.parametrize(
    ("harmful", "outcome", "remembers", "counts"),
    [
        pytest.param(HARMFUL, Outcome.ROLLED_BACK, True, True, id="harm is finished, and counts"),
        pytest.param(WITHOUT_EFFECT, Outcome.ROLLED_BACK, True, False, id="no effect is finished, and does not count"),
        pytest.param(NEVER_JUDGED, Outcome.ROLLED_BACK, False, False, id="what was never judged is no failure"),
        pytest.param(NEVER_JUDGED, Outcome.SUCCEEDED, False, False, id="success is no failure"),
        pytest.param(NEVER_JUDGED, Outcome.SUPERSEDED, False, False, id="an edit of the user is no failure"),
        pytest.param(
            HARMFUL,
            Outcome.SUPERSEDED,
            True,
            True,
            id="harm is not forgotten because the user edited something meanwhile",
        ),
    ],
)
def test_blame(harmful: bool | None, outcome: Outcome, remembers: bool, counts: bool) -> None:
    after = ended(outcome=outcome, harmful=harmful)
    assert bool(after.failure_memory) is remembers
    assert (after.circuit is not None) is counts
    assert failed_seats(SPEC, after, now=NOW) == ((96,) if remembers else ())


@pytest.mark.parametrize(
    ("harmful", "hours"),
    [
        pytest.param(HARMFUL, [24, 48, 96, 168, 168], id="harm: a day, doubling, at most a week"),
        pytest.param(
            WITHOUT_EFFECT, [6, 12, 24, 48, 96, 168, 168], id="no effect: six hours, doubling, at most a week"
        ),
    ],
)
def test_how_long_a_candidate_rests(harmful: bool, hours: list[int]) -> None:
    status, now = VLLMServiceStatus(), NOW
    for count, rest in enumerate(hours, start=1):
        status = ended(status, harmful=harmful, now=now)
        (entry,) = status.failure_memory
        assert (entry.candidate, entry.failures) == ("maxNumSeqs=96", count)
        assert entry.retry_after == now + timedelta(hours=rest)
        assert failed_seats(SPEC, status, now=now + timedelta(hours=rest, seconds=-1)) == (96,)
        assert failed_seats(SPEC, status, now=now + timedelta(hours=rest)) == ()
        now += timedelta(days=30)


def test_what_the_engine_refuses_rests_until_a_second_refusal_cannot_open_the_circuit() -> None:
    first = ended(refused=True)
    (entry,) = first.failure_memory
    assert entry.retry_after == NOW + timedelta(days=7)
    again = ended(first, refused=True, now=entry.retry_after)
    assert (again.failure_memory[0].failures, again.failure_memory[0].retry_after) == (2, NOW + timedelta(days=14))
    assert again.circuit is not None
    assert again.circuit.state is CircuitState.CLOSED


@pytest.mark.parametrize("harmful", [HARMFUL, WITHOUT_EFFECT, NEVER_JUDGED])
@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.ROLLBACK_FAILED, Outcome.SUPERSEDED])
def test_what_a_person_declined_rests_until_he_asks_for_it(harmful: bool | None, outcome: Outcome) -> None:
    after = ended(outcome=outcome, harmful=harmful, declined=True)
    assert failed_seats(SPEC, after, now=NOW + 1000 * DAY) == (96,)
    (entry,) = after.failure_memory
    assert (entry.declined_at, entry.failures) == (NOW, 0 if harmful is NEVER_JUDGED else 1)
    assert entry.reason == ("a user requested a rollback" if harmful is NEVER_JUDGED else "TTFT rose")
    asked = after.updated(failure_memory=without_declined(after.failure_memory))
    blamed = ended(outcome=outcome, harmful=harmful).failure_memory
    assert asked.failure_memory == blamed, "a failed value stays blocked as long as before"


def test_what_failed_before_it_was_declined_is_counted_on_and_known_afterwards() -> None:
    failed = ended(harmful=WITHOUT_EFFECT, lacked_memory=True)
    declined = ended(failed, harmful=NEVER_JUDGED, declined=True, now=NOW + DAY)
    (entry,) = declined.failure_memory
    assert (entry.failures, entry.reason, entry.declined_at) == (1, "TTFT rose", NOW + DAY)
    assert without_declined(declined.failure_memory) == failed.failure_memory
    (again,) = ended(declined, harmful=HARMFUL).failure_memory
    assert (again.failures, again.declined_at) == (2, NOW + DAY)


def test_what_was_declined_elsewhere_may_be_tried() -> None:
    other = service({"engine.image": "vllm/vllm-openai:v0.33.0"}).spec
    assert failed_seats(other, ended(harmful=NEVER_JUDGED, declined=True), now=NOW) == ()


def test_candidates_are_remembered_apart() -> None:
    status = ended(ended(), to_value="80", id="c2")
    assert failed_seats(SPEC, status, now=NOW) == (96, 80)
    assert [entry.failures for entry in status.failure_memory] == [1, 1]


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"engine.image": "vllm/vllm-openai:v0.33.0"}, id="another image"),
        pytest.param({"engine.args": ["--enforce-eager"]}, id="other flags"),
        pytest.param({"model.name": "Qwen/Qwen3-8B"}, id="another model"),
        pytest.param({"model.revision": "v2"}, id="another revision"),
        pytest.param({"accelerator.product": "NVIDIA-H200"}, id="another device"),
    ],
)
def test_what_failed_elsewhere_may_be_tried(elsewhere: Mapping[str, Any]) -> None:
    moved = service({"tuning.cooldown": "2h", **elsewhere}).spec
    assert environment_of(moved) != environment_of(SPEC)
    assert failed_seats(moved, ended(), now=NOW) == ()
    assert failed_seats(SPEC, ended(), now=NOW) == (96,)


def test_tuned_values_and_bounds_are_no_other_environment() -> None:
    same = service({"engine.maxNumSeqs": 64, "tuning.maxNumSeqs": {"min": 1, "max": 512}, "replicas": 5}).spec
    assert environment_of(same) == environment_of(SPEC)


@pytest.mark.fault("T35")
def test_the_newest_twenty_failures_are_kept() -> None:
    status = VLLMServiceStatus()
    for seats in range(1, 26):
        status = ended(status, harmful=WITHOUT_EFFECT, to_value=str(seats))
    assert failed_seats(SPEC, status, now=NOW) == tuple(range(6, 26))


def closed(*moments: datetime) -> VLLMServiceStatus:
    status = VLLMServiceStatus()
    for moment in moments:
        status = ended(status, now=moment)
    return status


@pytest.mark.fault("T40")
@pytest.mark.parametrize(
    ("days", "opens"),
    [
        pytest.param([0], False, id="one rollback"),
        pytest.param([0, 1], True, id="two within a day"),
        pytest.param([0, 6.9], True, id="two within seven days"),
        pytest.param([0, 7], False, id="two, seven days apart"),
        pytest.param([0, 7, 14], False, id="one a week for ever"),
        pytest.param([0, 7, 13], True, id="the second week had two"),
    ],
)
def test_two_harmful_rollbacks_in_seven_days_open_the_circuit(days: list[float], opens: bool) -> None:
    after = closed(*(NOW + DAY * day for day in days))
    assert after.circuit is not None
    assert (after.circuit.state is CircuitState.OPEN) is opens
    if opens:
        last = NOW + DAY * days[-1]
        assert (after.circuit.opened_at, after.circuit.until) == (last, last + 14 * DAY)
        assert after.circuit.reason == "2 changes were rolled back within 7 days"


def test_after_an_open_circuit_counting_begins_anew() -> None:
    after = closed(NOW, NOW + DAY, NOW + 16 * DAY)
    assert after.circuit is not None
    assert (after.circuit.state, after.circuit.rollbacks) == (CircuitState.CLOSED, 1)


def test_changes_without_effect_never_open_the_circuit() -> None:
    status = VLLMServiceStatus()
    for hour in range(20):
        status = ended(status, harmful=WITHOUT_EFFECT, now=NOW + timedelta(hours=hour))
    assert status.circuit is None


@pytest.mark.parametrize(
    ("budget", "changes", "restarts"),
    [
        pytest.param(None, 1, True, id="the first change ever"),
        pytest.param(BudgetStatus(), 1, True, id="a budget without a time"),
        pytest.param(BudgetStatus(changes_today=1, window_start=NOW - DAY), 1, True, id="yesterday's window is over"),
        pytest.param(BudgetStatus(changes_today=1, window_start=NOW - DAY / 2), 2, False, id="the second today"),
        pytest.param(BudgetStatus(changes_today=-7, window_start=NOW - DAY / 2), 1, False, id="an edited count"),
    ],
)
def test_spending_the_budget(budget: BudgetStatus | None, changes: int, restarts: bool) -> None:
    after = spent(budget, now=NOW)
    assert after.changes_today == changes
    assert (after.window_start == NOW) is restarts


EDITED = st.fixed_dictionaries(
    {
        "failureMemory": st.lists(
            st.fixed_dictionaries(
                {
                    "candidate": st.just("maxNumSeqs=96"),
                    "knob": st.just("maxNumSeqs"),
                    "value": st.sampled_from(["96", "x", "-1", ""]),
                },
                optional={
                    "failures": st.integers(-5, 10**9),
                    "environment": st.sampled_from(["", environment_of(SPEC)]),
                    "declinedAt": st.just(NOW.isoformat()),
                },
            ),
            max_size=3,
        ),
        "circuit": st.fixed_dictionaries(
            {},
            optional={
                "rollbacks": st.integers(-9, 10**9),
                "openedAt": st.just(NOW.isoformat()),
                "state": st.just("Closed"),
            },
        ),
    }
)


@given(EDITED, st.sampled_from([True, False, None]))
def test_no_edited_memory_breaks_the_end_of_a_change(raw: dict[str, Any], harmful: bool | None) -> None:
    after = ended(parse_status(raw), harmful=harmful)
    assert len(after.history) == 1
    assert all(seats >= 0 for seats in failed_seats(SPEC, after, now=NOW))
    if harmful is not None:
        newest = after.failure_memory[-1]
        assert newest.failures >= 1
        assert newest.retry_after is not None
        assert NOW < newest.retry_after <= NOW + 7 * DAY


def test_the_finished_change_is_not_needed_to_be_active() -> None:
    """The status that is written holds no second copy of it."""
    ending_one: ActiveChange = change(ChangeState.ANALYZING)
    after = finished(VLLMServiceStatus(), ending_one, Ending(outcome=Outcome.SUCCEEDED, reason=""), spec=SPEC, now=NOW)
    assert (after.active_change, len(after.history)) == (None, 1)
