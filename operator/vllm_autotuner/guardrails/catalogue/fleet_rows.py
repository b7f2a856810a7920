"""The guardrails of the whole fleet: the queue of changes and the loop that carries them out."""

from typing import Final

from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where

__all__ = ["FLEET_ROWS"]

FLEET_ROWS: Final[tuple[Guardrail, ...]] = (
    Guardrail(
        id="G12",
        name="Change budget per service, concurrency limit for the fleet",
        prevents="fleet-wide churn, and one mistake applied everywhere at once",
        default=(
            "{api.tuning:Budget.changes_per_day} changes per service in {guardrails.cooldown:BUDGET_WINDOW}; changes "
            "in {guardrails.concurrency:CHANGES_AT_ONCE} of the services at once; a change that a user paused does "
            "not count towards this limit and continues as soon as the pause ends"
        ),
        where=Where.QUEUE,
        objects=(
            "guardrails.concurrency:next_to_begin",
            "guardrails.chain:within_budget",
            "guardrails.chain:fleet_allows",
            "guardrails.chain:one_at_a_time",
        ),
        tests=(
            "tests/guardrails/test_turns.py::test_the_limits_hold_and_the_order_of_asking_is_all_that_counts",
            "tests/control/test_turns.py::test_by_default_one_of_few_services_changes_at_a_time_and_all_get_their_turn",
            "tests/control/test_turns.py::test_one_paused_change_keeps_no_other_service_waiting",
            "tests/guardrails/test_chain.py::test_each_link_alone",
        ),
    ),
    Guardrail(
        id="G16",
        name="Decision repeated right before each write",
        prevents="acting on a stale plan",
        default="every tick; a write requires the resource version that was read, and an apply reads the object again",
        where=Where.LOOP,
        objects=(
            "control.run.fleet_loop:FleetLoop",
            "control.write.workload_writer:WorkloadWriter",
        ),
        tests=(
            "tests/control/test_fleet_loop.py::test_after_a_conflict_it_is_decided_again_from_a_fresh_read",
            "tests/faults/test_api_server.py::test_a_restart_that_reads_the_past_writes_nothing_on_it",
        ),
    ),
    Guardrail(
        id="G37",
        name="Intent before effect, deterministic names",
        prevents="duplicate resources after a crash",
        where=Where.LOOP,
        objects=(
            "control.run.fleet_loop:FleetLoop",
            "change.trial_deployments:canary_name",
        ),
        tests=(
            "tests/control/test_crash_points.py::test_killed_at_every_request",
            "tests/control/test_fleet_loop.py::test_nothing_is_applied_before_its_intent_is_written",
        ),
    ),
    Guardrail(
        id="G39",
        name="Orphan removal",
        prevents="canaries that no change owns and that occupy GPUs",
        default="every tick; counted in vllm_autotuner_orphans_removed_total",
        where=Where.LOOP,
        objects=(
            "control.read.trial_state:is_orphan",
            "control.read.trial_state:surplus",
        ),
        tests=(
            "tests/control/test_canary.py::test_a_trial_that_no_change_knows_is_deleted_and_counted",
            "tests/control/test_canary.py::test_what_only_looks_like_a_trial_is_left_alone",
        ),
    ),
    Guardrail(
        id="G43",
        name="Cost of trials",
        prevents="unexpected GPU cost",
        default=(
            "{guardrails.concurrency:EXTRA_GPUS} of the fleet's GPUs in addition to those that serve; one change may "
            "always run; a paused change keeps its GPUs"
        ),
        where=Where.QUEUE,
        objects=(
            "guardrails.concurrency:next_to_begin",
            "change.trial_deployments:gpus_added",
            "control.decide.fleet_budget:fleet_of",
            "guardrails.chain:finds_gpus",
        ),
        tests=(
            "tests/guardrails/test_turns.py::test_who_begins",
            "tests/control/test_turns.py::test_a_change_counts_with_the_gpus_of_the_pods_that_it_adds",
            "tests/control/test_canary.py::test_what_would_find_no_device_is_not_begun_and_says_so",
        ),
        missing="a daily limit on GPU hours: changes per day, deadlines and the bake limit them",
    ),
    Guardrail(
        id="G46",
        name="One Event per recorded transition",
        prevents="wrong Event counts",
        where=Where.LOOP,
        objects=(
            "control.write.announcements:announcements",
            "control.write.announcements:standing",
        ),
        tests=(
            "tests/control/test_announcing.py::test_one_event_for_each_transition",
            "tests/control/test_announcing.py::test_told_again_it_is_the_same_event",
        ),
    ),
    Guardrail(
        id="G51",
        name="Fair queue",
        prevents="services that starve behind a failing one",
        default=(
            "the longest-waiting service first; no overtaking; once a change ends without being kept, the services of "
            "its namespace stand behind all that had been waiting"
        ),
        where=Where.QUEUE,
        objects=(
            "control.decide.fleet_budget:part_of",
            "guardrails.concurrency:next_to_begin",
            "guardrails.chain:fleet_allows",
        ),
        tests=(
            "tests/guardrails/test_turns.py::test_while_one_waits_every_other_begins_at_most_once",
            "tests/control/test_turns.py::test_one_service_whose_changes_always_fail_starves_no_other",
            "tests/guardrails/test_turns.py::test_a_tenant_with_many_failing_services_holds_another_up_for_one_turn",
            "tests/control/test_turns.py::test_the_last_failure_of_a_namespace_moves_all_its_services_back",
            "tests/control/test_turns.py::test_another_leader_finds_the_same_queue",
        ),
    ),
)
