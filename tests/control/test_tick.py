"""What a tick decides: stories of one service, told in ticks of 15 seconds."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import SCRAPES, WINDOW, engine, latency, nobody, observation
from tests.control.desk import (
    BLIND,
    CAPPED,
    DEFERRED,
    HARMED,
    HEALTHY,
    HELPED,
    IDLE,
    NO_SERIES,
    OVERLOADED,
    TICK,
    UNCLEAR,
    WEDGED,
    Desk,
    desk,
    reach,
    scaled,
)
from tests.scaling.loads import carrying, minutes, queue

from vllm_autotuner.api.annotations import APPROVE, PAUSE, PREFIX
from vllm_autotuner.api.conditions import ConditionStatus, ConditionType, Reason
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import ChangeState, CircuitState, Confidence, Outcome, Source
from vllm_autotuner.change.failure_memory import failed_values
from vllm_autotuner.change.verification import NotEffective, Undecided
from vllm_autotuner.control.decide.annotation_commands import RequestKind
from vllm_autotuner.control.decide.tick import begin_at_its_turn, decide
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.guardrails.reasons import HoldReason
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import Observation

UNDER_TEST = ["Provisioning", "Verifying", "WarmingUp", "Analyzing"]
REJECT = f"{PREFIX}{RequestKind.REJECT}"
SILENT = nobody(silent=("chat-0",))


# The success story


def test_a_change_that_helps_is_kept() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    assert found.seats == 128
    found.until(None, HELPED)
    status = found.read
    assert status.effective is not None
    assert (status.effective.max_num_seqs, status.effective.source) == (128, Source.TUNED)
    assert status.last_known_good is not None
    assert status.last_known_good.max_num_seqs == 128
    assert [(entry.from_value, entry.to_value, entry.outcome) for entry in status.history] == [
        ("64", "128", Outcome.SUCCEEDED)
    ]
    assert status.failure_memory == ()
    assert found.is_true(ConditionType.LAST_CHANGE_SUCCEEDED)
    assert found.reasons == [
        "ChangeStarted",
        "ChangeVerifying",
        "ChangeWarmingUp",
        "ChangeAnalyzing",
        "ChangeBaking",
        "ChangeSucceeded",
    ]


def test_what_is_written_with_an_ending_is_measured_anew() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    faster = replace(HELPED, ttft=latency(0.123))
    found.until(None, faster)
    diagnosis = found.read.diagnosis
    assert diagnosis is not None
    ttft = next(fact for fact in diagnosis.evidence if fact.name.startswith("TTFT"))
    assert ttft.value == pytest.approx(0.123, rel=0.2)


def test_while_a_change_is_tried_nothing_is_recommended() -> None:
    found = scaled()
    found.until("Provisioning", CAPPED)
    for seen in (OVERLOADED, CAPPED, HARMED):
        for _ in range(2):
            found.tick(seen, rollout=found.rollout(settled=False))
            assert found.read.active_change is not None
            assert found.read.recommendation is None
    condition = found.condition(ConditionType.RECOMMENDATION_AVAILABLE)
    assert condition is not None
    assert (condition.reason, condition.message) == (Reason.CHANGE_ACTIVE, "change in progress: maxNumSeqs -> 128")
    assert "Recommended" not in found.reasons


def test_the_change_is_not_taken_again_within_the_cooldown() -> None:
    found = reach("Analyzing")
    found.until(None, HARMED)
    found.edit(tuning__maxNumSeqs={"min": 16, "max": 96})
    found.ticks(20, CAPPED)
    assert found.read.active_change is None
    assert found.read.recommendation is not None
    assert found.read.recommendation.recommended == "96"
    assert "Not applied: cooling down until" in found.read.recommendation.reason
    found.now += timedelta(hours=6)
    found.tick(CAPPED)
    assert found.read.active_change is not None


def test_a_step_that_was_kept_goes_on_within_the_cooldown_as_far_as_the_budget_goes() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    more = observation(engine(running=128.0, waiting=90.0, kv=0.32), ttft=latency(6.0))
    found.until("Provisioning", more)
    change = found.read.active_change
    assert change is not None
    assert (change.from_value, change.to_value) == ("128", "256")
    assert found.read.cooldown_until is not None
    assert found.read.cooldown_until > found.now
    found.until(None, HELPED)
    assert found.read.budget is not None
    assert found.read.budget.changes_today == 2


# The rollback stories


@pytest.mark.fault("T21")
def test_harm_is_undone_and_remembered() -> None:
    found = reach("Analyzing")
    found.until("RollingBack", HARMED)
    assert found.seats == 64
    found.until(None, HARMED)
    status = found.read
    assert [entry.outcome for entry in status.history] == [Outcome.ROLLED_BACK]
    assert [(entry.candidate, entry.failures) for entry in status.failure_memory] == [("maxNumSeqs=128", 1)]
    assert status.circuit is not None
    assert status.circuit.rollbacks == 1
    assert found.is_true(ConditionType.READY)
    assert not found.is_true(ConditionType.LAST_CHANGE_SUCCEEDED)
    (event,) = (event for event in found.events if event.reason == "ChangeRolledBack")
    assert event.warning


@pytest.mark.fault("T17")
def test_a_crash_at_start_is_undone_before_its_deadline() -> None:
    found = reach("RollingBack")
    assert found.seats == 64
    found.until(None, CAPPED)
    (entry,) = found.read.history
    assert (entry.outcome, "CUDA out of memory" in entry.reason) == (Outcome.ROLLED_BACK, True)
    assert found.read.failure_memory[0].value == "128"


def test_an_engine_that_runs_something_else_is_no_result() -> None:
    found = reach("Verifying")
    found.tick(HELPED, verification=NotEffective("chat-0 reports maxNumSeqs=64 at start-up, not 128"))
    found.until(None, CAPPED)
    (entry,) = found.read.history
    assert "not effective" in entry.reason


def test_what_was_rolled_back_is_kept_clear_of() -> None:
    found = reach("RollingBack")
    found.until(None, CAPPED)
    found.now += timedelta(hours=7)
    found.until("Provisioning", CAPPED)
    assert found.seats == 96, "half way between 64 and the 128 that crashed"


@pytest.mark.fault("T28")
def test_what_a_person_declined_is_not_tried_again_until_he_asks_for_it() -> None:
    found = reach("Analyzing")
    found.annotations["vllm-autotuner.dev/rollback"] = "1"
    found.until(None, CAPPED)
    for days in (1, 30, 300):
        found.now += timedelta(days=days)
        # Half way to it may be tried: that is refused as well, and so on.
        found.until("Provisioning", CAPPED)
        assert found.seats != 128
        found.annotations["vllm-autotuner.dev/rollback"] = f"after {days}"
        found.until(None, CAPPED)
    assert [entry.value for entry in found.read.failure_memory] == ["128", "96", "80", "72"]
    found.annotations["vllm-autotuner.dev/retry"] = "1"
    found.until("Provisioning", CAPPED)
    assert found.seats == 128


def test_two_harmful_changes_open_the_circuit_until_two_weeks_have_passed() -> None:
    found = reach("RollingBack")
    found.until(None, CAPPED)
    found.now += timedelta(hours=7)
    found.until("Provisioning", CAPPED)
    found.tick(CAPPED, rollout=found.rollout(settled=False, crashed="OutOfMemory"))
    found.until(None, CAPPED)
    assert found.read.circuit is not None
    assert found.read.circuit.state is CircuitState.OPEN
    found.now += timedelta(days=13)
    found.ticks(3, CAPPED)
    assert (found.read.active_change, found.is_true(ConditionType.CIRCUIT_OPEN)) == (None, True)
    assert found.read.recommendation is not None
    assert "rolled back within 7 days" in found.read.recommendation.reason
    found.now += timedelta(days=1)
    found.tick(CAPPED)
    assert found.read.active_change is not None
    assert not found.is_true(ConditionType.CIRCUIT_OPEN)


@pytest.mark.fault("T19")
def test_no_place_for_the_new_pods_is_no_harm_but_not_tried_again_at_once() -> None:
    found = reach("Provisioning")
    waiting = found.rollout(settled=False, unschedulable="0/3 nodes: Insufficient nvidia.com/gpu")
    for _ in range(20 * 4 + 1):
        found.tick(CAPPED, rollout=waiting)
    change = found.read.active_change
    assert change is not None
    assert (change.state, change.harmful) == (ChangeState.ROLLING_BACK, False)
    assert found.is_true(ConditionType.READY), "the old pods have served all the time"
    found.until(None, CAPPED)
    assert (found.read.circuit, len(found.read.failure_memory)) == (None, 1)


def test_the_start_up_log_may_stay_unreadable_for_three_minutes() -> None:
    found = reach("Verifying")
    states = []
    for _ in range(12):
        found.tick(HELPED, verification=Undecided("the log is not readable"))
        change = found.read.active_change
        states.append(change.state if change is not None else None)
    assert states == [ChangeState.VERIFYING] * 11 + [ChangeState.WARMING_UP]


@pytest.mark.fault("T10")
def test_lost_metrics_hold_a_change_and_give_it_back_its_time() -> None:
    found = reach("Held")
    found.ticks(40, BLIND)
    assert found.read.active_change is not None
    assert found.read.active_change.state is ChangeState.HELD
    assert found.seats == 128
    assert found.is_true(ConditionType.READY)
    found.until(None, HELPED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


@pytest.mark.fault("T11")
def test_metrics_lost_for_too_long_undo_a_change_without_blame() -> None:
    """T11: silence is not the candidate's fault."""
    found = reach("Held")
    found.until("RollingBack", BLIND, at_most=70)
    found.until(None, BLIND)
    assert [entry.outcome for entry in found.read.history] == [Outcome.ROLLED_BACK]
    assert (found.read.failure_memory, found.read.circuit) == ((), None)
    assert not found.events[-1].warning


