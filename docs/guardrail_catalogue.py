"""G01 to G51: what each guardrail prevents, its default as the code has it, where it stands, and which tests prove it.

Data only. Apart from the code, because a guardrail is seldom one object: the row names all of them, and a test holds
that each object and each test exists. Must not: repeat a number; defaults are taken from the code.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.status import RECORD_LENGTH
from vllm_autotuner.api.tuning import Budget, Strategy, Tuning
from vllm_autotuner.change.comparison import FEWEST_REQUESTS, GROSS, GROSS_WINDOWS, LOOKS
from vllm_autotuner.change.failing import MOST_FAILED
from vllm_autotuner.change.failure_memory import FIRST_RETRY, LONGEST_RETRY, UNCLEAR_RETRY
from vllm_autotuner.change.machine import PAUSED_FOR_AT_MOST
from vllm_autotuner.change.prediction_check import SAME_LOAD, TOLERANCE
from vllm_autotuner.change.trial_deployments import FEWEST_FOR_BASELINE, FEWEST_FOR_CANARY
from vllm_autotuner.cluster.throttle import ThrottleSettings
from vllm_autotuner.control.decide.recommendation import ASKED_FOR
from vllm_autotuner.control.run.self_health import FAILING, LATEST
from vllm_autotuner.diagnosis.diagnose import CONFIRMATIONS
from vllm_autotuner.guardrails.circuit_breaker import CIRCUIT_OPEN_FOR, CIRCUIT_WINDOW, ROLLBACKS_TO_OPEN
from vllm_autotuner.guardrails.concurrency import CHANGES_AT_ONCE, EXTRA_GPUS
from vllm_autotuner.guardrails.contest import CONTEST_WINDOW, MOST_RESTORES
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.series import STALE_AFTER_INTERVALS
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.planning.max_num_seqs import KV_MARGIN
from vllm_autotuner.planning.worth import DEVIATIONS, HORIZON, PAYBACK
from vllm_autotuner.scaling.backlog import ENDS_WITHIN
from vllm_autotuner.workload.hashing import RENDERING_VERSION

__all__ = ["GUARDRAILS", "Guardrail", "Where"]


class Where(StrEnum):
    """In which room a guardrail stands."""

    ADMISSION = "admission"
    CHAIN = "chain"
    CLUSTER = "cluster adapter"
    LOOP = "fleet loop"
    MACHINE = "machine"
    METRICS = "metrics"
    PLANNER = "planner"
    QUEUE = "fleet queue"
    RENDERER = "renderer"
    STATUS = "status"
    NOWHERE = "not built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """One row."""

    id: str
    name: str
    prevents: str
    default: str = ""
    """From the code; empty where there is nothing to set."""
    where: Where
    objects: tuple[str, ...] = ()
    """`module:name` below vllm_autotuner; the policies among them tell by their docstrings what they do."""
    tests: tuple[str, ...] = ()
    """`file::function`."""
    missing: str = ""
    """What of the guardrail as researched is not built, and why; empty where all is."""


def _time(duration: timedelta) -> str:
    return format_duration(duration)


CHAIN = "guardrails.chain"
IN_CHAIN = "tests/guardrails/test_chain.py::test_each_link_alone"
TICK, LOOP, CANARY = (
    "tests/control/test_tick.py::",
    "tests/control/test_fleet_loop.py::",
    "tests/control/test_canary.py::",
)
LIMITS, STORIES, MACHINE = (
    "tests/control/test_limits.py::",
    "tests/faults/test_stories.py::",
    "tests/change/test_machine.py::",
)
MEMORY, SERVER = "tests/change/test_memory.py::", "tests/faults/test_api_server.py::"
CONTEST, TURNS = "tests/control/test_contest.py::", "tests/control/test_turns.py::"

GUARDRAILS: tuple[Guardrail, ...] = (
    Guardrail(
        id="G01",
        name="Mode ladder",
        prevents="changes that nobody asked for",
        default=f"spec.tuning.mode {Tuning().mode.value}",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:mode_applies", "api.tuning:Mode"),
        tests=(IN_CHAIN, f"{TICK}test_an_approval_counts_in_mode_approve_only"),
        missing="no mode that applies only when a pod restarts anyway: InPlace in a change window comes closest",
    ),
    Guardrail(
        id="G02",
        name="Ceiling on the mode and kill switch for the whole cluster",
        prevents="damage to a whole fleet",
        default="no ceiling, switch off",
        where=Where.CHAIN,
        objects=(
            f"{CHAIN}:under_the_ceiling",
            "guardrails.mode_ceiling:Limits",
            "control.read.limits_configmap:current_limits",
        ),
        tests=(
            f"{LIMITS}test_under_a_ceiling_nothing_starts_and_it_says_who_limits",
            f"{LIMITS}test_the_kill_switch_takes_the_change_that_runs_back_within_one_tick",
            f"{LIMITS}test_the_configmap_acts_within_one_tick_without_a_restart",
        ),
    ),
    Guardrail(
        id="G03",
        name="Pause of one service; unreadable means paused",
        prevents="people who cannot stop it",
        default=f"not paused; a change waits for {_time(PAUSED_FOR_AT_MOST)} at most",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:not_paused", "control.decide.annotation_commands:is_paused"),
        tests=(
            f"{STORIES}test_a_pause_stops_progress_and_nothing_else",
            f"{CANARY}test_a_pause_holds_it_and_the_canary_stays",
        ),
    ),
    Guardrail(
        id="G04",
        name="Bounds of each knob",
        prevents="values that the user does not want",
        default="none: a knob without bounds is recommended and never changed",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:inside_bounds", f"{CHAIN}:may_be_applied", "planning.bounds:outside"),
        tests=(IN_CHAIN, f"{TICK}test_bounds_that_no_longer_hold_a_tuned_value_make_it_void"),
        missing="no bounds for all services of a cluster that a service may only tighten: the ceiling is on the mode",
    ),
    Guardrail(
        id="G05",
        name="Static validity",
        prevents="values with which the engine cannot start",
        where=Where.PLANNER,
        objects=(
            "planning.feasibility:heads_divide",
            "planning.feasibility:fp8_supported",
            "planning.feasibility:holds_lengths",
        ),
        tests=(
            "tests/planning/test_feasibility.py::test_each_check",
            "tests/planning/test_knobs.py::test_larger_degree",
        ),
    ),
    Guardrail(
        id="G06",
        name="Feasibility of weights and KV cache, and memory of what did not fit",
        prevents="engines that run out of memory",
        default=f"{KV_MARGIN:.0%} of the KV cache stay free; what found too little memory is not tried at that demand",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:finds_room", "planning.feasibility:pool_starts", "planning.feasibility:finds_memory"),
        tests=(
            "tests/planning/test_feasibility.py::test_what_needs_as_much_as_what_was_not_there",
            "tests/control/test_infeasible.py::test_what_found_too_little_memory_is_known_for_good_and_less_may_be_tried",
        ),
    ),
    Guardrail(
        id="G07",
        name="Minimum history before any recommendation",
        prevents="conclusions from a cold start",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:measured_before", f"{CHAIN}:confident"),
        tests=(IN_CHAIN, f"{TICK}test_a_change_waits_until_there_is_a_before_to_compare_with"),
        missing="no day of history and no thousand requests: a proposal needs a fully measured window and more than "
        "Low confidence, and a wrong one costs one judged trial; a day of waiting would help nobody on day one",
    ),
    Guardrail(
        id="G08",
        name="Tolerance on the predicted gain",
        prevents="flapping for nothing",
        default=f"{NOISE:.0%}, and {DEVIATIONS:.0f} standard deviations of the fit",
        where=Where.PLANNER,
        objects=("planning.worth:not_worth", "planning.ranking:clearly_better"),
        tests=("tests/planning/test_choice.py::test_worth",),
    ),
    Guardrail(
        id="G09",
        name="Stabilisation of recommendations",
        prevents="acting on spikes",
        default=f"{CONFIRMATIONS} evaluations in a row",
        where=Where.PLANNER,
        objects=("diagnosis.diagnose:diagnose",),
        tests=(
            "tests/diagnosis/test_hysteresis.py::test_what_is_named_when",
            f"{TICK}test_one_odd_moment_moves_nothing",
            "tests/faults/test_measurements.py::test_a_load_that_swings_with_every_reaction_costs_no_more_than_the_changes_of_a_day",
        ),
        missing="no window of 30 minutes over recommendations: cooldown and budget bound what a wrong one costs, and "
        "replicas leave only after ten idle minutes",
    ),
    Guardrail(
        id="G10",
        name="One knob and one step per change",
        prevents="regressions that nothing can be attributed to",
        default=f"one knob, at most x{LARGEST_STEP}",
        where=Where.PLANNER,
        objects=("planning.capped_value:limited", "change.begin:begin"),
        tests=("tests/planning/test_limits.py::test_the_last_limit_always_holds", f"{IN_CHAIN}"),
    ),
    Guardrail(
        id="G11",
        name="Cooldown after a change, back-off after a failure",
        prevents="churn",
        default=f"{_time(Tuning().cooldown)}; a value that did harm rests {_time(FIRST_RETRY)}, one without effect "
        f"{_time(UNCLEAR_RETRY)}, doubling to {_time(LONGEST_RETRY)}",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:cooled_down", "change.finishing:finished"),
        tests=(
            f"{TICK}test_the_change_is_not_taken_again_within_the_cooldown",
            f"{MEMORY}test_how_long_a_candidate_rests",
        ),
    ),
    Guardrail(
        id="G12",
        name="Budget per service and day, changes at once in the fleet",
        prevents="churn of a fleet, and one mistake everywhere at once",
        default=f"{Budget().changes_per_day} a day and service; {CHANGES_AT_ONCE.text} of the services at once. "
        "One that a person paused keeps no turn, for he may take a day, and goes on at once when he lets it",
        where=Where.QUEUE,
        objects=(
            "guardrails.concurrency:next_to_begin",
            f"{CHAIN}:within_budget",
            f"{CHAIN}:its_turn",
            f"{CHAIN}:one_at_a_time",
        ),
        tests=(
            "tests/guardrails/test_turns.py::test_the_limits_hold_and_the_order_of_asking_is_all_that_counts",
            f"{TURNS}test_by_default_one_of_few_services_changes_at_a_time_and_all_get_their_turn",
            f"{TURNS}test_one_paused_change_keeps_no_other_service_waiting",
            IN_CHAIN,
        ),
    ),
    Guardrail(
        id="G13",
        name="Change windows with time zones; misconfigured means closed",
        prevents="changes at peak hours",
        default="none: always open",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:in_window", "guardrails.change_windows:why_closed"),
        tests=(
            "tests/guardrails/test_windows.py::test_spring_leaves_out_an_hour",
            "tests/guardrails/test_windows.py::test_what_is_misconfigured_is_closed_and_says_why",
            f"{LIMITS}test_a_change_waits_for_its_window",
        ),
        missing="no blackout windows: a schedule that leaves the hours out says the same",
    ),
    Guardrail(
        id="G14",
        name="Capacity first: surge, and the old pods stay until the new ones serve",
        prevents="an outage by the trial itself",
        default="maxSurge 1, maxUnavailable 0",
        where=Where.RENDERER,
        objects=("workload.rendering:render_deployment", "workload.rollout:rollout_obstacle"),
        tests=(
            "tests/workload/test_rendering.py::test_a_rollout_never_takes_capacity_away",
            f"{LOOP}test_the_old_pod_serves_until_the_new_one_does",
            "tests/control/test_adopted.py::test_a_strategy_that_stops_all_pods_is_recommended_only",
        ),
        missing="no PodDisruptionBudget is rendered: it does not bind a rollout, and evictions are the admin's",
    ),
    Guardrail(
        id="G15",
        name="Preflight: stable and healthy before anything begins, and trouble that lasts",
        prevents="starting in a bad world, and trials of what is over before they are measured",
        default=f"a queue that is gone in {ENDS_WITHIN:.0f} s and the warm-up begins no trial",
        where=Where.CHAIN,
        objects=(
            f"{CHAIN}:settled",
            f"{CHAIN}:lasts",
            "planning.feasibility:placeable",
            "scaling.backlog:ends_before_a_trial",
        ),
        tests=(
            f"{TICK}test_nothing_is_tried_against_a_queue_that_ends_by_itself_until_it_stays",
            f"{STORIES}test_on_a_service_that_is_not_healthy_nothing_begins",
            f"{CANARY}test_without_a_free_device_the_change_is_rejected_without_blame",
        ),
    ),
    Guardrail(
        id="G16",
        name="Decided anew right before acting",
        prevents="acting on a stale plan",
        default="every tick; a write needs the version that was read, an apply reads the object once more",
        where=Where.LOOP,
        objects=("control.run.fleet_loop:FleetLoop", "control.write.workload_writer:WorkloadWriter"),
        tests=(
            f"{LOOP}test_after_a_conflict_it_is_decided_again_from_a_fresh_read",
            f"{SERVER}test_a_restart_that_reads_the_past_writes_nothing_on_it",
        ),
    ),
    Guardrail(
        id="G17",
        name="Quality of data",
        prevents="conclusions from stale, partial or doubled series",
        default=f"a series is stale after {STALE_AFTER_INTERVALS} scrapes",
        where=Where.METRICS,
        objects=("observation.observation:observe", f"{CHAIN}:metrics_fresh"),
        tests=(
            "tests/faults/test_measurements.py::test_an_engine_that_two_jobs_scrape_is_no_engine_with_twice_the_load",
            "tests/faults/test_measurements.py::test_a_pod_that_is_missing_from_the_scrape_turns_no_decision_round",
            "tests/faults/test_measurements.py::test_a_counter_reset_makes_no_verdict",
        ),
    ),
    Guardrail(
        id="G18",
        name="Missing data freezes",
        prevents="silence that is taken for idleness, or for success",
        default=f"a change waits {_time(Strategy().data_budget)}, then it is taken back without blame",
        where=Where.MACHINE,
        objects=("change.machine:advance",),
        tests=(
            f"{TICK}test_lost_metrics_hold_a_change_and_give_it_back_its_time",
            f"{TICK}test_metrics_lost_for_too_long_undo_a_change_without_blame",
            "tests/faults/test_measurements.py::test_no_answer_is_no_zero_load",
        ),
    ),
    Guardrail(
        id="G19",
        name="Minimum samples before a verdict",
        prevents="verdicts on noise",
        default=f"looks after {', '.join(map(str, LOOKS))} windows with {FEWEST_REQUESTS:.0f} requests an arm",
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
        prevents="a cold cache that is taken for the candidate's fault",
        default=f"a canary from {FEWEST_FOR_CANARY} replicas, a fresh baseline from {FEWEST_FOR_BASELINE}; warm-up "
        f"{_time(Strategy().warm_up)}",
        where=Where.MACHINE,
        objects=("change.trial_deployments:trials", "change.begin:begin"),
        tests=(
            f"{CANARY}test_both_sides_are_written_down_window_by_window",
            "tests/change/test_begin.py::test_the_strategy",
        ),
        missing="the slope of the prefix cache's hit rate does not prolong the warm-up",
    ),
    Guardrail(
        id="G21",
        name="Objectives come before gains",
        prevents="throughput that is bought with the latency that was promised",
        default="TTFT and TPOT",
        where=Where.MACHINE,
        objects=("planning.ranking:rank", "change.objective_effect:concluded", "change.rejections:rejections"),
        tests=("tests/change/test_comparison.py::test_ten_windows", "tests/change/test_rejections.py::test_a_canary"),
        missing="error rate and preemptions are no objectives of a service yet",
    ),
    Guardrail(
        id="G22",
        name="Limits of bad windows",
        prevents="slow and jittery rollbacks",
        default=f"{GROSS_WINDOWS} grossly bad ones in a row; windows without data count for nothing",
        where=Where.MACHINE,
        objects=("change.analysis:analyze",),
        tests=(
            f"{MACHINE}test_the_threshold_of_gross_windows_is_reached_exactly",
            f"{MACHINE}test_no_data_is_evidence_for_nothing",
        ),
    ),
    Guardrail(
        id="G23",
        name="Fast failure",
        prevents="long exposure to a candidate that is plainly broken",
        default="a crash at once; "
        + ", ".join(f"{name.value} x{factor:.0f}" for name, factor in GROSS.items())
        + f"; {MOST_FAILED:.0%} of the requests failed",
        where=Where.MACHINE,
        objects=("change.machine:advance", "change.comparison:compare", "change.failing:failing"),
        tests=(
            f"{MACHINE}test_a_crash_is_harm_in_every_state_also_when_paused_or_blind",
            f"{TICK}test_a_crash_at_start_is_undone_before_its_deadline",
            f"{CANARY}test_a_canary_that_does_not_start_goes_at_once",
            "tests/change/test_failing.py::test_it_is_taken_back_at_once_and_remembered",
        ),
        missing="requests that a server refuses before its engine has them: engines export no count of those",
    ),
    Guardrail(
        id="G24",
        name="A deadline in every state",
        prevents="changes that never end",
        default=f"provisioning {_time(Strategy().provisioning_deadline)}, verdict twice {_time(Strategy().analysis)}",
        where=Where.MACHINE,
        objects=("change.edges:moved",),
        tests=(
            f"{MACHINE}test_every_state_is_entered_with_a_deadline",
            f"{SERVER}test_an_api_server_that_is_away_for_ten_minutes_is_waited_for",
        ),
    ),
    Guardrail(
        id="G25",
        name="People come first in every tick and state",
        prevents="requests to stop that wait for something",
        where=Where.MACHINE,
        objects=("change.machine:advance",),
        tests=(
            f"{MACHINE}test_whatever_a_person_wants_undone_is_undone_at_once_and_without_blame",
            f"{TICK}test_a_user_who_takes_his_leave_back_is_obeyed_in_the_next_tick",
        ),
    ),
    Guardrail(
        id="G26",
        name="Undoing asks nobody",
        prevents="a rollback that waits for a window, a budget or a turn",
        where=Where.MACHINE,
        objects=("change.rollback:back",),
        tests=(
            f"{LIMITS}test_undoing_needs_no_window",
            f"{LIMITS}test_a_ceiling_stops_no_rollback",
            "tests/control/test_self_health.py::test_trouble_stops_no_change_that_runs",
        ),
    ),
    Guardrail(
        id="G27",
        name="A rollback leads to a whole known configuration",
        prevents="going back to something that nobody ever saw serving",
        where=Where.STATUS,
        objects=("api.change_history:LastKnownGood", "api.change_records:ConfigRef"),
        tests=(
            "tests/control/test_last_known_good.py::test_a_candidate_that_fails_never_becomes_what_is_known_as_good",
            "tests/control/test_last_known_good.py::test_an_edit_that_never_serves_does_not_become_what_is_known_as_good",
        ),
    ),
    Guardrail(
        id="G28",
        name="Direction of a rollback",
        prevents="going back to nothing",
        where=Where.MACHINE,
        objects=("change.rollback:roll_back",),
        tests=(f"{CANARY}test_when_the_old_configuration_no_longer_starts_the_new_one_goes_on",),
    ),
    Guardrail(
        id="G29",
        name="Bake",
        prevents="regressions that show late",
        default=_time(Strategy().bake),
        where=Where.MACHINE,
        objects=("change.analysis:bake_harms",),
        tests=(f"{CANARY}test_harm_that_shows_only_in_the_bake_is_undone",),
    ),
    Guardrail(
        id="G30",
        name="Memory of values that failed or that a person declined, by environment",
        prevents="the same failure again, and a person's No that wears off",
        default=f"{_time(FIRST_RETRY)}, doubling to {_time(LONGEST_RETRY)}; declined: until a person asks to retry",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:rested", "change.failure_memory:failed_values", "change.failure_memory:environment_of"),
        tests=(
            IN_CHAIN,
            f"{TICK}test_what_a_person_declined_is_not_tried_again_until_he_asks_for_it",
            f"{MEMORY}test_what_failed_elsewhere_may_be_tried",
            f"{TICK}test_what_was_rolled_back_is_kept_clear_of",
        ),
    ),
    Guardrail(
        id="G31",
        name="Circuit breaker",
        prevents="repeated harm",
        default=f"{ROLLBACKS_TO_OPEN} harmful rollbacks in {_time(CIRCUIT_WINDOW)}: recommendations only for "
        f"{_time(CIRCUIT_OPEN_FOR)}",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:circuit_closed",),
        tests=(
            f"{MEMORY}test_two_harmful_rollbacks_in_seven_days_open_the_circuit",
            f"{STORIES}test_whoever_kills_every_candidate_that_is_ready_sees_two_of_them_in_two_weeks",
        ),
    ),
    Guardrail(
        id="G32",
        name="The engine really runs the value before it is judged",
        prevents="a change that did not happen and is taken for a result",
        where=Where.MACHINE,
        objects=("change.verification:verify",),
        tests=(
            "tests/change/test_verification.py::test_the_witnesses",
            f"{TICK}test_an_engine_that_runs_something_else_is_no_result",
        ),
    ),
    Guardrail(
        id="G33",
        name="Ownership of fields, and an end to fights over them",
        prevents="wars with GitOps tools",
        default=f"written back {MOST_RESTORES} times within {_time(CONTEST_WINDOW)}, then left alone and named",
        where=Where.CLUSTER,
        objects=(
            "guardrails.contest:after_interference",
            "control.read.interference:interference_of",
            "cluster.field_managers:taken_by",
            f"{CHAIN}:uncontested",
            f"{CHAIN}:free_to_write",
        ),
        tests=(
            f"{CONTEST}test_a_self_healing_tool_wins_after_two_tries_and_nothing_is_written_any_more",
            f"{CONTEST}test_what_a_person_changes_by_hand_is_written_back_once_and_told",
            f"{CONTEST}test_a_restart_does_not_begin_the_contest_anew",
            "e2e/test_faults_of_ownership.py::test_a_tool_that_resets_our_field_all_the_time_is_named_and_written_against_twice",
            "tests/guardrails/test_contest.py::test_never_more_writes_in_ten_minutes_than_allowed",
        ),
        missing="of the workload's template only arguments, image, environment and our hash are compared, and the "
        "replicas; a Service that somebody edits is not noticed",
    ),
    Guardrail(
        id="G34",
        name="One tuner for one workload: the oldest",
        prevents="two tuners of one Deployment",
        where=Where.CLUSTER,
        objects=("cluster.ownership:objection",),
        tests=("tests/control/test_adopted.py::test_of_two_services_for_one_deployment_the_older_one_has_it",),
    ),
    Guardrail(
        id="G35",
        name="One writer of replicas",
        prevents="two scalers of one Deployment",
        where=Where.CLUSTER,
        objects=("cluster.field_managers:scaled_by", "control.decide.inputs:wanted_replicas"),
        tests=(
            f"{CONTEST}test_an_autoscaler_of_the_deployment_owns_its_replicas_and_nothing_else",
            f"{CONTEST}test_an_autoscaler_in_the_middle_of_a_change_keeps_its_replicas_and_the_change_goes_on",
            "e2e/test_faults_of_ownership.py::test_replicas_that_an_autoscaler_writes_are_left_to_it",
            "e2e/test_api_admission.py::test_an_autoscaler_is_refused_where_the_operator_scales",
        ),
    ),
    Guardrail(
        id="G36",
        name="Single writer with fencing",
        prevents="two leaders",
        where=Where.CLUSTER,
        objects=("cluster.lease:Election", "cluster.ownership:objection"),
        tests=(
            f"{SERVER}test_two_operators_that_both_think_they_lead_make_one_change",
            "tests/cluster/test_lease.py::test_a_holder_cut_off_from_the_api_stops_before_another_can_take_over",
        ),
    ),
    Guardrail(
        id="G37",
        name="Intent before effect, names that are made from it",
        prevents="things that a crash makes twice",
        where=Where.LOOP,
        objects=("control.run.fleet_loop:FleetLoop", "change.trial_deployments:canary_name"),
        tests=(
            "tests/control/test_crash_points.py::test_killed_at_every_request",
            f"{LOOP}test_nothing_is_applied_before_its_intent_is_written",
        ),
    ),
    Guardrail(
        id="G38",
        name="Quarantine after a start",
        prevents="changes that a restart of the operator causes",
        default="one window",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:watched_long_enough",),
        tests=(f"{TICK}test_twenty_restarts_in_an_hour_change_nothing", IN_CHAIN),
    ),
    Guardrail(
        id="G39",
        name="Sweep of orphans",
        prevents="canaries that nobody knows of, on GPUs that somebody pays for",
        default="every tick; metric vllm_autotuner_orphans_removed",
        where=Where.LOOP,
        objects=("control.read.trial_state:is_orphan", "control.read.trial_state:surplus"),
        tests=(
            f"{CANARY}test_a_trial_that_no_change_knows_is_deleted_and_counted",
            f"{CANARY}test_what_only_looks_like_a_trial_is_left_alone",
        ),
    ),
    Guardrail(
        id="G40",
        name="The operator's own health",
        prevents="beginning what it may not be able to undo",
        default=f"a window without a failed source, without failed writes of {FAILING.text} of the services (two at "
        f"least), and looks that end within {_time(LATEST)} or two intervals",
        where=Where.CHAIN,
        objects=(f"{CHAIN}:operator_well", "control.run.self_health:SelfHealth"),
        tests=(
            "tests/control/test_self_health.py::test_after_trouble_a_change_waits_for_a_window",
            "tests/control/test_self_health.py::test_one_object_that_cannot_be_written_does_not_stop_the_others",
            IN_CHAIN,
        ),
    ),
    Guardrail(
        id="G41",
        name="Approval of one recommendation",
        prevents="approving something else",
        default=f"the annotation names the id of one recommendation; it counts for {_time(ASKED_FOR)}",
        where=Where.CHAIN,
        objects=(
            "control.decide.annotation_commands:approved_id",
            f"{CHAIN}:mode_applies",
            "control.decide.recommendation:still_says",
        ),
        tests=(
            f"{TICK}test_another_id_approves_nothing",
            f"{TICK}test_a_leave_does_not_count_for_the_same_question_when_it_comes_back",
            f"{TICK}test_an_approval_ends_with_the_day_of_its_question",
            f"{TICK}test_what_is_applied_is_what_was_shown_not_its_latest_neighbour",
        ),
    ),
    Guardrail(
        id="G42",
        name="Knobs that may change answers need explicit leave",
        prevents="a silent loss of quality, and long requests that are refused",
        default="not listed: recommended only; max-model-len is never tried",
        where=Where.ADMISSION,
        objects=(f"{CHAIN}:may_be_applied", "planning.bounds:opted_in", "planning.feasibility:holds_lengths"),
        tests=(
            "tests/control/test_other_knobs.py::test_taking_the_type_off_the_list_under_a_change_takes_it_back",
            "tests/planning/test_knobs.py::test_kv_type",
        ),
        missing="answers are not compared: listing fp8 says that the user has",
    ),
    Guardrail(
        id="G43",
        name="Cost of trials",
        prevents="a bill that nobody expected",
        default=f"{EXTRA_GPUS.text} of the fleet's GPUs beside those that serve; one change may always run. "
        "One that a person paused keeps its GPUs",
        where=Where.QUEUE,
        objects=(
            "guardrails.concurrency:next_to_begin",
            "change.trial_deployments:gpus_added",
            "control.decide.fleet_budget:fleet_of",
            f"{CHAIN}:finds_gpus",
        ),
        tests=(
            "tests/guardrails/test_turns.py::test_who_begins",
            f"{TURNS}test_a_change_counts_with_the_gpus_of_the_pods_that_it_adds",
            "tests/control/test_canary.py::test_what_would_find_no_device_is_not_begun_and_says_so",
        ),
        missing="no limit of GPU hours a day: changes a day, deadlines and the bake bound them",
    ),
    Guardrail(
        id="G44",
        name="A record of each decision",
        prevents="distrust",
        default="the last ten changes in status.history; Events; `vllm-autotuner explain` and `history`",
        where=Where.STATUS,
        objects=("api.change_history:HistoryEntry", "control.decide.recommendation:recommended"),
        tests=(
            f"{TICK}test_what_keeps_a_recommendation_from_being_applied_is_said",
            f"{MEMORY}test_every_ending_leaves_one_history_entry_and_a_cooldown",
        ),
    ),
    Guardrail(
        id="G45",
        name="Shadow score of recommendations",
        prevents="trust that was not earned",
        default=f"the last {RECORD_LENGTH} in status.trackRecord; held: no latency {TOLERANCE:.0%} above "
        f"what was foretold, at a load within {SAME_LOAD:.0%}",
        where=Where.STATUS,
        objects=("change.prediction_check:followed_up", "control.decide.prediction_tracking:tracked"),
        tests=(
            "tests/control/test_tracking.py::test_what_a_person_carried_out_is_compared_with_what_was_foretold",
            "tests/change/test_track_record.py::test_what_was_not_tested_says_nothing",
        ),
        missing="what nobody carries out is compared only where the load itself moves to the foretold batch; "
        "`vllm-autotuner backtest` replays records",
    ),
    Guardrail(
        id="G46",
        name="One Event for each transition that was written",
        prevents="wrong counts",
        where=Where.LOOP,
        objects=("control.write.announcements:announcements", "control.write.announcements:standing"),
        tests=(
            "tests/control/test_announcing.py::test_one_event_for_each_transition",
            "tests/control/test_announcing.py::test_told_again_it_is_the_same_event",
        ),
    ),
    Guardrail(
        id="G47",
        name="Limits of the operator itself",
        prevents="harm to the API server and to Prometheus",
        default=f"{ThrottleSettings().per_second:.0f} writes a second, {ThrottleSettings().concurrent} at once; "
        "queries of a number that does not depend on the fleet, with a deadline and a largest answer",
        where=Where.CLUSTER,
        objects=("cluster.throttle:Throttle", "observation.prometheus:PrometheusSource"),
        tests=(
            "tests/cluster/test_throttle.py::test_a_burst_passes_at_once_and_the_rest_at_the_sustained_rate",
            "tests/observation/test_prometheus_client.py::test_a_server_that_trickles_is_given_up_after_the_deadline",
            "tests/observation/test_prometheus_client.py::test_a_page_that_never_ends_is_cut_off",
        ),
    ),
    Guardrail(
        id="G48",
        name="Safe deletion",
        prevents="namespaces that do not go away, and services that do",
        default="deletionPolicy Retain; no finalizer",
        where=Where.RENDERER,
        objects=("workload.rendering:render_deployment", "api.spec:DeletionPolicy"),
        tests=(
            "tests/workload/test_rendering.py::test_a_retained_workload_has_no_owner_but_names_its_service",
            "e2e/test_faults.py::test_deleting_the_service_during_a_change_leaves_its_pods_serving",
        ),
        missing="a workload that is kept stays with the value that was on trial: nobody is left to take it back",
    ),
    Guardrail(
        id="G49",
        name="Versioned hash of the configuration",
        prevents="an upgrade of the operator that restarts a fleet",
        default=f"version {RENDERING_VERSION}",
        where=Where.RENDERER,
        objects=("control.read.rendered_hashes:hashes_of", "workload.hashing:recorded_hash"),
        tests=(
            "tests/faults/test_versions.py::test_an_upgrade_rolls_no_pod_of_twenty_idle_services",
            "tests/faults/test_versions.py::test_an_upgrade_in_the_middle_of_a_change_lets_it_come_to_its_end",
        ),
    ),
    Guardrail(
        id="G50",
        name="Payback",
        prevents="gains that do not pay for the restart",
        default=f"{PAYBACK:.0f} restarts' worth within {HORIZON / 86_400:.0f} days",
        where=Where.PLANNER,
        objects=("planning.worth:pays_back",),
        tests=("tests/planning/test_choice.py::test_a_gain_pays_for_its_restart_within_a_week",),
        missing="the price of GPUs and of a lost prefix cache is not in it: a start-up counts as ten minutes",
    ),
    Guardrail(
        id="G51",
        name="Fair queue",
        prevents="services that starve behind a broken one",
        default="the longest waiting first; nobody overtakes",
        where=Where.QUEUE,
        objects=("guardrails.concurrency:next_to_begin", f"{CHAIN}:its_turn"),
        tests=(
            "tests/guardrails/test_turns.py::test_while_one_waits_every_other_begins_at_most_once",
            f"{TURNS}test_one_service_whose_changes_always_fail_starves_nobody",
            f"{TURNS}test_another_leader_finds_the_same_queue",
        ),
    ),
)
