"""Stories of the knobs beside seats and replicas: they go through the same machine in place, and come back the same."""

from dataclasses import replace
from typing import Any

import pytest
from tests.builders import engine, latency, observation
from tests.control.desk import Desk, desk
from tests.planning.situations import line, served

from vllm_autotuner.api.annotations import APPROVE
from vllm_autotuner.api.status import Outcome, Source
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.verification import NotEffective
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.pod_starts import PodStart, PodsView

ON_H100: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-32B"},
    "engine__maxNumSeqs": 256,
    "engine__tensorParallelSize": 2,
    "accelerator": {"product": "NVIDIA-H100-80GB-HBM3"},
    "tuning__maxNumSeqs": ...,
}
FP8 = {**ON_H100, "tuning__kvCacheDtype": {"allowed": ["auto", "fp8"]}}
WIDER = {**ON_H100, "objectives__tpot": {"target": "12ms"}, "tuning__tensorParallelSize": {"allowed": [2, 4]}}
POOL = KVPool(tokens=282_496, cache_dtype="auto", max_model_len=16_384)

FULL = served(
    observation(engine(running=60.0, waiting=40.0, kv=0.98), ttft=latency(8.0)),
    steps=line(8, 16, 32, 60, base=0.014, per_sequence=0.0003),
    pool=POOL,
)
"""60 sequences fill the cache, 40 wait, 196 seats are free."""
ROOMY = served(
    observation(engine(running=100.0, kv=0.7), ttft=latency(0.4)), pool=replace(POOL, tokens=564_992, cache_dtype="fp8")
)
SLOW = served(
    observation(engine(running=2.0, kv=0.1), tpot=latency(0.0145), itl=latency(0.0145)),
    steps=line(1, 2, 3, base=0.0141, per_sequence=0.0002),
    pool=POOL,
)
"""Tokens come at 14.5 ms with two sequences, of which reading the weights takes 9.8: no smaller batch meets 12."""
FASTER = served(observation(engine(running=2.0, kv=0.1), tpot=latency(0.0099), itl=latency(0.0099)), pool=POOL)


def kv(found: Desk) -> str | None:
    return effective_knobs(found.service.spec, found.read).kv_cache_dtype


def test_a_listed_kv_type_is_tried_in_place_and_kept() -> None:
    found = desk(**FP8)
    found.until("Provisioning", FULL)
    change = found.read.active_change
    assert change is not None
    assert (change.knob, change.from_value, change.to_value, change.to.kv_cache_dtype) == (
        "kvCacheDtype", None, "fp8", "fp8",
    )  # fmt: skip
    found.until(None, ROOMY)
    assert found.read.history[-1].outcome is Outcome.SUCCEEDED
    effective = found.read.effective
    assert effective is not None
    assert (effective.kv_cache_dtype, effective.max_num_seqs, effective.source) == ("fp8", 256, Source.TUNED)
    found.edit(tuning__kvCacheDtype={"allowed": ["auto"]})
    found.tick(ROOMY)
    assert kv(found) is None


def test_an_engine_that_ignores_it_is_rolled_back_and_remembered() -> None:
    found = desk(**FP8)
    found.until("Verifying", FULL)
    found.tick(FULL, verification=NotEffective("chat-0 exports kvCacheDtype=auto, not fp8"))
    found.until(None, FULL)
    assert found.read.history[-1].outcome is Outcome.ROLLED_BACK
    assert kv(found) is None
    assert [entry.candidate for entry in found.read.failure_memory] == ["kvCacheDtype=fp8"]
    assert found.last is not None
    assert found.last.status.recommendation is None or found.last.status.recommendation.knob != "kvCacheDtype"


def test_taking_the_type_off_the_list_under_a_change_takes_it_back() -> None:
    found = desk(**FP8)
    found.until("Analyzing", FULL)
    found.edit(tuning__kvCacheDtype={"allowed": ["auto"]})
    found.until(None, FULL)
    assert kv(found) is None
    assert found.read.history[-1].outcome in (Outcome.ROLLED_BACK, Outcome.SUPERSEDED)


