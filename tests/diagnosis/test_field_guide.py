"""Every row of every table of the field guide (F1 to F5) that says what a state is called, by its id."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.builders import WINDOW, diagnosed, engine, latency, named, nobody, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Profile
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.engine.startup_log import parse_startup_failure
from vllm_autotuner.observation.observation import KVPool, Observation, StepPoint
from vllm_autotuner.observation.pod_starts import PodStart, PodsView
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.performance.step_time import StepTime, fit_step_time
from vllm_autotuner.planning.advice import ADVICE

# --- F1: KV residency -------------------------------------------------------------------------------------------------


def residency(*, ttft: float, tpot: float, waiting: int, kv: float, finished: float) -> Observation:
    """F1: the check is KV above 80 %, requests waiting while it is, TTFT climbing while TPOT stays flat."""
    one = engine(running=28, waiting=waiting, kv=kv, finished=finished)
    return observation(one, ttft=latency(ttft), tpot=latency(tpot))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            residency(ttft=0.196, tpot=0.0182, waiting=0, kv=0.72, finished=28.5),
            DiagnosisClass.HEALTHY,
            id="F1 128 output tokens: 0.95 req/s, TTFT 196 ms",
        ),
        pytest.param(
            residency(ttft=3.098, tpot=0.0182, waiting=3, kv=0.86, finished=26.1),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F1 256 output tokens: 0.87 req/s, TTFT 3,098 ms",
        ),
        pytest.param(
            residency(ttft=49.929, tpot=0.0180, waiting=24, kv=0.97, finished=13.8),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F1 512 output tokens: 0.46 req/s, TTFT 49,929 ms",
        ),
        pytest.param(
            residency(ttft=144.074, tpot=0.0180, waiting=70, kv=1.0, finished=7.2),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F1 1,024 output tokens: 0.24 req/s, TTFT 144,074 ms",
        ),
    ],
)
def test_f1(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_f1_tpot_is_flat_while_kv_is_the_limit() -> None:
    found = named(residency(ttft=49.929, tpot=0.0180, waiting=24, kv=0.97, finished=13.8))
    assert [part.diagnosis for part in found.contributing] == []
    assert all("max-num-seqs" not in line or "Do not raise" in line for line in ADVICE[found.primary])


# --- F2: model fit is not serving fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "kv", "prefill", "expected"),
    [
        pytest.param(16_000, 100, 0.4, WINDOW, DiagnosisClass.PREFILL_BOUND, id="F2 16k prompt, short answer"),
        pytest.param(1_000, 4_000, 0.98, 0.5, DiagnosisClass.KV_CACHE_SATURATED, id="F2 1k prompt, 4k answer"),
    ],
)
def test_f2_a_request_is_no_unit_of_load(
    prompt: int, output: int, kv: float, prefill: float, expected: DiagnosisClass
) -> None:
    """As many requests, as many waiting, the same TTFT: what they are made of decides."""
    one = engine(
        running=20,
        waiting=12,
        kv=kv,
        finished=10.0,
        prefill_seconds=prefill,
        prompt_tokens=10.0 * prompt,
        generation_tokens=10.0 * output,
    )
    assert named(observation(one, ttft=latency(8.0))).primary is expected


def test_f2_kv_pressure_shows_long_before_a_crash() -> None:
    """A growing queue and a late first token while every pod is up."""
    seen = residency(ttft=3.098, tpot=0.0182, waiting=3, kv=0.86, finished=26.1)
    assert named(seen).primary is DiagnosisClass.KV_CACHE_SATURATED
    assert not seen.silent


# --- F3: the triage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            observation(engine(running=39, waiting=0, kv=0.689)),
            DiagnosisClass.HEALTHY,
            id="F3 running 39, waiting 0, KV 68.9 %",
        ),
        pytest.param(
            observation(engine(running=60, waiting=21, kv=0.998), ttft=latency(9.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F3 running 60, waiting 21, KV 99.8 %",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(6.0), prefill_time=latency(5.9)),
            DiagnosisClass.PREFILL_BOUND,
            id="F3 waiting 0 but TTFT high: prefill",
        ),
        pytest.param(
            observation(engine(running=30, waiting=9, kv=0.97, preemptions=9)),
            DiagnosisClass.PREEMPTION_THRASH,
            id="F3 preemptions climb: thrash, lower max-num-seqs",
        ),
    ],
)
def test_f3(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(Profile.LATENCY, DiagnosisClass.PREFILL_BOUND, id="F3 latency: a person waits"),
        pytest.param(Profile.THROUGHPUT, DiagnosisClass.HEALTHY, id="F3 throughput: batch jobs do not"),
        pytest.param(Profile.BURSTY, DiagnosisClass.HEALTHY, id="F3 bursty: a spike may"),
    ],
)
def test_f3_the_profile_decides_what_matters(profile: Profile, expected: DiagnosisClass) -> None:
    seen = observation(engine(running=8, kv=0.3), ttft=latency(4.0), prefill_time=latency(3.9))
    assert named(seen, against=targets(profile=profile)).primary is expected


def test_f3_a_pool_for_1_83_requests_holds_one() -> None:
    """4.46 GiB, "Maximum concurrency for 10,000 tokens per request: 1.83x": the wrong size for more than two users."""
    lengths: dict[str, Any] = {"prompt_length": latency(8_000.0), "output_length": latency(2_000.0)}
    found = kv_bound(observation(engine(kv=None, pool=KVPool(tokens=18_300, max_model_len=10_000)), **lengths))
    assert found == 1


# --- F4: the sweep ----------------------------------------------------------------------------------------------------

UTILISATION = (
    pytest.param(0.80, 1842, 28, 0.189, id="F4 utilisation 0.80"),
    pytest.param(0.85, 2105, 32, 0.165, id="F4 utilisation 0.85"),
    pytest.param(0.90, 2368, 36, 0.142, id="F4 utilisation 0.90"),
    pytest.param(0.92, 2473, 38, 0.138, id="F4 utilisation 0.92"),
)


@pytest.mark.parametrize(("utilisation", "blocks", "running", "ttft"), UTILISATION)
def test_f4_more_memory_is_more_sequences(utilisation: float, blocks: int, running: int, ttft: float) -> None:
    """Each row runs what its pool holds; when more come, the pool is the limit and more memory is advised."""
    seen = observation(
        engine(running=running, waiting=5, kv=0.99, pool=KVPool(blocks=blocks, block_size=16, tokens=blocks * 16)),
        ttft=latency(ttft),
    )
    found = named(seen, seats=256)
    assert found.primary is DiagnosisClass.KV_CACHE_SATURATED, f"at {utilisation}"
    assert any("gpu-memory-utilization" in line for line in ADVICE[found.primary])


def test_f4_utilisation_0_95_crashes_for_lack_of_memory() -> None:
    failure = parse_startup_failure("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.10 GiB.\n")
    assert failure is not None
    pods = PodsView(pods=(PodStart(name="chat-0", ready_for=None, failure=failure),))
    found = named(nobody(pods=pods, expected=0))
    assert found.primary is DiagnosisClass.STARTUP_FAILURE
    assert "OutOfMemory" in found.message


@pytest.mark.parametrize(
    ("longest", "oversized"),
    [
        pytest.param(2_048, False, id="F4 max-model-len 2,048"),
        pytest.param(4_096, False, id="F4 max-model-len 4,096: right for a p99 of 3,000"),
        pytest.param(8_192, True, id="F4 max-model-len 8,192"),
        pytest.param(16_384, True, id="F4 max-model-len 16,384"),
        pytest.param(32_768, True, id="F4 max-model-len 32,768"),
    ],
)
def test_f4_max_model_len_contributes_and_frees_no_pool(longest: int, oversized: bool) -> None:
    lengths: dict[str, Any] = {"prompt_length": latency(512, count=5000), "output_length": latency(2_488, count=5000)}
    found = named(observation(engine(pool=KVPool(max_model_len=longest)), **lengths))
    assert found.primary is DiagnosisClass.HEALTHY
    assert [part.diagnosis for part in found.contributing] == [DiagnosisClass.CONTEXT_OVERSIZED] * oversized
    assert all("frees no KV cache" in part.message for part in found.contributing)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One row of max-num-seqs: tokens per second, TPOT (ms) at p50 and p99."""

    seats: int
    tokens: float
    p50: float
    p99: float


