"""The guardrails in the state machine of a change and in its status: how a change is judged and how it ends."""

from typing import Final

from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where

__all__ = ["CHANGE_ROWS"]

CHANGE_ROWS: Final[tuple[Guardrail, ...]] = (
    Guardrail(
        id="G18",
        name="Missing data holds a change",
        prevents="missing metrics treated as idle or as success",
        default=(
            "a change waits {api.tuning:Strategy.data_budget} for metrics, then it is rolled back without recording "
            "a failure"
        ),
        where=Where.MACHINE,
        objects=("change.machine:advance",),
        tests=(
            "tests/control/test_tick.py::test_lost_metrics_hold_a_change_and_give_it_back_its_time",
            "tests/control/test_tick.py::test_metrics_lost_for_too_long_undo_a_change_without_blame",
            "tests/faults/test_measurements.py::test_no_answer_is_no_zero_load",
        ),
    ),
    Guardrail(
        id="G19",
        name="Minimum samples before a verdict",
        prevents="verdicts on noise",
        default=(
            "evaluated after {change.comparison:LOOKS} windows, with at least {change.comparison:FEWEST_REQUESTS} "
            "finished requests each for canary and baseline"
        ),
        where=Where.MACHINE,
        objects=(
            "change.comparison:compare",
            "change.before_after:compare_periods",
            "guardrails.chain:enough_requests",
        ),
        tests=(
            "tests/change/test_comparison.py::test_time_up_means_a_judgement_and_never_a_keep_without_evidence",
            "tests/change/test_comparison.py::test_how_long_it_takes",
            "tests/change/test_before_after.py::test_ten_windows_after",
        ),
    ),
    Guardrail(
        id="G20",
        name="Fresh baseline and warm-up",
        prevents="a cold cache counted against the candidate",
        default=(
            "canary from {change.trial_deployments:FEWEST_FOR_CANARY} replicas, fresh baseline from "
            "{change.trial_deployments:FEWEST_FOR_BASELINE}; warm-up {api.tuning:Strategy.warm_up}"
        ),
        where=Where.MACHINE,
        objects=(
            "change.trial_deployments:trials",
            "change.begin:begin",
        ),
        tests=(
            "tests/control/test_canary.py::test_both_sides_are_written_down_window_by_window",
            "tests/change/test_begin.py::test_the_strategy",
        ),
        missing="a longer warm-up while the prefix cache hit rate still rises",
    ),
    Guardrail(
        id="G21",
        name="Objectives before gains",
        prevents="throughput gained by missing a latency objective",
        default="TTFT and TPOT",
        where=Where.MACHINE,
        objects=(
            "planning.worth:order",
            "change.objective_effect:concluded",
            "change.rejections:rejections",
        ),
        tests=(
            "tests/change/test_comparison.py::test_ten_windows",
            "tests/change/test_rejections.py::test_a_canary",
        ),
        missing="error rate and preemptions as objectives of a service",
    ),
    Guardrail(
        id="G22",
        name="Threshold for bad windows",
        prevents="late rollbacks, and rollbacks because of jitter",
        default="{change.comparison:GROSS_WINDOWS} consecutive gross violations; windows without data do not count",
        where=Where.MACHINE,
        objects=("change.analysis:analyze",),
        tests=(
            "tests/change/test_machine.py::test_the_threshold_of_gross_windows_is_reached_exactly",
            "tests/change/test_machine.py::test_no_data_is_evidence_for_nothing",
        ),
    ),
    Guardrail(
        id="G23",
        name="Fast failure",
        prevents="long exposure to a clearly broken candidate",
        default=(
            "rollback on a crash, on gross violations (above the target and above {change.comparison:GROSS|factors} of "
            "the reference), on more than {change.failing:MOST_FAILED|percent} failed requests, and where an engine "
            "hangs, as `Wedged` has it (of several, not only a single one), while the old configuration does better"
        ),
        where=Where.MACHINE,
        objects=(
            "change.machine:advance",
            "change.comparison:compare",
            "change.failing:failing",
            "change.hanging:hanging",
        ),
        tests=(
            "tests/change/test_machine.py::test_a_crash_is_harm_in_every_state_also_when_paused_or_blind",
            "tests/control/test_tick.py::test_a_crash_at_start_is_undone_before_its_deadline",
            "tests/control/test_canary.py::test_a_canary_that_does_not_start_goes_at_once",
            "tests/change/test_failing.py::test_it_is_taken_back_at_once_and_remembered",
            "tests/change/test_hanging.py::test_it_is_taken_back_at_once_and_remembered",
        ),
        missing="requests that the server rejects before its engine accepts them: engines export no counter for these",
    ),
    Guardrail(
        id="G24",
        name="A deadline in every state",
        prevents="changes that never end",
        default=(
            "provisioning {api.tuning:Strategy.provisioning_deadline} for each pod; analysis at most "
            "{change.analysis:LONGEST_ANALYSIS} x {api.tuning:Strategy.analysis}, or more where windows are long"
        ),
        where=Where.MACHINE,
        objects=("change.edges:moved",),
        tests=(
            "tests/change/test_machine.py::test_every_state_is_entered_with_a_deadline",
            "tests/faults/test_api_server.py::test_an_api_server_that_is_away_for_ten_minutes_is_waited_for",
        ),
    ),
    Guardrail(
        id="G25",
        name="User commands first, in every tick and state",
        prevents="commands to stop that have to wait",
        where=Where.MACHINE,
        objects=("change.machine:advance",),
        tests=(
            "tests/change/test_machine.py::test_whatever_a_person_wants_undone_is_undone_at_once_and_without_blame",
            "tests/control/test_tick.py::test_a_user_who_takes_his_leave_back_is_obeyed_in_the_next_tick",
        ),
    ),
    Guardrail(
        id="G26",
        name="Rollbacks are unconditional",
        prevents="rollbacks that wait for a window, a budget or a turn",
        where=Where.MACHINE,
        objects=("change.rollback:back",),
        tests=(
            "tests/control/test_limits.py::test_undoing_needs_no_window",
            "tests/control/test_limits.py::test_a_ceiling_stops_no_rollback",
            "tests/control/test_self_health.py::test_trouble_stops_no_change_that_runs",
        ),
    ),
    Guardrail(
        id="G27",
        name="Rollback to a complete, known configuration",
        prevents="rollbacks to a configuration that never served",
        where=Where.STATUS,
        objects=(
            "api.change_history:LastKnownGood",
            "api.change_records:ConfigRef",
        ),
        tests=(
            "tests/control/test_last_known_good.py::test_a_candidate_that_fails_never_becomes_what_is_known_as_good",
            "tests/control/test_last_known_good.py::test_an_edit_that_never_serves_does_not_become_what_is_known_as_good",
        ),
    ),
    Guardrail(
        id="G28",
        name="Rollback only to a configuration that starts",
        prevents="rollbacks that leave no serving configuration",
        where=Where.MACHINE,
        objects=("change.rollback:roll_back",),
        tests=("tests/control/test_canary.py::test_when_the_old_configuration_no_longer_starts_the_new_one_goes_on",),
    ),
    Guardrail(
        id="G29",
        name="Bake",
        prevents="regressions that appear late",
        default="{api.tuning:Strategy.bake}",
        where=Where.MACHINE,
        objects=("change.analysis:bake_harms",),
        tests=("tests/control/test_canary.py::test_harm_that_shows_only_in_the_bake_is_undone",),
    ),
    Guardrail(
        id="G32",
        name="Verification that the engine runs the value",
        prevents="verdicts on a change that never took effect",
        where=Where.MACHINE,
        objects=("change.verification:verify",),
        tests=(
            "tests/change/test_verification.py::test_the_witnesses",
            "tests/control/test_tick.py::test_an_engine_that_runs_something_else_is_no_result",
        ),
    ),
    Guardrail(
        id="G44",
        name="Record of every decision",
        prevents="decisions that cannot be explained",
        default=(
            "the last {api.status:HISTORY_LENGTH} changes in status.history; Events; `vllm-autotuner explain` and "
            "`history`"
        ),
        where=Where.STATUS,
        objects=(
            "api.change_history:HistoryEntry",
            "control.decide.recommendation:recommended",
        ),
        tests=(
            "tests/control/test_tick.py::test_what_keeps_a_recommendation_from_being_applied_is_said",
            "tests/change/test_memory.py::test_every_ending_leaves_one_history_entry_and_a_cooldown",
        ),
    ),
    Guardrail(
        id="G45",
        name="Track record of recommendations",
        prevents="unjustified trust in predictions",
        default=(
            "the last {api.status:RECORD_LENGTH} in status.trackRecord; a prediction holds if no latency exceeds it "
            "by more than {change.prediction_check:TOLERANCE|percent}, at a load within "
            "{change.prediction_check:SAME_LOAD|percent}"
        ),
        where=Where.STATUS,
        objects=(
            "change.prediction_check:followed_up",
            "control.decide.prediction_tracking:tracked",
        ),
        tests=(
            "tests/control/test_tracking.py::test_what_a_person_carried_out_is_compared_with_what_was_foretold",
            "tests/change/test_track_record.py::test_what_was_not_tested_says_nothing",
        ),
        missing=(
            "a check of every recommendation that was not applied: it is checked only when the load itself moves to "
            "the predicted batch; `vllm-autotuner backtest` replays recordings"
        ),
    ),
)
