"""The guardrails in the planner and in the metrics that it reads: which changes are proposed at all."""

from typing import Final

from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where

__all__ = ["PLANNING_ROWS"]

PLANNING_ROWS: Final[tuple[Guardrail, ...]] = (
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
        id="G08",
        name="Tolerance on the predicted gain",
        prevents="changes for a gain within the noise",
        default=(
            "{observation.noise:NOISE|percent} of the requests served within their objectives, or of what a GPU "
            "serves where the operator does not set the replicas; or the last requests that miss them"
        ),
        where=Where.PLANNER,
        objects=(
            "planning.worth:not_worth",
            "planning.worth:order",
        ),
        tests=("tests/planning/test_choice.py::test_what_is_worth_a_change",),
    ),
    Guardrail(
        id="G09",
        name="Stabilized recommendations",
        prevents="reactions to short spikes",
        default="{diagnosis.diagnose:CONFIRMATIONS} consecutive evaluations agree",
        where=Where.PLANNER,
        objects=("diagnosis.diagnose:diagnose",),
        tests=(
            "tests/diagnosis/test_hysteresis.py::test_what_is_named_when",
            "tests/control/test_tick.py::test_one_odd_moment_moves_nothing",
            "tests/faults/test_measurements.py::test_a_load_that_swings_with_every_reaction_costs_no_more_than_the_changes_of_a_day",
        ),
        missing=(
            "a stabilization window over recommendations: cooldown and budget limit the cost of a wrong one, and "
            "scale-in waits for spec.scaling.scaleIn.stabilization (default {api.spec:ScaleIn.stabilization}), after a "
            "failed one for longer"
        ),
    ),
    Guardrail(
        id="G10",
        name="One knob and one step per change",
        prevents="regressions that cannot be attributed to one cause",
        default=(
            "one knob, and with it max-model-len only where the engine would not start otherwise, and max-num-seqs "
            "where the KV cache needs the memory of unused slots; max-num-seqs as far as the capacity model covers, "
            "else at most a factor of "
            "{planning.capped_value:LARGEST_STEP} from the value in use, or for a lower max-num-seqs from the largest "
            "running batch; the user's bounds take precedence"
        ),
        where=Where.PLANNER,
        objects=(
            "planning.capped_value:limited",
            "planning.max_num_seqs:raise_max_num_seqs",
            "planning.max_num_seqs:lower_max_num_seqs",
            "planning.unused_slots:memory_of_unused_slots",
            "change.begin:begin",
        ),
        tests=(
            "tests/planning/test_limits.py::test_the_last_limit_always_holds",
            "tests/planning/test_seats.py::test_a_step_goes_as_far_as_the_model_covers",
            "tests/planning/test_properties.py::test_no_proposal_leaves_the_bounds_or_the_step_limit",
            "tests/guardrails/test_chain.py::test_each_link_alone",
        ),
    ),
    Guardrail(
        id="G17",
        name="Data quality",
        prevents="conclusions from stale, partial or duplicated series",
        default="a series is stale after {observation.series:STALE_AFTER_INTERVALS} scrape intervals without a sample",
        where=Where.METRICS,
        objects=(
            "observation.observation:observe",
            "guardrails.chain:metrics_fresh",
        ),
        tests=(
            "tests/faults/test_measurements.py::test_an_engine_that_two_jobs_scrape_is_no_engine_with_twice_the_load",
            "tests/faults/test_measurements.py::test_a_pod_that_is_missing_from_the_scrape_turns_no_decision_round",
            "tests/faults/test_measurements.py::test_a_counter_reset_makes_no_verdict",
        ),
    ),
    Guardrail(
        id="G50",
        name="Whole GPUs",
        prevents="restarts for a saving that frees no GPU",
        default=(
            "while all objectives are met, a change must save at least one whole GPU, by a load of which at least "
            "{planning.forecast:LEAST_SEEN|percent} was seen; spec.tuning.saveGpus: false allows none then"
        ),
        where=Where.PLANNER,
        objects=(
            "planning.worth:saves",
            "planning.worth:not_worth",
        ),
        tests=(
            "tests/planning/test_saving.py::test_a_healthy_service_with_too_few_slots_is_offered_a_saving",
            "tests/planning/test_saving.py::test_where_no_replica_would_go_nothing_is_proposed",
            "tests/planning/test_saving.py::test_a_few_minutes_of_load_are_too_little_to_save_gpus_by",
        ),
        missing="the price of GPUs, of the restart and of a lost prefix cache",
    ),
)
