"""What a message says is what its evidence shows."""

from typing import Any

import pytest
from tests.builders import NOT_MEASURED, diagnosed, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.observation.engine_window import EngineWindow

LATE = latency(9.0)
COMES_AND_GOES = [3.0] * 13 + [0.0] * 2
"""Requests wait in most scrapes of the window, and in the last two nobody does."""


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param({"running": 64, "kv": 0.24}, DiagnosisClass.CONCURRENCY_CAPPED, id="slots"),
        pytest.param({"running": 30, "kv": 0.998}, DiagnosisClass.KV_CACHE_SATURATED, id="KV cache"),
        pytest.param({"running": 8, "kv": 0.3, "prefill_seconds": 28.0}, DiagnosisClass.PREFILL_BOUND, id="prefill"),
        pytest.param({"running": 30, "kv": 0.3}, DiagnosisClass.OVERLOADED, id="load"),
    ],
)
def test_a_queue_is_as_long_as_in_the_evidence(levels: dict[str, Any], expected: DiagnosisClass) -> None:
    found = named(observation(engine(waiting=COMES_AND_GOES, **levels), ttft=LATE))
    assert found.primary is expected, found.message
    assert "p to 3 requests wait" in found.message


def test_so_is_one_of_deferred_requests() -> None:
    found = named(observation(engine(deferred=COMES_AND_GOES)))
    assert found.primary is DiagnosisClass.DEFERRED_QUEUE
    assert found.message.startswith("Up to 3 requests wait, but not for capacity")
    assert [one.value for one in found.evidence] == [3.0]


@pytest.mark.parametrize(
    ("seen", "seats", "says"),
    [
        pytest.param(
            engine(running=60, waiting=9, kv=0.998, preemptions=1, finished=9),
            64,
            "1 request was preempted and recomputed while 9 finished",
            id="preempted",
        ),
        pytest.param(
            engine(running=60, waiting=9, kv=0.998, preemptions=2, finished=9),
            64,
            "2 requests were preempted and recomputed while 9 finished",
            id="two of them",
        ),
        pytest.param(engine(running=1, waiting=9, kv=0.998), None, "although at most 1 sequence ran.", id="ran"),
        pytest.param(
            engine(running=1, waiting=9, kv=0.3), 1, "The only slot (max-num-seqs) is in use and up to 9", id="slot"
        ),
    ],
)
def test_one_is_told_in_the_singular(seen: EngineWindow, seats: int | None, says: str) -> None:
    assert says in named(observation(seen), seats=seats).message


@pytest.mark.parametrize(
    ("running", "expected"), [(30, DiagnosisClass.PAST_TPOT_KNEE), (1, DiagnosisClass.DECODE_BANDWIDTH_BOUND)]
)
def test_an_objective_that_is_just_missed_does_not_read_as_met(running: int, expected: DiagnosisClass) -> None:
    slow = latency(0.0254)
    found = named(observation(engine(running=running, kv=0.3), tpot=slow, itl=slow), against=targets(tpot=0.025))
    assert found.primary is expected, found.message
    assert found.message.startswith("TPOT p95 is 25.4 ms at batch size ")
    assert "(objective 25.0 ms)" in found.message


def test_nor_does_one_of_first_tokens() -> None:
    late = latency(2.04)
    found = named(observation(engine(running=8, kv=0.3), ttft=late, prefill_time=late))
    assert found.primary is DiagnosisClass.PREFILL_BOUND
    assert found.message.startswith("TTFT p95 is 2.04 s (objective 2.00 s): ")


def test_objectives_are_met_where_both_latencies_are_measured() -> None:
    fast, seen = latency(0.020), engine(running=30, kv=0.3)
    whole = named(observation(seen, ttft=latency(0.2), tpot=fast, itl=fast))
    assert whole.message.startswith("Objectives are met")
    found = named(observation(seen, ttft=NOT_MEASURED, tpot=fast, itl=fast))
    assert found.primary is DiagnosisClass.HEALTHY
    assert found.message == "There is no lasting queue and the KV cache has room; TTFT is not measured."


PREEMPTS, RARELY = ({"running": 30, "waiting": 9, "finished": 1000} | each for each in (
    {"preemptions": 20, "kv": 0.9}, {"preemptions": 8, "kv": 0.6}
))  # fmt: skip
SEATED, MOSTLY = ({"running": each, "waiting": 9, "kv": 0.3} for each in (64, [64.0] * 9 + [40.0] * 6))


@pytest.mark.parametrize(
    ("clear", "weak", "name", "limits"),
    [
        pytest.param(PREEMPTS, RARELY, "preemptions per finished request", [0.01, 0.005], id="preemptions"),
        pytest.param(PREEMPTS, RARELY, "KV usage, mean", [0.8, 0.5], id="a full KV cache"),
        pytest.param(SEATED, MOSTLY, "scrapes with all slots in use", [0.7, 0.5], id="slots"),
    ],
)
def test_a_class_that_stays_is_shown_with_the_limit_it_stays_by(
    clear: dict[str, Any], weak: dict[str, Any], name: str, limits: list[float]
) -> None:
    history, told, classes = History(), [], set()
    for levels in (clear, weak):
        seen = observation(engine(**levels))
        found, history = diagnosed(seen, targets=targets(), knobs=EngineKnobs(max_num_seqs=64), history=history)
        told += [one.threshold for one in found.evidence if one.name == name]
        classes.add(found.primary)
    assert len(classes) == 1
    assert told == limits


def test_slots_that_are_full_whenever_requests_wait_have_no_limit() -> None:
    """They are in use in 8 of 15 scrapes, and still they are what requests wait for."""
    bursts = [9.0] * 8 + [0.0] * 7
    seen = observation(engine(running=[64.0] * 8 + [20.0] * 7, waiting=bursts, kv=0.24), ttft=LATE)
    found = named(seen)
    assert found.primary is DiagnosisClass.CONCURRENCY_CAPPED
    assert [one.threshold for one in found.evidence if one.name == "scrapes with all slots in use"] == [None]
