"""Traps that bit other autoscalers, named as in our survey of peers: from what is scraped to what is said."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import engine, latency, named, nobody, observation, targets
from tests.observation.fleet import NOW, RATES, Engine, fleet

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import ScaleIn, ScaleOut, Scaling
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.observation.observation import Observation, observe
from vllm_autotuner.observation.pod_starts import PodStart, PodsView
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings, take_snapshot
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.desired_replicas import desired_replicas
from vllm_autotuner.scaling.supply import Supply

RUNNING, WAITING, KV = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
FULL = {RUNNING: 60.0, WAITING: 21.0, KV: 0.998}
SLOW = targets(tpot=1.0)
"""The engines of the fleet take 100 ms a token, which is not what these tests are about."""
STILL = dict.fromkeys(RATES, 0.0)


async def seen(*engines: Engine, keys: tuple[str, ...] = ("chat-0",), expected: int | None = None) -> Observation:
    """What is observed of the pods that exist, whatever else is stored."""
    snapshot = await take_snapshot(fleet(*engines), at=NOW, settings=WindowSettings())
    return observe(snapshot, [EngineKey("demo", pod, "0") for pod in keys], expected=expected)


def replicas(found: Diagnosis, given: Observation, *, current: int = 1) -> int:
    """What would be asked for after a long wait."""
    return desired_replicas(
        Supply(current=current, rolled_out=True, ready=current, newest_since=None, pods_changed_at=None),
        scaling=Scaling(min_replicas=1, max_replicas=8, scale_out=ScaleOut(), scale_in=ScaleIn()),
        situation=Situation(
            diagnosis=found, case=Case(observation=given, targets=SLOW, knobs=EngineKnobs(max_num_seqs=64))
        ),
        now=datetime.fromtimestamp(found.since + 9_000, tz=UTC),
    ).replicas


async def test_wedged_scheduler_with_a_full_queue() -> None:
    given = await seen(Engine(gauges={RUNNING: 39.0, WAITING: 500.0, KV: 0.9}, rates=STILL))
    found = named(given, against=SLOW)
    assert found.primary is DiagnosisClass.WEDGED
    assert replicas(found, given) == 1


async def test_prefill_only_load_at_32_percent_kv() -> None:
    rates = {"vllm:generation_tokens_total": 2.0, "vllm:time_to_first_token_seconds": 2.0}
    given = await seen(Engine(gauges={RUNNING: 8.0, WAITING: 25.0, KV: 0.32}, rates=rates))
    assert named(given, against=SLOW).primary is not DiagnosisClass.KV_CACHE_SATURATED
    late = observation(
        engine(running=8, waiting=25, kv=0.32, generation_tokens=200, prefill_seconds=28.0), ttft=latency(8.0)
    )
    found = named(late)
    assert found.primary is DiagnosisClass.PREFILL_BOUND
    assert replicas(found, late) == 2


async def test_renamed_metric() -> None:
    gone = frozenset({KV, "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"})
    given = await seen(Engine(gauges={RUNNING: 60.0, WAITING: 21.0, "vllm:gpu_cache_usage_perc": 0.998}, without=gone))
    assert named(given, against=SLOW).primary is DiagnosisClass.KV_CACHE_SATURATED


@pytest.mark.parametrize(
    "missing", [KV, "vllm:num_preemptions_total", "vllm:generation_tokens_total", WAITING, RUNNING]
)
async def test_missing_is_not_zero(missing: str) -> None:
    """A busy engine that lacks one metric is neither idle nor gets more seats, nor a GPU without a known cause."""
    given = await seen(Engine(gauges={RUNNING: 30.0, WAITING: 21.0, KV: 0.998}, without=frozenset({missing})))
    found = named(given, against=SLOW)
    assert found.primary in (
        DiagnosisClass.KV_CACHE_SATURATED,
        DiagnosisClass.UNCLEAR,
        DiagnosisClass.METRICS_BLIND,
    )
    assert found.primary is not DiagnosisClass.UNCLEAR or replicas(found, given) == 1


async def test_series_of_deleted_pods() -> None:
    """The last samples of a pod that was full when it was deleted stand in the store for minutes."""
    deleted = Engine(pod="chat-old", gauges=FULL, end=NOW - 20)
    found = named(await seen(Engine(), deleted), against=SLOW)
    assert found.primary is DiagnosisClass.HEALTHY
    still_listed = named(await seen(Engine(), deleted, keys=("chat-0", "chat-old")), against=SLOW)
    assert still_listed.primary is DiagnosisClass.HEALTHY, "a stale sample is no sample"


async def test_counter_resets() -> None:
    given = await seen(Engine(gauges=FULL, restarted=NOW - 12))
    assert named(given, against=SLOW).primary is DiagnosisClass.KV_CACHE_SATURATED
    (one,) = given.engines
    assert one.finished is not None
    assert one.finished >= 0


async def test_one_pod_missing_from_the_scrape() -> None:
    assert named(await seen(Engine(), expected=2), against=SLOW).primary is DiagnosisClass.METRICS_BLIND
    three = [Engine(pod=f"chat-{number}") for number in range(3)]
    most = await seen(*three, keys=("chat-0", "chat-1", "chat-2"), expected=4)
    assert named(most, against=SLOW).primary is DiagnosisClass.HEALTHY


def test_empty_or_unknown_metric_is_zero() -> None:
    blind = nobody()
    found = named(blind)
    assert found.primary is DiagnosisClass.METRICS_BLIND
    assert replicas(found, blind, current=4) == 4, "silence neither adds nor removes"


def test_scale_on_cold_start_backlog() -> None:
    fresh = PodsView(pods=(PodStart(name="chat-0", ready_for=10.0),), warm_up=60.0)
    backlog = observation(engine(running=64, waiting=200, kv=0.5), ttft=latency(30.0), pods=fresh)
    found = named(backlog)
    assert found.primary is DiagnosisClass.COLD_START
    assert replicas(found, backlog) == 1


def test_two_to_one_oscillation() -> None:
    """What is called too many replicas at two must not be called too few at one."""
    fast: dict[str, Any] = {"ttft": latency(0.2), "tpot": latency(0.02), "itl": latency(0.02)}
    for running in range(1, 64):
        levels: dict[str, Any] = {"running": float(running), "kv": running / 64}
        two = observation(*(engine(pod=f"chat-{number}", **levels) for number in range(2)), **fast)
        if named(two).primary is DiagnosisClass.UNDERUTILIZED:
            doubled: dict[str, Any] = {"running": 2.0 * running, "kv": 2 * running / 64}
            one = observation(engine(**doubled), ttft=latency(0.4), tpot=latency(0.04), itl=latency(0.04))
            assert named(one).primary is DiagnosisClass.HEALTHY, running


def test_waiting_gauge_capped_by_queue_limit() -> None:
    """A gauge that stands at its limit does not grow; it is a queue all the same."""
    capped = observation(engine(running=39, waiting=10, kv=0.5), ttft=latency(9.0))
    found = named(capped)
    assert found.primary is DiagnosisClass.OVERLOADED
    assert replicas(found, capped) == 2


def test_a_queue_limit_that_turns_requests_away_hides_the_queue() -> None:
    """With a limit of next to nothing the gauge is zero in most scrapes, and every latency looks fine."""
    refusing = observation(engine(running=39, waiting=[1, 0, 0] * 5, kv=0.5, finished=60.0, rejected=30.0))
    found = named(refusing)
    assert found.primary is DiagnosisClass.OVERLOADED
    assert "30 were rejected" in found.message
    assert replicas(found, refusing) == 2
    seated = observation(engine(running=64, waiting=0, kv=0.5, finished=60.0, rejected=30.0))
    assert named(seated, seats=64).primary is DiagnosisClass.CONCURRENCY_CAPPED
    full = observation(engine(running=20, waiting=0, kv=0.98, finished=60.0, rejected=30.0))
    assert named(full, seats=64).primary is DiagnosisClass.KV_CACHE_SATURATED


def test_lowering_max_num_seqs_fixes_p99_by_queueing_outside() -> None:
    """Tokens are fast because nearly nobody is let in: TTFT with its queue is what counts."""
    starved = observation(engine(running=4, waiting=60, kv=0.05), ttft=latency(20.0), tpot=latency(0.01))
    assert named(starved, seats=4).primary is DiagnosisClass.CONCURRENCY_CAPPED