SWEEP = (
    Sweep(8, 1280, 6.2, 8.1),
    Sweep(16, 2410, 6.6, 9.5),
    Sweep(32, 3780, 8.4, 12.8),
    Sweep(64, 4650, 13.7, 19.2),
    Sweep(128, 5120, 24.9, 35.1),
    Sweep(256, 4890, 52.3, 78.4),
    Sweep(512, 3200, 159.8, 245.0),
)
STEPS = tuple(StepPoint(running=row.seats, itl=row.p50 / 1000, tokens=row.tokens) for row in SWEEP[:5])
AT_20_MS = Targets(profile=Profile.LATENCY, ttft=targets().ttft, tpot=Target(quantile=0.99, seconds=0.020))


def swept(row: Sweep, *, preemptions: float = 0.0) -> Observation:
    """Saturated at this cap: every seat taken, a queue behind them."""
    return observation(
        engine(running=row.seats, waiting=40, kv=0.9 if preemptions else 0.6, preemptions=preemptions),
        ttft=latency(9.0),
        tpot=latency(row.p50 / 1000, tail=row.p99 / 1000),
        itl=latency(row.p50 / 1000, count=2000),
        steps=STEPS,
    )


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: f"F4 max-num-seqs {row.seats}")
def test_f4_with_an_objective_of_20_ms_64_is_the_largest_that_is_not_past_its_knee(row: Sweep) -> None:
    expected = DiagnosisClass.CONCURRENCY_CAPPED if row.seats <= 64 else DiagnosisClass.PAST_TPOT_KNEE
    found = named(swept(row), seats=row.seats, against=AT_20_MS)
    assert found.primary is expected, found.message


