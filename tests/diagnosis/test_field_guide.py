"""The rows of the field guide (F1 to F5) that say what a state is called."""

import pytest
from tests.builders import engine, latency, named, observation, targets

from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation


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
            observation(engine(running=64, waiting=30, kv=0.95, preemptions=5, finished=60), ttft=latency(9.0)),
            DiagnosisClass.PREEMPTION_THRASH,
            id="F4 preemptions above 1 % of requests: too many sequences, although every seat is taken",
        ),
        pytest.param(
            observation(engine(running=64, waiting=30, kv=0.5), ttft=latency(9.0)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="F4 batch too small: seats taken, the pool half empty",
        ),
        pytest.param(
            observation(engine(running=50, kv=0.6), tpot=latency(0.09)),
            DiagnosisClass.PAST_TPOT_KNEE,
            id="F5 fine TTFT, high TPOT at a large batch",
        ),
        pytest.param(
            observation(engine(running=2, kv=0.1), tpot=latency(0.09), itl=latency(0.09)),
            DiagnosisClass.DECODE_BANDWIDTH_BOUND,
            id="F5 high TPOT at a batch of two: the batch is not the cause, and no seat is blamed",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(6.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="F5 high TTFT without a queue: prefill or prompts",
        ),
    ],
)
def test_the_state_gets_its_name(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_tpot_is_flat_while_kv_is_the_limit() -> None:
    found = named(residency(ttft=49.929, tpot=0.0180, waiting=24, kv=0.97, finished=13.8))
    assert [one.diagnosis for one in found.contributing] == []
    assert "PastTPOTKnee" not in found.message


def test_what_waits_beside_a_slow_batch_is_named_first_and_the_batch_contributes() -> None:
    found = named(observation(engine(running=60, waiting=21, kv=0.998), ttft=latency(9.0), tpot=latency(0.08)))
    assert found.primary is DiagnosisClass.KV_CACHE_SATURATED
    assert [one.diagnosis for one in found.contributing] == [DiagnosisClass.PAST_TPOT_KNEE]


def test_more_seats_are_not_blamed_where_the_larger_batch_would_miss_tpot() -> None:
    seen = observation(engine(running=64, waiting=30, kv=0.5), ttft=latency(9.0), tpot=latency(0.09))
    assert named(seen, against=targets(tpot=0.05)).primary is DiagnosisClass.PAST_TPOT_KNEE