@pytest.mark.fault("T27")
@pytest.mark.parametrize("how", ["spec", "annotation"])
def test_a_pause_holds_a_change_until_it_is_over(how: str) -> None:
    found = reach("Analyzing")
    if how == "spec":
        found.edit(paused=True)
    else:
        found.annotations[PAUSE] = "ture"  # What nobody can read counts as paused.
    found.ticks(10, HELPED)
    assert found.read.active_change is not None
    assert found.read.active_change.state is ChangeState.HELD
    assert found.is_true(ConditionType.PAUSED)
    assert found.is_true(ConditionType.READY)
    if how == "spec":
        found.edit(paused=...)
    else:
        found.annotations[PAUSE] = "false"
    found.until(None, HELPED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


ABORTS: dict[str, dict[str, object]] = {
    "mode Recommend": {"tuning__mode": "Recommend"},
    "mode Off": {"tuning__mode": "Off"},
    "a maximum below the value": {"tuning__maxNumSeqs": {"min": 16, "max": 100}},
    "no bounds at all": {"tuning__maxNumSeqs": ...},
}


@pytest.mark.fault("T28")
@pytest.mark.parametrize("state", UNDER_TEST)
@pytest.mark.parametrize("edit", ABORTS.values(), ids=ABORTS.keys())
def test_a_user_who_takes_his_leave_back_is_obeyed_in_the_next_tick(state: str, edit: dict[str, object]) -> None:
    found = reach(state)
    found.edit(**edit)
    found.tick(HELPED)
    change = found.read.active_change
    assert change is not None
    assert (change.state, change.harmful) == (ChangeState.ROLLING_BACK, None)
    assert found.seats == 64
    found.until(None, HELPED)
    assert found.read.failure_memory == ()


EDITS: dict[str, tuple[dict[str, object], int | None]] = {
    "another value of the knob": ({"engine__maxNumSeqs": 80}, 80),
    "the knob left to the engine": ({"engine__maxNumSeqs": ...}, None),
    "another knob": ({"engine__maxModelLen": 4096}, 64),
    "another image": ({"engine__image": "vllm/vllm-openai:v0.33.0"}, 64),
    "another flag": ({"engine__args": ["--enforce-eager"]}, 64),
}


@pytest.mark.fault("T25")
@pytest.mark.parametrize("state", [*UNDER_TEST, "Held", "RollingBack"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_user_who_edits_the_workload_gets_what_he_wrote(
    state: str, edit: tuple[dict[str, object], int | None]
) -> None:
    found, (changes, seats) = reach(state), edit
    harmful = state == "RollingBack"
    found.edit(**changes)
    # The Deployment is still that of the change: nothing may begin on it.
    found.tick(CAPPED, rollout=replace(found.rollout(), config_hash="of the change"))
    assert (found.read.active_change, found.seats) == (None, seats)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUPERSEDED]
    assert found.reasons.count("ChangeSuperseded") == 1
    assert bool(found.read.failure_memory) is harmful
    assert found.is_true(ConditionType.RECONCILING)


@pytest.mark.parametrize("edit", ["another image", "another flag"])
def test_harm_that_an_edit_overtook_is_remembered_where_it_was_done(edit: str) -> None:
    found, (changes, _) = reach("RollingBack"), EDITS[edit]
    tried_in = found.service.spec
    found.edit(**changes)
    found.tick(CAPPED)
    assert failed_values(tried_in, found.read, now=found.now) == (("maxNumSeqs", "128"),)
    assert failed_values(found.service.spec, found.read, now=found.now) == ()


def test_a_device_that_is_named_under_a_change_is_the_one_it_was_tried_on() -> None:
    found = reach("RollingBack", accelerator={"resourceName": "nvidia.com/gpu"})
    found.edit(accelerator__product="NVIDIA-H200")
    found.tick(CAPPED, rollout=found.rollout(settled=False))
    assert found.read.active_change is not None, "the pods are the same"
    found.until(None, CAPPED)
    assert failed_values(found.service.spec, found.read, now=found.now) == (("maxNumSeqs", "128"),)


@pytest.mark.parametrize("state", [*UNDER_TEST, "Held"])
def test_an_edit_that_does_not_touch_the_workload_lets_the_change_go_on(state: str) -> None:
    found = reach(state)
    found.edit(tuning__cooldown="1h")
    found.tick(HELPED if state != "Held" else BLIND)
    change = found.read.active_change
    assert change is not None
    assert change.generation == found.generation
    assert change.state is not ChangeState.ROLLING_BACK


# What users write wins


def test_an_edited_knob_makes_the_tuned_value_void() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    assert found.seats == 128
    found.edit(engine__maxNumSeqs=80)
    found.tick(HELPED, rollout=replace(found.rollout(), config_hash="of 128"))
    assert found.seats == 80
    assert found.read.effective is not None
    assert found.read.effective.source is Source.SPEC
    assert found.is_true(ConditionType.RECONCILING)


def test_bounds_that_no_longer_hold_a_tuned_value_make_it_void() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    found.edit(tuning__maxNumSeqs={"min": 16, "max": 100})
    found.tick(HELPED)
    assert found.seats == 64


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
def test_a_mode_that_changes_nothing_keeps_what_was_found(mode: str) -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    found.edit(tuning__mode=mode)
    found.now += timedelta(days=1)
    found.ticks(5, CAPPED)
    assert (found.seats, found.read.active_change) == (128, None)
    assert (found.read.recommendation is None) is (mode == "Off")


def test_off_takes_a_standing_recommendation_back() -> None:
    found = desk(tuning__mode="Recommend")
    found.tick(CAPPED)
    assert found.read.recommendation is not None
    found.edit(tuning__mode="Off")
    found.tick(CAPPED)
    assert found.read.recommendation is None


# What keeps a change from beginning


@pytest.mark.fault("T23")
def test_a_deployment_that_does_not_run_the_spec_yet_is_no_baseline() -> None:
    found = desk()
    found.tick(CAPPED, rollout=found.rollout(config_hash="of an older spec"))
    assert found.read.active_change is None
    assert found.read.recommendation is not None
    assert "is rolling out" in found.read.recommendation.reason


@pytest.mark.fault("T23")
def test_a_deployment_that_has_other_replicas_is_no_baseline() -> None:
    found = desk(replicas=2)
    found.tick(CAPPED, rollout=found.rollout(replicas=1, ready=1))
    assert found.read.active_change is None


def test_a_fresh_leader_changes_nothing_for_one_window() -> None:
    found = desk()
    found.restart()
    found.tick(CAPPED)
    assert found.read.active_change is None
    found.tick(CAPPED)
    assert found.read.active_change is not None


@pytest.mark.fault("T32")
def test_twenty_restarts_in_an_hour_change_nothing() -> None:
    """T32."""
    found = desk()
    for _ in range(20):
        found.restart()
        found.tick(CAPPED)
    assert (found.read.active_change, found.seats) == (None, 64)


@pytest.mark.fault("T32")
def test_a_restart_does_not_interrupt_a_change() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    for _ in range(40):
        found.restart()
        found.tick(HELPED)
        if found.read.active_change is None:
            break
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paused": True}, "tuning is paused"),
        ({"tuning__mode": "Recommend"}, "spec.tuning.mode is Recommend"),
        ({"tuning__maxNumSeqs": ...}, "sets no bounds"),
        ({"tuning__windows": [{"schedule": "0 2 30 2 *", "duration": "2h"}]}, "outside the change windows"),
    ],
)
def test_what_keeps_a_recommendation_from_being_applied_is_said(changes: dict[str, object], says: str) -> None:
    found = desk(**changes)
    found.ticks(4, CAPPED)
    assert (found.read.active_change, found.seats) == (None, 64)
    recommendation = found.read.recommendation
    assert recommendation is not None
    assert says in recommendation.reason
    assert (recommendation.current, recommendation.recommended) == ("64", "128")
    assert found.reasons == ["Recommended"]


