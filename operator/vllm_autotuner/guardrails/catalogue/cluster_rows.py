"""The guardrails around the cluster: what is rendered, who may write it, and how fast."""

from typing import Final

from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where

__all__ = ["CLUSTER_ROWS"]

CLUSTER_ROWS: Final[tuple[Guardrail, ...]] = (
    Guardrail(
        id="G14",
        name="Capacity first: old pods serve until the new ones are ready",
        prevents="outages caused by the trial itself",
        default="rendered Deployments add one pod at a time and keep every old pod until the new one is ready",
        where=Where.RENDERER,
        objects=(
            "workload.rendering:render_deployment",
            "workload.rollout:rollout_obstacle",
        ),
        tests=(
            "tests/workload/test_rendering.py::test_a_rollout_never_takes_capacity_away",
            "tests/control/test_fleet_loop.py::test_the_old_pod_serves_until_the_new_one_does",
            "tests/control/test_adopted.py::test_a_strategy_that_stops_all_pods_is_recommended_only",
        ),
        missing=(
            "a PodDisruptionBudget: it does not apply to rollouts, and evictions are the cluster administrator's "
            "decision"
        ),
    ),
    Guardrail(
        id="G33",
        name="Field ownership, and a limit on restoring overwritten fields",
        prevents="write conflicts with GitOps tools",
        default=(
            "overwritten fields are restored up to {guardrails.contest:MOST_RESTORES} times within "
            "{guardrails.contest:CONTEST_WINDOW}; then the operator leaves "
            "them to the other field manager and names it; a value under test is never written over an edit"
        ),
        where=Where.CLUSTER,
        objects=(
            "guardrails.contest:after_interference",
            "control.read.interference:interference_of",
            "cluster.field_managers:taken_by",
            "guardrails.chain:uncontested",
            "guardrails.chain:free_to_write",
        ),
        tests=(
            "tests/control/test_contest.py::test_a_self_healing_tool_wins_after_two_tries_and_nothing_is_written_any_more",
            "tests/control/test_contest.py::test_what_a_person_changes_by_hand_is_written_back_once_and_told",
            "tests/control/test_contest.py::test_a_restart_does_not_begin_the_contest_anew",
            "e2e/test_faults_of_ownership.py::test_a_tool_that_resets_our_field_all_the_time_is_named_and_written_against_twice",
            "tests/guardrails/test_contest.py::test_never_more_writes_in_ten_minutes_than_allowed",
            "tests/control/test_contest.py::test_on_call_takes_the_candidate_back_by_hand_and_is_obeyed",
        ),
        missing=(
            "detection of other edits: in the pod template only arguments, image, environment and the configuration "
            "hash are compared, besides the number of replicas; an edited Service goes unnoticed, a deleted one "
            "is created again"
        ),
    ),
    Guardrail(
        id="G34",
        name="One VLLMService per workload: the oldest",
        prevents="competing VLLMServices for one Deployment",
        where=Where.CLUSTER,
        objects=("cluster.ownership:objection",),
        tests=("tests/control/test_adopted.py::test_of_two_services_for_one_deployment_the_older_one_has_it",),
    ),
    Guardrail(
        id="G35",
        name="One writer of replicas",
        prevents="competing autoscalers for one Deployment",
        where=Where.CLUSTER,
        objects=(
            "cluster.field_managers:scaled_by",
            "control.decide.inputs:wanted_replicas",
        ),
        tests=(
            "tests/control/test_contest.py::test_an_autoscaler_of_the_deployment_owns_its_replicas_and_nothing_else",
            "tests/control/test_contest.py::test_an_autoscaler_in_the_middle_of_a_change_keeps_its_replicas_and_the_change_goes_on",
            "e2e/test_faults_of_ownership.py::test_replicas_that_an_autoscaler_writes_are_left_to_it",
            "e2e/test_api_admission.py::test_an_autoscaler_is_refused_where_the_operator_scales",
        ),
    ),
    Guardrail(
        id="G36",
        name="Single writer with fencing",
        prevents="competing leaders",
        where=Where.CLUSTER,
        objects=(
            "cluster.lease:Election",
            "cluster.ownership:objection",
        ),
        tests=(
            "tests/faults/test_api_server.py::test_two_operators_that_both_think_they_lead_make_one_change",
            "tests/cluster/test_lease.py::test_a_holder_cut_off_from_the_api_stops_before_another_can_take_over",
        ),
    ),
    Guardrail(
        id="G47",
        name="Rate limits of the operator itself",
        prevents="overload of the API server and Prometheus",
        default=(
            "{cluster.throttle:ThrottleSettings.per_second} writes per second, "
            "{cluster.throttle:ThrottleSettings.concurrent} at a time, none while the API server asks for a pause; "
            "a fixed number of queries for each {control.read.fleet_parts:ENGINES_AT_ONCE} engines, each with a "
            "deadline and a maximum response size"
        ),
        where=Where.CLUSTER,
        objects=(
            "cluster.throttle:Throttle",
            "observation.prometheus:PrometheusSource",
        ),
        tests=(
            "tests/cluster/test_throttle.py::test_a_burst_passes_at_once_and_the_rest_at_the_sustained_rate",
            "tests/observation/test_prometheus_client.py::test_a_server_that_trickles_is_given_up_after_the_deadline",
            "tests/observation/test_prometheus_client.py::test_a_page_that_never_ends_is_cut_off",
        ),
    ),
    Guardrail(
        id="G48",
        name="Safe deletion",
        prevents="namespaces stuck in deletion, and workloads deleted by accident",
        default="deletionPolicy {api.spec:VLLMServiceSpec.deletion_policy}; no finalizer",
        where=Where.RENDERER,
        objects=(
            "workload.rendering:render_deployment",
            "api.spec:DeletionPolicy",
        ),
        tests=(
            "tests/workload/test_rendering.py::test_a_retained_workload_has_no_owner_but_names_its_service",
            "e2e/test_faults.py::test_deleting_the_service_during_a_change_leaves_its_pods_serving",
        ),
        missing=(
            "rollback on deletion: a retained workload keeps the value under test, and the Event ChangeAbandoned says "
            "how to undo it"
        ),
    ),
    Guardrail(
        id="G49",
        name="Versioned configuration hash",
        prevents="operator upgrades that restart the fleet",
        default="version {workload.hashing:RENDERING_VERSION}",
        where=Where.RENDERER,
        objects=(
            "control.read.rendered_hashes:hashes_of",
            "workload.hashing:recorded_hash",
        ),
        tests=(
            "tests/faults/test_versions.py::test_an_upgrade_rolls_no_pod_of_twenty_idle_services",
            "tests/faults/test_versions.py::test_an_upgrade_in_the_middle_of_a_change_lets_it_come_to_its_end",
        ),
    ),
)
