"""The traps that other autoscalers and tuners fell into, and the tests that show that this one does not.

An index, because the proofs live where the code is. A trap whose test is renamed, removed or skipped fails here.
Source: our survey of peers, its list of traps.
"""

from collections.abc import Mapping
from typing import Final

import pytest
from tests.collected import unproven

DIAGNOSED: Final = "tests/diagnosis/test_peers.py::"
RANKED: Final = "tests/planning/test_choice.py::"
RESTORED: Final = "tests/control/test_last_known_good.py::"
KILLED: Final = "e2e/test_faults_of_the_operator.py::"
TICK: Final = "tests/control/test_tick.py::"
RENDERED: Final = "tests/workload/test_rendering.py::"

TRAPS: Final[Mapping[str, tuple[str, ...]]] = {
    "The objective has the wrong sign, and the worst configuration is applied": (
        RANKED + "test_of_two_forecasts_the_one_that_is_worse_in_everything_never_wins",
        "tests/change/test_verdict.py::test_no_window_that_breaks_an_objective_it_kept_before_is_good",
    ),
    "Arguments are not compared, and an edit of them rolls nothing": (
        "e2e/test_main_job.py::test_editing_any_engine_knob_in_spec_rolls_the_deployment",
        RENDERED + "test_editing_any_engine_knob_in_spec_rolls_the_deployment",
    ),
    "An empty or unknown metric is taken for zero": (
        DIAGNOSED + "test_empty_or_unknown_metric_is_zero",
        DIAGNOSED + "test_missing_is_not_zero",
        TICK + "test_a_service_without_scrapes_is_not_idle",
        "e2e/test_faults_of_metrics.py::test_without_metrics_nothing_is_changed_and_a_change_waits",
    ),
    "Replicas that nobody set become one": (
        "tests/control/test_fleet_loop.py::test_fixed_replicas_are_what_the_user_wrote",
        TICK + "test_fixed_replicas_are_never_changed",
        RENDERED + "test_replicas_are_left_out_for_another_writer",
        "e2e/test_api_admission.py::test_an_autoscaler_sets_replicas_through_scale",
    ),
    "What a rollback returns to is overwritten by a bad state": (
        RESTORED + "test_a_candidate_that_fails_never_becomes_what_is_known_as_good",
        RESTORED + "test_an_edit_that_never_serves_does_not_become_what_is_known_as_good",
    ),
    "The backlog of a cold start brings more replicas": (
        DIAGNOSED + "test_scale_on_cold_start_backlog",
        TICK + "test_replicas_that_are_starting_do_not_cascade",
    ),
    "Two replicas are too many and one is too few, for ever": (
        DIAGNOSED + "test_two_to_one_oscillation",
        "tests/scaling/test_replicas.py::test_what_leaves_is_not_asked_for_again_at_the_same_load",
    ),
    "A guard blocks the recovery, too; then its correction lets harm through": (
        "tests/control/test_limits.py::test_undoing_needs_no_window",
        "tests/control/test_limits.py::test_a_ceiling_stops_no_rollback",
        TICK + "test_a_crash_at_start_is_undone_before_its_deadline",
        "tests/change/test_machine.py::test_a_crash_is_harm_in_every_state_also_when_paused_or_blind",
        TICK + "test_lost_metrics_hold_a_change_and_give_it_back_its_time",
    ),
    "The rollout's deadline is waited for while the new pods crash in a loop": (
        TICK + "test_a_crash_at_start_is_undone_before_its_deadline",
        "e2e/test_faults.py::test_a_candidate_that_cannot_start_is_rolled_back_at_once_in_the_engines_own_words",
        RENDERED + "test_a_rollout_never_takes_capacity_away",
    ),
    "The waiting gauge stands at the limit of the queue": (
        DIAGNOSED + "test_waiting_gauge_capped_by_queue_limit",
        DIAGNOSED + "test_a_queue_limit_that_turns_requests_away_hides_the_queue",
    ),
    "Fewer seats make tokens fast by making requests wait outside": (
        DIAGNOSED + "test_lowering_max_num_seqs_fixes_p99_by_queueing_outside",
        "tests/change/test_verdict.py::test_no_window_that_breaks_an_objective_it_kept_before_is_good",
    ),
    "A metric was renamed": (
        "tests/observation/test_inputs.py::test_every_version_is_read_by_its_own_names",
        "tests/observation/test_snapshot.py::test_the_older_names_mean_the_same",
        DIAGNOSED + "test_renamed_metric",
        "tests/cli/test_doctor.py::test_an_older_engine_is_understood_and_told",
    ),
    "max-model-len shrinks under clients that send longer requests": (
        "tests/planning/test_knobs.py::test_the_longest_request_is_bounded_by_both_its_parts",
        "tests/planning/test_knobs.py::test_shorter_context",
    ),
    "Bounds do not bind": (
        "tests/planning/test_random_services.py::test_no_proposal_breaks_a_bound_a_rule_or_the_opt_in",
        TICK + "test_bounds_that_no_longer_hold_a_tuned_value_make_it_void",
        TICK + "test_an_approval_does_not_reach_past_the_bounds",
        "tests/scaling/test_replicas.py::test_the_number_is_always_inside_the_bounds_and_one_step_away",
    ),
    "The resource only says again what its target says": (
        "tests/api/test_spec.py::test_the_models_give_the_same_answer_as_the_api_server[both engine and targetRef]",
        "tests/api/test_spec.py::test_the_models_give_the_same_answer_as_the_api_server[a model beside targetRef]",
        "tests/api/test_spec.py::test_the_models_give_the_same_answer_as_the_api_server[replicas beside targetRef]",
        RENDERED + "test_an_adopted_deployment_is_not_rendered",
        "e2e/test_api_admission.py::test_status_is_written_apart_from_spec_and_survives",
    ),
    "kopf's peering is no election, and a paused replica goes on writing": (
        "e2e/test_faults_of_the_operator.py::test_of_two_operators_one_leads_and_the_other_goes_on_when_it_is_killed",
        "tests/control/test_fleet_loop.py::test_a_follower_looks_at_nothing",
    ),
    "kopf's finalizers and annotations show up as drift": (
        "tests/control/test_handlers.py::test_no_handler_of_ours_makes_kopf_write_finalizers_or_annotations",
        "tests/control/test_handlers.py::test_kopf_itself_writes_nothing",
    ),
    # The rest of the survey: what is the same symptom and another cause.
    "A scheduler that hangs with a full queue is scaled out": (
        DIAGNOSED + "test_wedged_scheduler_with_a_full_queue",
        "tests/diagnosis/test_properties.py::test_a_hang_is_never_answered_with_more_capacity",
    ),
    "Prompts alone fill the engine at a third of its KV cache": (
        DIAGNOSED + "test_prefill_only_load_at_32_percent_kv",
    ),
    "Series of deleted pods count": (DIAGNOSED + "test_series_of_deleted_pods",),
    "A counter that begins anew counts backwards": (DIAGNOSED + "test_counter_resets",),
    "One pod is missing from the scrape": (DIAGNOSED + "test_one_pod_missing_from_the_scrape",),
}


@pytest.fixture(scope="module")
def missing(request: pytest.FixtureRequest) -> set[str]:
    return unproven((proof for tests in TRAPS.values() for proof in tests), request.session)


@pytest.mark.parametrize("trap", TRAPS)
def test_does_not_bite_us(trap: str, missing: set[str]) -> None:
    assert missing.isdisjoint(TRAPS[trap])