def test_a_change_waits_until_there_is_a_before_to_compare_with() -> None:
    found = desk()
    found.ticks(4, replace(CAPPED, ttft=Distribution()))
    # Without TTFT nobody can say what limits the service, nor later whether a change helped.
    assert (found.read.active_change, found.read.recommendation, found.seats) == (None, None, 64)
    found.ticks(3, CAPPED)
    assert found.read.active_change is not None


# A person approves


def approvable() -> Desk:
    found = desk(tuning__mode="Approve")
    found.tick(CAPPED)
    return found


def test_an_approved_recommendation_begins_in_the_next_tick() -> None:
    found = approvable()
    recommendation = found.read.recommendation
    assert recommendation is not None
    condition = found.condition(ConditionType.RECOMMENDATION_AVAILABLE)
    assert condition is not None
    assert f"vllm-autotuner.dev/approve={recommendation.id}" in condition.message
    found.ticks(10, CAPPED)
    assert found.read.active_change is None
    found.annotations[APPROVE] = recommendation.id
    found.tick(CAPPED)
    assert found.read.active_change is not None
    assert found.seats == 128


def test_another_id_approves_nothing() -> None:
    found = approvable()
    for text in ("", "true", "deadbeef"):
        found.annotations[APPROVE] = text
        found.ticks(2, CAPPED)
    assert found.read.active_change is None


