"""The guardrails in the chain: whether a change of one service may begin now.

Apart from the chain itself, which decides: here is what each link prevents and which test proves it.
"""

from typing import Final

from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where

__all__ = ["CHAIN_ROWS"]

CHAIN_ROWS: Final[tuple[Guardrail, ...]] = (
    Guardrail(
        id="G01",
        name="Mode ladder",
        prevents="changes that the user has not allowed",
        default="spec.tuning.mode {api.tuning:Tuning.mode}",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:mode_applies",
            "api.tuning:Mode",
        ),
        tests=(
            "tests/guardrails/test_chain.py::test_each_link_alone",
            "tests/control/test_tick.py::test_an_approval_counts_in_mode_approve_only",
        ),
        missing="a mode that applies a value only when a pod restarts anyway; InPlace in a change window comes closest",
    ),
    Guardrail(
        id="G02",
        name="Cluster-wide mode ceiling and kill switch",
        prevents="mistakes that affect the whole fleet",
        default="no ceiling, kill switch off",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:under_the_ceiling",
            "guardrails.mode_ceiling:Limits",
            "control.read.limits_configmap:current_limits",
        ),
        tests=(
            "tests/control/test_limits.py::test_under_a_ceiling_nothing_starts_and_it_says_who_limits",
            "tests/control/test_limits.py::test_the_kill_switch_takes_the_change_that_runs_back_within_one_tick",
            "tests/control/test_limits.py::test_the_configmap_acts_within_one_tick_without_a_restart",
        ),
    ),
    Guardrail(
        id="G03",
        name="Pause per service; an unreadable value means paused",
        prevents="tuning that users cannot stop",
        default="not paused; a change that stays paused for {change.machine:PAUSED_FOR_AT_MOST} is rolled back",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:not_paused",
            "control.decide.annotation_commands:is_paused",
        ),
        tests=(
            "tests/faults/test_stories.py::test_a_pause_stops_progress_and_nothing_else",
            "tests/control/test_canary.py::test_a_pause_holds_it_and_the_canary_stays",
        ),
    ),
    Guardrail(
        id="G04",
        name="Bounds per knob",
        prevents="values outside the range that the user accepts",
        default="none; a knob without bounds is recommended and never changed, and max-num-seqs is not raised where "
        "its present value is not known: a raise above what ran may be a lowering of the engine's default",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:inside_bounds",
            "guardrails.chain:may_be_applied",
            "planning.bounds:outside",
            "planning.max_num_seqs:raise_max_num_seqs",
        ),
        tests=(
            "tests/guardrails/test_chain.py::test_each_link_alone",
            "tests/planning/test_plan.py::test_where_max_num_seqs_is_not_known_another_knob_is_tried",
            "tests/control/test_tick.py::test_bounds_that_no_longer_hold_a_tuned_value_make_it_void",
        ),
        missing="cluster-wide bounds that a service may only tighten; the cluster-wide ceiling covers the mode only",
    ),
    Guardrail(
        id="G06",
        name="Memory feasibility, and a record of configurations that ran out of memory",
        prevents="engines that run out of memory",
        default=(
            "{performance.kv_capacity:KV_MARGIN|percent} of the KV cache stays free; a configuration that needs at "
            "least as much memory as a failed one is denied"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:fits_in_memory",
            "planning.feasibility:pool_starts",
            "planning.feasibility:finds_memory",
        ),
        tests=(
            "tests/planning/test_feasibility.py::test_what_needs_as_much_as_what_was_not_there",
            "tests/control/test_infeasible.py::test_what_found_too_little_memory_is_known_for_good_and_less_may_be_tried",
        ),
    ),
    Guardrail(
        id="G07",
        name="Minimum evidence before a change",
        prevents="conclusions from a cold start",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:measured_before",
            "guardrails.chain:confident",
        ),
        tests=(
            "tests/guardrails/test_chain.py::test_each_link_alone",
            "tests/control/test_tick.py::test_a_change_waits_until_there_is_a_before_to_compare_with",
        ),
        missing=(
            "a fixed minimum of hours or requests: a proposal needs a fully measured window and a confidence above "
            "Low, and a wrong one costs a single trial; a fixed waiting time would delay the first useful change"
        ),
    ),
    Guardrail(
        id="G11",
        name="Cooldown after a change, back-off after a failure",
        prevents="churn",
        default=(
            "cooldown {api.tuning:Tuning.cooldown}; if the spec sets none, not for a change that goes on from one that "
            "was kept (further in the same direction, or another knob), and as long as a bake after one that was "
            "undone and did no harm; a harmful value is retried after "
            "{change.failure_memory:FIRST_RETRY}, one without a clear effect after "
            "{change.failure_memory:UNCLEAR_RETRY}; each further failure doubles the wait, up to "
            "{change.failure_memory:LONGEST_RETRY}"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:cooled_down",
            "guardrails.cooldown:goes_on",
            "change.finishing:finished",
        ),
        tests=(
            "tests/control/test_tick.py::test_the_change_is_not_taken_again_within_the_cooldown",
            "tests/guardrails/test_cooldown.py::test_never_there_and_back_within_the_cooldown",
            "tests/change/test_memory.py::test_how_long_a_candidate_rests",
        ),
    ),
    Guardrail(
        id="G13",
        name="Change windows with time zones; a misconfigured window is closed",
        prevents="changes at peak hours",
        default="none; changes may begin at any time",
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:in_window",
            "guardrails.change_windows:why_closed",
        ),
        tests=(
            "tests/guardrails/test_windows.py::test_spring_leaves_out_an_hour",
            "tests/guardrails/test_windows.py::test_what_is_misconfigured_is_closed_and_says_why",
            "tests/control/test_limits.py::test_a_change_waits_for_its_window",
        ),
        missing="blackout windows: a schedule that omits those hours has the same effect",
    ),
    Guardrail(
        id="G15",
        name="Preflight: the workload is stable and the problem persists",
        prevents="changes to an unstable workload, and trials of a problem that clears by itself",
        default=(
            "no change begins while the backlog will drain within {scaling.backlog:ENDS_WITHIN|seconds} plus the "
            "warm-up"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:settled",
            "guardrails.chain:backlog_stays",
            "planning.feasibility:placeable",
            "scaling.backlog:ends_before_a_trial",
        ),
        tests=(
            "tests/control/test_tick.py::test_nothing_is_tried_against_a_queue_that_ends_by_itself_until_it_stays",
            "tests/faults/test_stories.py::test_on_a_service_that_is_not_healthy_nothing_begins",
            "tests/control/test_canary.py::test_without_a_free_device_the_change_is_rejected_without_blame",
        ),
    ),
    Guardrail(
        id="G30",
        name="Memory of failed and rejected values, per environment",
        prevents="repeated failures, and rejected values that are tried again without the user's consent",
        default=(
            "{change.failure_memory:FIRST_RETRY}, doubling up to {change.failure_memory:LONGEST_RETRY}; a rejected "
            "value: until the user allows a retry"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:not_blocked",
            "change.failure_memory:failed_values",
            "change.failure_memory:environment_of",
        ),
        tests=(
            "tests/guardrails/test_chain.py::test_each_link_alone",
            "tests/control/test_tick.py::test_what_a_person_declined_is_not_tried_again_until_he_asks_for_it",
            "tests/change/test_memory.py::test_what_failed_elsewhere_may_be_tried",
            "tests/control/test_tick.py::test_what_was_rolled_back_is_kept_clear_of",
        ),
    ),
    Guardrail(
        id="G31",
        name="Circuit breaker",
        prevents="repeated harm",
        default=(
            "{guardrails.circuit_breaker:ROLLBACKS_TO_OPEN} harmful rollbacks in "
            "{guardrails.circuit_breaker:CIRCUIT_WINDOW}: recommendations only for "
            "{guardrails.circuit_breaker:CIRCUIT_OPEN_FOR}"
        ),
        where=Where.CHAIN,
        objects=("guardrails.chain:circuit_closed",),
        tests=(
            "tests/change/test_memory.py::test_two_harmful_rollbacks_in_seven_days_open_the_circuit",
            "tests/faults/test_stories.py::test_whoever_kills_every_candidate_that_is_ready_sees_two_of_them_in_two_weeks",
        ),
    ),
    Guardrail(
        id="G38",
        name="Quarantine after a start",
        prevents="changes caused by an operator restart",
        default="one observation window",
        where=Where.CHAIN,
        objects=("guardrails.chain:watched_long_enough",),
        tests=(
            "tests/control/test_tick.py::test_twenty_restarts_in_an_hour_change_nothing",
            "tests/guardrails/test_chain.py::test_each_link_alone",
        ),
    ),
    Guardrail(
        id="G40",
        name="Health of the operator itself",
        prevents="changes that the operator may be unable to roll back",
        default=(
            "within the last window the metrics source answered, no write for this service failed, and writes failed "
            "for fewer than {control.run.self_health:FAILING} of the services (a single failing service is "
            "tolerated, and those that alone have failed for {control.run.self_health:OWN_FAULT} windows are not "
            "counted); the last tick took at most {control.run.self_health:LATEST}, or a few intervals where that "
            "is longer"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:operator_well",
            "control.run.self_health:SelfHealth",
        ),
        tests=(
            "tests/control/test_self_health.py::test_after_trouble_a_change_waits_for_a_window",
            "tests/control/test_self_health.py::test_one_object_that_cannot_be_written_does_not_stop_the_others",
            "tests/control/test_self_health.py::test_objects_that_fail_alone_for_long_do_not_stop_the_others",
            "tests/guardrails/test_chain.py::test_each_link_alone",
        ),
    ),
    Guardrail(
        id="G41",
        name="Approval of one recommendation",
        prevents="approval of a change that the user has not seen",
        default=(
            "the annotation names the id of one recommendation and is valid for "
            "{control.decide.recommendation:ASKED_FOR}"
        ),
        where=Where.CHAIN,
        objects=(
            "control.decide.annotation_commands:approved_id",
            "guardrails.chain:mode_applies",
            "control.decide.recommendation:still_says",
        ),
        tests=(
            "tests/control/test_tick.py::test_another_id_approves_nothing",
            "tests/control/test_tick.py::test_a_leave_does_not_count_for_the_same_question_when_it_comes_back",
            "tests/control/test_tick.py::test_an_approval_ends_with_the_day_of_its_question",
            "tests/control/test_tick.py::test_what_is_applied_is_what_was_shown_not_its_latest_neighbour",
        ),
    ),
    Guardrail(
        id="G42",
        name="Explicit opt-in for knobs that may change answers",
        prevents="a silent loss of quality, and rejected long requests",
        default=(
            "a value that the spec does not allow is recommended only; max-model-len is applied only where the engine "
            "would not start otherwise"
        ),
        where=Where.CHAIN,
        objects=(
            "guardrails.chain:may_be_applied",
            "planning.bounds:opted_in",
            "planning.feasibility:holds_lengths",
        ),
        tests=(
            "tests/control/test_other_knobs.py::test_taking_the_type_off_the_list_under_a_change_takes_it_back",
            "tests/planning/test_knobs.py::test_kv_type",
        ),
        missing="a comparison of answers: a user who allows fp8 accepts its quality",
    ),
)