def test_a_recommended_word_is_written_once() -> None:
    found = desk(**{**ON_H100, "tuning__mode": "Recommend"})
    found.ticks(4, FULL)
    advice = found.read.recommendation
    assert advice is not None
    assert (advice.knob, advice.recommended) == ("kvCacheDtype", "fp8")
    assert "Answers may change" in advice.reason
    writes = found.writes
    found.ticks(8, FULL)
    assert (found.writes, found.read.recommendation) == (writes, advice)


def test_a_person_approves_a_word() -> None:
    found = desk(**{**FP8, "tuning__mode": "Approve"})
    found.ticks(4, FULL)
    advice = found.read.recommendation
    assert advice is not None
    found.annotations[APPROVE] = advice.id
    found.tick(FULL)
    change = found.read.active_change
    assert change is not None
    assert (change.knob, change.to_value) == ("kvCacheDtype", "fp8")


def test_a_listed_degree_is_tried_in_place_and_its_gpus_count() -> None:
    found = desk(**WIDER)
    found.until("Provisioning", SLOW)
    change = found.read.active_change
    assert change is not None
    assert (change.knob, change.from_value, change.to_value) == ("tensorParallelSize", "2", "4")
    found.until(None, FASTER)
    assert found.read.history[-1].outcome is Outcome.SUCCEEDED
    assert effective_knobs(found.service.spec, found.read).tensor_parallel_size == 4


def test_more_gpus_are_not_asked_for_where_the_weights_are_not_what_takes_the_time() -> None:
    """At 78 ms a step, reading the weights is an eighth: twice the GPUs would gain 2 %."""
    idle = served(
        observation(engine(running=2.0, kv=0.1), tpot=latency(0.08), itl=latency(0.08)),
        steps=line(1, 2, 3, base=0.078, per_sequence=0.0008),
        pool=POOL,
    )
    found = desk(**WIDER)
    assert found.ticks(6, idle).diagnosis.primary is DiagnosisClass.DECODE_BANDWIDTH_BOUND
    assert (found.read.recommendation, found.read.active_change) == (None, None)


@pytest.mark.fault("T19")
def test_a_degree_that_finds_no_node_ends_without_blame_for_harm() -> None:
    found = desk(**WIDER)
    found.until("Provisioning", SLOW)
    for _ in range(90):
        waiting = found.rollout(settled=False, rolled_out=False, unschedulable="0/3 nodes have 4 free GPUs")
        found.tick(SLOW, rollout=waiting)
        if found.read.active_change is None or found.read.active_change.state.value == "RollingBack":
            break
    found.until(None, SLOW)
    entry = found.read.history[-1]
    assert (entry.outcome, "4 free GPUs" in entry.reason) == (Outcome.ROLLED_BACK, True)
    assert found.read.circuit is None
    assert effective_knobs(found.service.spec, found.read).tensor_parallel_size == 2


@pytest.mark.parametrize("mode", ["Recommend", "Approve"])
def test_a_start_that_fails_for_its_cache_recommends_the_length_that_fits(mode: str) -> None:
    failure = StartupFailure(
        reason=StartupReason.INSUFFICIENT_KV_CACHE, message="too long", suggested_max_model_len=17_920
    )
    dead = PodsView(pods=(PodStart(name="chat-0", ready_for=None, failure=failure),))
    found = desk(**{**ON_H100, "engine__maxModelLen": 32_000, "tuning__mode": mode,
                    "tuning__maxModelLen": {"min": 4096, "max": 32_000}})  # fmt: skip
    found.ticks(4, replace(FULL, engines=(), pods=dead), rollout=found.rollout(settled=False, ready=0))
    advice = found.read.recommendation
    assert advice is not None
    assert (advice.knob, advice.recommended) == ("maxModelLen", "17920")
    assert found.read.active_change is None