@pytest.mark.parametrize("mode", ["Approve", "Recommend"])
def test_what_a_person_rejects_is_not_asked_again_until_he_asks_for_it(mode: str) -> None:
    found = desk(tuning__mode=mode)
    found.tick(CAPPED)
    advice = found.read.recommendation
    assert advice is not None
    found.annotations[REJECT] = advice.id
    for days in (1, 30, 300):
        found.ticks(3, CAPPED)
        other = found.read.recommendation
        # Half way to what was declined is another question.
        assert other is not None
        assert (other.knob, other.recommended) == ("maxNumSeqs", "96")
        found.now += timedelta(days=days)
    (entry,) = found.read.failure_memory
    assert (entry.candidate, entry.failures, entry.declined_at is None) == ("maxNumSeqs=128", 0, False)
    assert [(each.kind, each.nonce) for each in found.read.handled_requests] == [("reject", advice.id)]
    found.annotations["vllm-autotuner.dev/retry"] = "1"
    found.ticks(2, CAPPED)
    again = found.read.recommendation
    assert again is not None
    assert again.recommended == "128"


def test_no_to_an_advice_that_does_not_stand_declines_nothing() -> None:
    found = approvable()
    standing = found.read.recommendation
    for text in ("", "true", "deadbeef"):
        found.annotations[REJECT] = text
        found.ticks(2, CAPPED)
    assert found.read.recommendation == standing
    assert (found.read.failure_memory, found.read.handled_requests) == ((), ())


def test_rejecting_says_nothing_about_a_change_under_way() -> None:
    found = reach("Analyzing")
    found.annotations[REJECT] = "deadbeef"
    found.until(None, HELPED)
    assert found.read.history[-1].outcome is Outcome.SUCCEEDED
    assert found.read.failure_memory == ()


