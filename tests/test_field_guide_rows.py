"""Every row of the field guide (F1 to F5, and its table of metric names) and the tests that play it.

An index by the guide's own ids. Rows that name a state are cases of `tests/diagnosis/test_field_guide.py`; others are
about names, flags or a split of GPUs, and stand where those are tested.
"""

from collections.abc import Mapping
from typing import Final

import pytest
from tests.collected import unproven

GUIDE: Final = "tests/diagnosis/test_field_guide.py::test_"
NAMES: Final = "tests/observation/test_snapshot.py::test_"
AT_20_MS: Final = (
    GUIDE + "f4_with_an_objective_of_20_ms_64_is_the_largest_that_is_not_past_its_knee[F4 max-num-seqs {}]"
)
UNTOLD: Final = GUIDE + "f4_without_an_objective_128_is_the_largest_that_is_not_past_its_knee[F4 max-num-seqs {}]"
THRASH: Final = GUIDE + "f4_from_256_on_preemption_wastes_work[F4 max-num-seqs {}]"
PREFILL: Final = GUIDE + "f4_prompts_make_the_first_token_late[F4 prompts of {} tokens-{} chunked prefill]"

ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "F1 128 output tokens": (GUIDE + "f1[F1 128 output tokens: 0.95 req/s, TTFT 196 ms]",),
    "F1 256": (GUIDE + "f1[F1 256 output tokens: 0.87 req/s, TTFT 3,098 ms]",),
    "F1 512": (GUIDE + "f1[F1 512 output tokens: 0.46 req/s, TTFT 49,929 ms]",),
    "F1 1,024": (GUIDE + "f1[F1 1,024 output tokens: 0.24 req/s, TTFT 144,074 ms]",),
    "F1 TPOT is flat, admission is closed": (GUIDE + "f1_tpot_is_flat_while_kv_is_the_limit",),
    "F2 a request is no unit of load": (GUIDE + "f2_a_request_is_no_unit_of_load",),
    "F2 KV pressure shows before a crash": (GUIDE + "f2_kv_pressure_shows_long_before_a_crash",),
    "F3 profiles": (GUIDE + "f3_the_profile_decides_what_matters",),
    "F3.1 slow only at the client": (GUIDE + "f5_what_is_no_tuning_problem_is_said_to_be_none[network]",),
    "F3.2 healthy line": (GUIDE + "f3[F3 running 39, waiting 0, KV 68.9 %]",),
    "F3.2 saturated line": (GUIDE + "f3[F3 running 60, waiting 21, KV 99.8 %]",),
    "F3.2 waiting 0 and TTFT high": (GUIDE + "f3[F3 waiting 0 but TTFT high: prefill]",),
    "F3.3 preemptions climb": (GUIDE + "f3[F3 preemptions climb: thrash, lower max-num-seqs]",),
    "F3.3 capacity at start-up": (GUIDE + "f3_a_pool_for_1_83_requests_holds_one",),
    "F3.3 prefix hit rate": ("tests/observation/test_inputs.py::test_the_hit_rate_is_over_all_engines_that_tell",),
    "F3.4 lengths": ("tests/observation/test_inputs.py::test_lengths_have_quantiles_of_half_an_hour_and_means_of_now",),
    "F3.5 replicas before a higher degree": (
        "tests/planning/test_choice.py::test_what_is_worth_a_change[nor by twice the GPUs]",
    ),
    "F3 no fp8 on an A100": ("tests/planning/test_knobs.py::test_kv_type[an older GPU]",),
    **{
        f"F4 utilisation {share}": (GUIDE + f"f4_more_memory_is_more_sequences[F4 utilisation {share}]",)
        for share in ("0.80", "0.85", "0.90", "0.92")
    },
    "F4 utilisation 0.95": (GUIDE + "f4_utilisation_0_95_crashes_for_lack_of_memory",),
    **{
        f"F4 max-model-len {row.partition(':')[0]}": (
            GUIDE + f"f4_max_model_len_contributes_and_frees_no_pool[F4 max-model-len {row}]",
        )
        for row in ("2,048", "4,096: right for a p99 of 3,000", "8,192", "16,384", "32,768")
    },
    **{f"F4 max-num-seqs {seats}": (AT_20_MS.format(seats), UNTOLD.format(seats)) for seats in (8, 16, 32, 64, 128)},
    **{
        f"F4 max-num-seqs {seats}": (AT_20_MS.format(seats), UNTOLD.format(seats), THRASH.format(seats))
        for seats in (256, 512)
    },
    **{
        f"F4 TTFT of {tokens} tokens": (PREFILL.format(tokens, "without"), PREFILL.format(tokens, "with"))
        for tokens in (512, 2_048, 4_096, 8_192, 16_384)
    },
    "F4 prefix caching": (GUIDE + "f4_prefix_caching",),
    **{
        f"F4 weights {weights}": (GUIDE + f"f4_smaller_weights_leave_room_for_more_sequences[F4 {weights} weights]",)
        for weights in ("FP16", "FP8", "GPTQ-INT4", "AWQ-INT4")
    },
    "F4 KV arithmetic": (GUIDE + "f4_the_arithmetic_of_the_pool",),
    **{
        f"F4 rule: {rule}": (GUIDE + f"f4_bottleneck_rules[F4 {rule}]",)
        for rule in (
            "the GPU is half idle: the batch is too small",
            "KV above 95 %: the cache is exhausted",
            "preemptions above 1 % of requests: too many sequences, although every seat is taken",
            "p99 TTFT above the objective: prefill is too slow",
            "communication above 15 %: lower the degree",
            "else near optimal",
        )
    },
    **{
        f"F5 {row}": (GUIDE + f"f5[F5 {row}]",)
        for row in (
            "high TTFT, fine TPOT, no queue: prefill or long prompts",
            "high TTFT, fine TPOT, a queue: the pool",
            "fine TTFT, high TPOT at a large batch",
            "high TPOT at a batch of two: the batch is not the cause, and no seat is blamed",
            "fine alone, bad under load: alone",
            "bad under load, the pool has room: prompts",
            "a missing stop token: every request runs to max_tokens",
        )
    },
    "F5 a few huge requests block the line": ("tests/diagnosis/test_late_tokens.py::test_a_few_giants",),
    "F5 a cold start": ("tests/diagnosis/test_peers.py::test_scale_on_cold_start_backlog",),
    "F5 out of memory": (GUIDE + "f5_out_of_memory_says_which_flags_hold_less",),
    "F5 not a tuning problem": (GUIDE + "f5_what_is_no_tuning_problem_is_said_to_be_none",),
    "names: KV usage, time between tokens": (NAMES + "the_older_names_mean_the_same",),
    "names: mean time per output token": (
        "tests/observation/test_inputs.py::test_every_version_is_read_by_its_own_names",
    ),
    "names: waiting by reason": (
        NAMES + "a_deferred_queue_is_told_from_one_for_capacity",
        NAMES + "without_reasons_all_that_wait_count",
    ),
    "names: pool size": (NAMES + "the_pool_is_read_from_labels", NAMES + "a_pool_that_is_not_exported_is_unknown"),
}


@pytest.fixture(scope="module")
def missing(request: pytest.FixtureRequest) -> set[str]:
    return unproven((proof for tests in ROWS.values() for proof in tests), request.session)


@pytest.mark.parametrize("row", ROWS)
def test_is_played(row: str, missing: set[str]) -> None:
    assert missing.isdisjoint(ROWS[row])