@pytest.mark.parametrize("row", SWEEP, ids=lambda row: f"F4 max-num-seqs {row.seats}")
def test_f4_without_an_objective_128_is_the_largest_that_is_not_past_its_knee(row: Sweep) -> None:
    """The default of the profile stands in: a p95 of 50 ms."""
    expected = DiagnosisClass.CONCURRENCY_CAPPED if row.seats <= 128 else DiagnosisClass.PAST_TPOT_KNEE
    assert named(swept(row), seats=row.seats).primary is expected


@pytest.mark.parametrize("row", SWEEP[5:], ids=lambda row: f"F4 max-num-seqs {row.seats}")
def test_f4_from_256_on_preemption_wastes_work(row: Sweep) -> None:
    found = named(swept(row, preemptions=3.0), seats=row.seats)
    assert found.primary is DiagnosisClass.PREEMPTION_THRASH
    assert DiagnosisClass.PAST_TPOT_KNEE in [part.diagnosis for part in found.contributing]


PREFILLS = (
    (512, 45, 48),
    (2_048, 142, 155),
    (4_096, 312, 245),
    (8_192, 680, 490),
    (16_384, 1_420, 1_020),
)
"""Prompt tokens, p99 TTFT (ms) without and with chunked prefill."""


@pytest.mark.parametrize("chunked", [False, True], ids=["without chunked prefill", "with chunked prefill"])
@pytest.mark.parametrize("row", PREFILLS, ids=lambda row: f"F4 prompts of {row[0]} tokens")
def test_f4_prompts_make_the_first_token_late(row: tuple[int, int, int], chunked: bool) -> None:
    """Against half a second; nothing waits, TTFT is prefill."""
    seconds = row[2 if chunked else 1] / 1000
    seen = observation(engine(running=4, kv=0.3), ttft=latency(seconds), prefill_time=latency(seconds))
    expected = DiagnosisClass.PREFILL_BOUND if seconds > 0.5 else DiagnosisClass.HEALTHY
    assert named(seen, against=targets(ttft=0.5)).primary is expected