def test_replicas_that_a_person_rejects_are_not_asked_for_again() -> None:
    found = scaled(tuning__mode="Approve")
    found.ticks(5, OVERLOADED)
    advice = found.read.recommendation
    assert advice is not None
    found.annotations[REJECT] = advice.id
    found.ticks(10, OVERLOADED)
    assert (found.read.recommendation, found.replicas) == (None, 1)
    found.annotations["vllm-autotuner.dev/retry"] = "1"
    found.ticks(2, OVERLOADED)
    again = found.read.recommendation
    assert again is not None
    assert (again.knob, again.recommended) == ("replicas", "2")


def test_a_leave_does_not_count_for_the_same_question_when_it_comes_back() -> None:
    found = approvable()
    first = found.read.recommendation
    assert first is not None
    found.ticks(4, HEALTHY)
    assert found.read.recommendation is None
    found.annotations[APPROVE] = first.id
    found.ticks(4, CAPPED)
    again = found.read.recommendation
    assert again is not None
    assert (again.recommended, found.read.active_change) == (first.recommended, None)
    assert again.id != first.id


def test_an_approval_ends_with_the_day_of_its_question() -> None:
    found = approvable()
    first = found.read.recommendation
    assert first is not None
    found.now += timedelta(hours=23)
    found.tick(CAPPED)
    assert found.read.recommendation == first
    found.now += timedelta(hours=1)
    found.annotations[APPROVE] = first.id
    found.ticks(3, CAPPED)
    again = found.read.recommendation
    assert again is not None
    assert (found.read.active_change, again.id != first.id) == (None, True)


def test_what_is_applied_is_what_was_shown_not_its_latest_neighbour() -> None:
    """The figures move between the moment a person reads them and the moment he answers."""
    found = desk(tuning__mode="Approve")
    found.tick(observation(engine(running=64.0, waiting=40.0, kv=0.50), ttft=latency(6.0)))
    recommendation = found.read.recommendation
    assert recommendation is not None
    assert recommendation.recommended == "115"
    found.annotations[APPROVE] = recommendation.id
    found.tick(observation(engine(running=64.0, waiting=40.0, kv=0.48), ttft=latency(6.0)))
    assert found.seats == 115


def test_an_approval_does_not_reach_past_the_bounds() -> None:
    found = approvable()
    recommendation = found.read.recommendation
    assert recommendation is not None
    found.annotations[APPROVE] = recommendation.id
    found.edit(tuning__maxNumSeqs={"min": 16, "max": 110})
    found.tick(CAPPED)
    assert found.read.active_change is None


def test_an_approval_counts_in_mode_approve_only() -> None:
    found = approvable()
    recommendation = found.read.recommendation
    assert recommendation is not None
    found.annotations[APPROVE] = recommendation.id
    found.edit(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    assert found.read.active_change is None


def test_replicas_can_be_approved_too() -> None:
    found = scaled(tuning__mode="Approve")
    found.ticks(5, OVERLOADED)
    assert found.replicas == 1
    recommendation = found.read.recommendation
    assert recommendation is not None
    found.annotations[APPROVE] = recommendation.id
    found.tick(OVERLOADED)
    assert found.replicas == 2
    found.ticks(5, OVERLOADED)
    assert found.replicas == 2, "one word, one replica"


# Replicas


def test_fixed_replicas_are_never_changed() -> None:
    found = desk(replicas=3)
    found.ticks(30, OVERLOADED)
    found.ticks(60, IDLE)
    assert found.replicas == 3
    assert found.last is not None
    assert found.last.desired is None


def test_scaling_out_within_two_ticks_of_thirty_seconds_of_waiting() -> None:
    """Requests begin to wait; the window that is full of waiting arrives 30 s later."""
    found = scaled()
    found.ticks(5, HEALTHY)
    found.ticks(2, OVERLOADED)
    assert found.replicas == 2
    told = next(event for event in found.events if event.reason == "ScaledOut")
    assert found.read.effective is not None
    assert told.note == f"Scaled out replicas 1 -> 2: {found.read.effective.replicas_reason}"
    assert "demand exceeds capacity" in told.note


def overloaded_service() -> Desk:
    """Healthy for a while, then scaled out to two replicas."""
    found = scaled()
    found.ticks(5, HEALTHY)
    found.ticks(2, OVERLOADED)
    assert found.replicas == 2
    return found


def test_replicas_that_are_starting_do_not_cascade() -> None:
    found = overloaded_service()
    starting = found.rollout(settled=False, ready=1)
    found.ticks(20, OVERLOADED, rollout=starting)
    assert found.replicas == 2
    assert found.is_true(ConditionType.READY), "the first replica serves, and one is all that was promised"
    arrived = found.rollout(newest_since=found.now)
    found.ticks(2, OVERLOADED, rollout=arrived)
    assert found.replicas == 3, "half a minute after it came, requests still wait"


def test_after_a_change_was_kept_scaling_waits_for_no_window() -> None:
    """What it left runs on: the window that it ended in is of that, too."""
    found = scaled()
    found.until("Provisioning", CAPPED)
    found.until("Baking", HELPED)
    found.tick(HELPED)
    found.tick(OVERLOADED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]
    assert found.replicas == 1
    found.tick(OVERLOADED)
    assert found.replicas == 2


def test_replicas_stop_at_the_maximum() -> None:
    found = scaled(scaling__maxReplicas=3)
    found.ticks(5, HEALTHY)
    found.ticks(30, OVERLOADED)
    assert found.replicas == 3
    assert found.reasons.count("ScaledOut") == 2


@pytest.mark.parametrize("seen", [WEDGED, DEFERRED, BLIND, NO_SERIES, HEALTHY, UNCLEAR])
def test_what_replicas_do_not_help(seen: Observation) -> None:
    found = scaled()
    found.ticks(30, seen)
    assert found.replicas == 1


def test_a_queue_that_the_change_has_nothing_to_do_with_brings_a_replica_at_once() -> None:
    found = scaled()
    found.until("Provisioning", CAPPED)
    found.ticks(2, OVERLOADED)
    assert found.read.active_change is not None
    assert found.replicas == 2
    assert found.seats == 128, "the new one carries the value under test"


def test_a_queue_that_the_change_is_meant_to_end_waits_until_it_is_measured() -> None:
    found = scaled()
    found.until("Provisioning", CAPPED)
    found.ticks(8, CAPPED, rollout=found.rollout(settled=False))
    assert found.replicas == 1
    found.until("Analyzing", CAPPED)
    found.tick(CAPPED)
    assert found.replicas == 2


def test_replicas_that_come_begin_the_analysis_anew() -> None:
    found = scaled()
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.ticks(4, HELPED)
    assert found.analysis.windows_good > 0
    came = found.now
    found.tick(HELPED, rollout=found.rollout(newest_since=came))
    assert (found.analysis.windows_good, found.analysis.started_at) == (0, came)


def test_windows_from_while_a_replica_starts_are_not_held_against_the_change() -> None:
    found = scaled()
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.ticks(4, HARMED, rollout=found.rollout(settled=False, ready=0))
    assert found.analysis.windows_bad == 0
    assert found.read.active_change is not None


def test_a_change_that_waited_for_its_turn_is_what_it_would_have_been_without_waiting() -> None:
    """While it waits, requests may get a replica instead; at its turn the change begins alone."""
    found = scaled()
    found.ticks(5, HEALTHY)
    found.ticks(1, CAPPED)
    found.now += TICK
    alone = found.inputs(CAPPED)
    waiting = replace(alone, operator=replace(alone.operator, queue="waiting for its turn"))
    decision, expected = decide(waiting), decide(alone)
    assert decision.turn is not None
    assert decision.status.effective is not None
    assert decision.status.effective.replicas == 2
    begun = begin_at_its_turn(decision, waiting)
    assert begun.status.active_change is not None
    assert (begun.status, begun.desired, begun.turn) == (expected.status, expected.desired, None)


def test_no_replica_goes_beside_a_change() -> None:
    found = scaled(scaling__minReplicas=1)
    found.ticks(5, HEALTHY)
    found.ticks(2, OVERLOADED)
    assert found.replicas == 2
    found.until("Provisioning", CAPPED)
    found.ticks(8, IDLE)
    assert found.replicas == 2


def test_no_change_begins_beside_a_scaling() -> None:
    found = scaled(tuning__maxNumSeqs={"min": 16, "max": 64})
    found.ticks(5, HEALTHY)
    found.ticks(2, CAPPED)
    assert found.replicas == 2, "no seats may be added, so a replica is"
    found.edit(tuning__maxNumSeqs={"min": 16, "max": 256})
    found.tick(CAPPED, rollout=found.rollout(replicas=1, ready=1))
    assert found.read.active_change is None


def test_a_max_num_seqs_that_costs_nothing_is_tried_before_replicas() -> None:
    """A fresh leader must watch first; the queue alone would already have brought a replica."""
    found = scaled()
    found.watching_since = found.now + TICK
    found.ticks(2, CAPPED)
    assert found.read.active_change is None
    assert found.replicas == 1
    found.until("Provisioning", CAPPED, at_most=3)
    assert found.replicas == 1


def test_replicas_come_first_where_max_num_seqs_alone_would_leave_requests_late() -> None:
    """272 requests come in each window, of which one engine serves 146 with 64 slots and 210 with 128."""
    crowd = minutes(108.0, more=2.0)
    seen = carrying(crowd, waiting=queue(126.0, first=60.0), ttft=latency(6.0))
    found = scaled(tuning__maxNumSeqs={"min": 16, "max": 128})
    found.watching_since = found.newest_since = found.now - timedelta(hours=1)
    found.tick(seen)
    assert found.read.active_change is None
    assert found.replicas == 2


def test_max_num_seqs_comes_first_where_it_is_enough() -> None:
    """162 requests come in each window, of which one engine serves 146 with 64 slots and 210 with 128."""
    crowd = minutes(108.0, more=2.0)
    seen = carrying(crowd, waiting=queue(16.0, first=60.0), ttft=latency(6.0))
    found = scaled(tuning__maxNumSeqs={"min": 16, "max": 128})
    found.watching_since = found.newest_since = found.now - timedelta(hours=1)
    found.tick(seen)
    assert found.read.active_change is not None
    assert found.replicas == 1


def test_replicas_come_when_max_num_seqs_may_not_be_tried_for_long() -> None:
    found = scaled()
    found.ticks(5, HEALTHY)
    found.status["cooldownUntil"] = (found.now + timedelta(hours=1)).isoformat()
    found.ticks(3, CAPPED)
    assert found.read.active_change is None
    assert found.replicas == 2


def test_nothing_is_tried_against_a_queue_that_ends_by_itself_until_it_stays() -> None:
    """It would be over before the first window; what comes back is tried then, with nothing remembered against it."""
    found = desk()
    found.newest_since -= timedelta(hours=1)
    found.ticks(5, HEALTHY)
    scrapes = [60.0 - 2.0 * scrape for scrape in range(SCRAPES)]
    ending = observation(engine(running=64.0, waiting=scrapes, kv=0.3), ttft=latency(6.0))
    found.ticks(6, ending)
    assert found.read.active_change is None
    assert found.read.recommendation is not None
    assert found.read.recommendation.held_by == HoldReason.ENDS_BY_ITSELF
    assert "drains in" in found.read.recommendation.reason
    assert found.read.failure_memory == ()
    assert found.read.cooldown_until is None
    found.until("Provisioning", CAPPED, at_most=2)


@pytest.mark.parametrize("changes", [{"paused": True}, {"tuning__mode": "Recommend"}, {"tuning__mode": "Off"}])
def test_replicas_move_in_automatic_only(changes: dict[str, object]) -> None:
    found = scaled(**changes)
    found.ticks(30, OVERLOADED)
    assert found.replicas == 1


def test_scaling_in_only_after_ten_idle_minutes() -> None:
    found = scaled()
    found.ticks(8, OVERLOADED)
    assert (found.replicas or 0) > 1
    found.ticks(39, IDLE)
    assert (found.replicas or 0) > 1
    found.ticks(4, IDLE)
    assert found.replicas == 1
    assert found.reasons[-1] == "ScaledIn"


def test_a_restart_does_not_forget_how_long_it_was_idle() -> None:
    found = overloaded_service()
    for _ in range(11):
        found.restart()
        found.ticks(4, IDLE)
    assert found.replicas == 1


def test_bounds_of_replicas_hold_even_without_metrics() -> None:
    found = scaled()
    found.tick(BLIND)
    found.edit(scaling={"minReplicas": 3, "maxReplicas": 5})
    found.tick(BLIND)
    assert found.replicas == 3


# Steady states


def noisy(level: Callable[[random.Random], Observation], *, ticks: int, found: Desk) -> None:
    source = random.Random(7)
    for _ in range(ticks):
        found.tick(level(source))


def healthy(source: random.Random) -> Observation:
    running = [source.uniform(20, 45) for _ in range(15)]
    slow = source.uniform(0.01, 0.03)
    return observation(
        engine(running=running, kv=[count * 0.015 for count in running], finished=source.uniform(20, 90)),
        ttft=latency(source.uniform(0.1, 1.5)),
        tpot=latency(slow),
        itl=latency(slow),
    )


def capped(source: random.Random) -> Observation:
    waiting = float(source.randint(90, 200))
    return observation(
        engine(running=64.0, waiting=waiting, kv=source.uniform(0.28, 0.32)), ttft=latency(source.uniform(4, 9))
    )


def overloaded(source: random.Random) -> Observation:
    return observation(
        engine(running=source.uniform(30, 50), waiting=float(source.randint(3, 30))), ttft=latency(source.uniform(4, 9))
    )


@pytest.mark.parametrize(
    ("level", "changes"),
    [
        pytest.param(healthy, {}, id="healthy"),
        pytest.param(healthy, {"tuning__mode": "Off"}, id="healthy, mode Off"),
        pytest.param(capped, {"tuning__mode": "Recommend"}, id="capped, with a standing recommendation"),
        pytest.param(capped, {"tuning__mode": "Approve"}, id="capped, waiting for a person"),
        pytest.param(overloaded, {"tuning__mode": "Recommend"}, id="overloaded, with a standing recommendation"),
        pytest.param(lambda _: BLIND, {}, id="without metrics"),
        pytest.param(lambda _: IDLE, {}, id="idle"),
    ],
)
def test_a_steady_state_writes_nothing(
    level: Callable[[random.Random], Observation], changes: dict[str, object]
) -> None:
    """However the figures move: nothing that anybody would act on has changed. Of the figures: test_figures.py."""
    found = desk(**changes)
    found.refresh_due = False
    noisy(level, ticks=3, found=found)
    before, found.writes = found.status, 0
    noisy(level, ticks=100, found=found)
    assert found.status == before
    assert found.writes == 0


def test_an_unchanged_status_is_the_very_same() -> None:
    found = desk()
    found.ticks(2, HEALTHY)
    service = found.service
    assert found.tick(HEALTHY).status == service.status
    assert to_wire(found.read) == found.status


# Without metrics


def test_lost_metrics_change_nothing_and_come_back_by_themselves() -> None:
    found = desk(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    before, standing = found.read, found.read.recommendation
    found.ticks(10, BLIND)
    assert found.read.effective == before.effective
    assert found.read.recommendation == standing
    condition = found.condition(ConditionType.METRICS_AVAILABLE)
    assert condition is not None
    assert condition.status == "False"
    assert (condition.reason, "connection refused" in condition.message) == (Reason.PROVIDER_ERROR, True)
    assert found.is_true(ConditionType.READY)
    found.tick(CAPPED)
    assert found.is_true(ConditionType.METRICS_AVAILABLE)
    assert found.read.recommendation == standing
    assert found.reasons == ["Recommended"]


def test_engines_that_are_forgotten_after_they_went_silent_are_no_news() -> None:
    found = desk()
    found.ticks(3, HEALTHY)
    found.tick(SILENT)
    told = found.status
    found.ticks(10, NO_SERIES)
    assert found.status == told
    assert metrics(found) == (False, Reason.METRICS_STALE)


def test_whether_a_silent_source_answers_is_told_at_once() -> None:
    found = desk()
    found.tick(NO_SERIES)
    assert metrics(found) == (False, Reason.METRICS_MISSING)
    for seen, reason in (
        (SILENT, Reason.METRICS_STALE),
        (BLIND, Reason.PROVIDER_ERROR),
        (NO_SERIES, Reason.METRICS_MISSING),
    ):
        found.tick(seen)
        assert metrics(found) == (False, reason)
    found.tick(HEALTHY)
    assert metrics(found) == (True, Reason.METRICS_FRESH)


def test_what_stands_beside_a_class_is_told_once_it_lasts_for_a_window() -> None:
    """A source that loses its series may lack the latencies first; the decision sees it at once."""
    found = desk()
    found.ticks(3, HEALTHY)
    told = found.status
    for ticks in range(int(WINDOW / TICK.total_seconds())):
        assert found.tick(replace(HEALTHY, silent=("chat-1",))).diagnosis.confidence is Confidence.MEDIUM
        assert found.status == told, ticks
    found.tick(replace(HEALTHY, silent=("chat-1",)))
    assert found.read.diagnosis is not None
    assert found.read.diagnosis.confidence is Confidence.MEDIUM


def metrics(found: Desk) -> tuple[bool, str]:
    """Whether they are told to be there, and the reason."""
    condition = found.condition(ConditionType.METRICS_AVAILABLE)
    assert condition is not None
    return condition.status is ConditionStatus.TRUE, condition.reason


def test_a_service_without_scrapes_is_not_idle() -> None:
    found = scaled()
    found.ticks(8, OVERLOADED)
    replicas = found.replicas
    found.ticks(100, NO_SERIES)
    assert found.replicas == replicas
    assert found.last is not None
    assert found.last.diagnosis.primary is DiagnosisClass.METRICS_BLIND


# Conditions


def test_a_new_object_is_ready_only_when_its_pods_are() -> None:
    found = desk()
    found.tick(NO_SERIES, rollout=found.rollout(config_hash=None, settled=False, rolled_out=False, ready=0, replicas=0))
    assert found.is_true(ConditionType.RECONCILING)
    found.tick(NO_SERIES, rollout=found.rollout(settled=False, rolled_out=False, ready=0))
    assert found.is_true(ConditionType.RECONCILING)
    found.tick(NO_SERIES)
    assert found.is_true(ConditionType.READY)
    assert not found.is_true(ConditionType.RECONCILING)


@pytest.mark.parametrize("state", [*UNDER_TEST, "Held"])
def test_tuning_never_makes_a_service_unready(state: str) -> None:
    found = reach(state)
    for rollout in (found.rollout(), found.rollout(settled=False, rolled_out=False, ready=1)):
        found.tick(HELPED, rollout=rollout)
        assert found.is_true(ConditionType.READY)
        assert found.is_true(ConditionType.TUNING_IN_PROGRESS)
        assert not found.is_true(ConditionType.RECONCILING)


def test_a_rollback_that_does_not_come_back_needs_a_person() -> None:
    """The only state of tuning that stalls; it ends by itself when the pods come after all."""
    found = reach("RollingBack")
    stuck = found.rollout(settled=False, rolled_out=False, ready=0)
    found.ticks(20 * 4 + 1, BLIND, rollout=stuck)
    assert found.is_true(ConditionType.STALLED)
    assert found.is_true(ConditionType.ROLLBACK_FAILED)
    assert not found.is_true(ConditionType.READY)
    assert found.seats == 64
    found.tick(HEALTHY)
    assert found.read.active_change is None
    assert found.is_true(ConditionType.READY)
    assert not found.is_true(ConditionType.STALLED)


def test_the_story_takes_ticks_of_a_quarter_of_a_minute() -> None:
    assert timedelta(seconds=15) == TICK


def test_one_odd_moment_moves_nothing() -> None:
    """A class is named when it was seen twice; in between, the old name and the new figures do not fit together."""
    found = desk(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    before = found.status
    for _ in range(10):
        found.tick(HEALTHY)
        found.tick(CAPPED)
    assert found.status == before
    assert found.reasons == ["Recommended"]


def test_no_replica_is_added_on_an_odd_moment() -> None:
    found = scaled()
    found.ticks(5, HEALTHY)
    for _ in range(10):
        found.tick(OVERLOADED)
        found.tick(HEALTHY)
    assert found.replicas == 1


def test_metrics_are_read_by_the_value_that_serves() -> None:
    found = reach("Analyzing")
    full = observation(engine(running=128.0, waiting=30.0, kv=0.5), ttft=latency(3.0))
    found.ticks(2, full)
    assert found.last is not None
    assert "All 128 slots" in found.last.diagnosis.message