@pytest.mark.parametrize(
    ("ttft", "hits", "expected"),
    [
        pytest.param(0.125, 0.0, DiagnosisClass.PREFILL_BOUND, id="F4 without prefix caching: 125 ms"),
        pytest.param(0.0321, 2048.0, DiagnosisClass.HEALTHY, id="F4 with 2,048 of 2,560 tokens shared: 32 ms"),
    ],
)
def test_f4_prefix_caching(ttft: float, hits: float, expected: DiagnosisClass) -> None:
    one = engine(running=4, kv=0.3, prefix_hits=hits, prefix_queries=2560.0)
    found = named(observation(one, ttft=latency(ttft), prefill_time=latency(ttft)), against=targets(ttft=0.1))
    assert found.primary is expected
    if expected is DiagnosisClass.PREFILL_BOUND:
        assert {fact.name: fact.value for fact in found.evidence}["prefix cache hit rate"] == 0.0
        assert any("prefix caching" in line for line in ADVICE[expected])


BYTES_PER_BLOCK = 5.24e6
"""F4: a block of 16 tokens over the group of four."""


def test_f4_the_arithmetic_of_the_pool() -> None:
    blocks = 4 * 37.5e9 / BYTES_PER_BLOCK
    assert blocks == pytest.approx(28_626, rel=1e-4)
    assert 28_626 * 16 == 458_016


@pytest.mark.parametrize(
    ("kv_gigabytes", "sequences"),
    [
        pytest.param(37.5, 128, id="F4 FP16 weights"),
        pytest.param(53.7, 184, id="F4 FP8 weights"),
        pytest.param(60.8, 208, id="F4 GPTQ-INT4 weights"),
        pytest.param(61.0, 209, id="F4 AWQ-INT4 weights"),
    ],
)
def test_f4_smaller_weights_leave_room_for_more_sequences(kv_gigabytes: float, sequences: int) -> None:
    tokens = round(4 * kv_gigabytes * 1e9 / BYTES_PER_BLOCK * 16)
    length = 458_016 / 128
    lengths: dict[str, Any] = {"prompt_length": latency(length / 2), "output_length": latency(length / 2)}
    found = kv_bound(observation(engine(kv=None, pool=KVPool(tokens=tokens)), **lengths))
    assert found == pytest.approx(0.9 * sequences, rel=0.03), "less the margin of a tenth"


def communicating() -> Observation:
    return observation(
        engine(running=30, kv=0.3),
        tpot=latency(0.1),
        itl=latency(0.09, count=2000),
        steps=tuple(StepPoint(running=batch, itl=0.07 + 0.0006 * batch, tokens=1000) for batch in (4.0, 16.0, 32.0)),
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            observation(engine(running=64, waiting=30, kv=0.5), ttft=latency(9.0)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="F4 the GPU is half idle: the batch is too small",
        ),
        pytest.param(
            observation(engine(running=40, waiting=30, kv=0.96), ttft=latency(9.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F4 KV above 95 %: the cache is exhausted",
        ),
        pytest.param(
            observation(engine(running=64, waiting=30, kv=0.95, preemptions=5, finished=60), ttft=latency(9.0)),
            DiagnosisClass.PREEMPTION_THRASH,
            id="F4 preemptions above 1 % of requests: too many sequences, although every seat is taken",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(6.0), prefill_time=latency(5.9)),
            DiagnosisClass.PREFILL_BOUND,
            id="F4 p99 TTFT above the objective: prefill is too slow",
        ),
        pytest.param(
            communicating(), DiagnosisClass.COMMUNICATION_BOUND, id="F4 communication above 15 %: lower the degree"
        ),
        pytest.param(observation(engine(running=40, kv=0.7)), DiagnosisClass.HEALTHY, id="F4 else near optimal"),
    ],
)
def test_f4_bottleneck_rules(seen: Observation, expected: DiagnosisClass) -> None:
    two = fit_step_time(tuple(StepPoint(running=b, itl=0.06 + 0.001 * b, tokens=1000) for b in (2.0, 16.0, 32.0)))
    assert isinstance(two, StepTime)
    found, _ = diagnosed(
        seen,
        targets=targets(),
        knobs=EngineKnobs(max_num_seqs=64, tensor_parallel_size=4),
        history=History(learned={2: two}),
    )
    assert found.primary is expected, found.message


# --- F5: the triage card ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(6.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="F5 high TTFT, fine TPOT, no queue: prefill or long prompts",
        ),
        pytest.param(
            observation(engine(running=60, waiting=20, kv=0.97), ttft=latency(6.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="F5 high TTFT, fine TPOT, a queue: the pool",
        ),
        pytest.param(
            observation(engine(running=50, kv=0.6), tpot=latency(0.09)),
            DiagnosisClass.PAST_TPOT_KNEE,
            id="F5 fine TTFT, high TPOT at a large batch",
        ),
        pytest.param(
            observation(engine(running=2, kv=0.1), tpot=latency(0.09), itl=latency(0.09, count=2000)),
            DiagnosisClass.DECODE_BANDWIDTH_BOUND,
            id="F5 high TPOT at a batch of two: the batch is not the cause, and no seat is blamed",
        ),
        pytest.param(
            observation(engine(running=1, kv=0.05)), DiagnosisClass.HEALTHY, id="F5 fine alone, bad under load: alone"
        ),
        pytest.param(
            observation(
                engine(running=30, waiting=20, kv=0.3, prefill_seconds=WINDOW, generation_tokens=200.0),
                ttft=latency(6.0),
            ),
            DiagnosisClass.PREFILL_BOUND,
            id="F5 bad under load, the pool has room: prompts",
        ),
        pytest.param(
            observation(
                engine(finished_by={"length": 60.0}, pool=KVPool(max_model_len=2048)),
                recent_output_length=latency(1_900.0),
                recent_prompt_length=latency(100.0),
            ),
            DiagnosisClass.RUNAWAY_OUTPUTS,
            id="F5 a missing stop token: every request runs to max_tokens",
        ),
    ],
)
def test_f5(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_f5_out_of_memory_says_which_flags_hold_less() -> None:
    advice = " ".join(ADVICE[DiagnosisClass.STARTUP_FAILURE])
    for flag in ("--gpu-memory-utilization", "--max-num-seqs", "--max-model-len"):
        assert flag in advice.partition("OutOfMemory: ")[2]


@pytest.mark.parametrize("word", ["chat template", "tokenizer", "network"])
def test_f5_what_is_no_tuning_problem_is_said_to_be_none(word: str) -> None:
    advice = " ".join(ADVICE[DiagnosisClass.UNCLEAR])
    assert word in advice
    assert "not a tuning problem" in advice


def test_what_waits_beside_a_slow_batch_is_named_first_and_the_batch_contributes() -> None:
    found = named(observation(engine(running=60, waiting=21, kv=0.998), ttft=latency(9.0), tpot=latency(0.08)))
    assert found.primary is DiagnosisClass.KV_CACHE_SATURATED
    assert [one.diagnosis for one in found.contributing] == [DiagnosisClass.PAST_TPOT_KNEE]


def test_a_low_max_num_seqs_is_not_blamed_where_the_larger_batch_would_miss_tpot() -> None:
    seen = observation(engine(running=64, waiting=30, kv=0.5), ttft=latency(9.0), tpot=latency(0.09))
    assert named(seen, against=targets(tpot=0.05)).primary is DiagnosisClass.PAST_TPOT_KNEE
