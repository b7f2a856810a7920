"""From what a scrape delivers to a name: where a trap lies between reading and judging."""

import pytest
from tests.builders import diagnosed, targets
from tests.observation.fleet import NOW, RATES, Engine, fleet

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings, take_snapshot

RUNNING, WAITING, KV = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
BY_REASON = "vllm:num_requests_waiting_by_reason"
FULL = {RUNNING: 60.0, WAITING: 21.0, KV: 0.998}
STILL = dict.fromkeys(RATES, 0.0)
OLD_NAMES = frozenset({KV, "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"})


async def named(*engines: Engine, expected: int | None = None, at: float = NOW) -> Diagnosis:
    snapshot = await take_snapshot(fleet(*engines), at=at, settings=WindowSettings())
    keys = [EngineKey(engine.namespace, engine.pod, engine.index) for engine in engines]
    found, _ = diagnosed(
        observe(snapshot, keys, expected=expected),
        targets=targets(tpot=1.0),
        knobs=EngineKnobs(max_num_seqs=64),
        history=History(),
    )
    return found


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        pytest.param([Engine()], DiagnosisClass.HEALTHY, id="a healthy engine"),
        pytest.param([Engine(gauges=FULL)], DiagnosisClass.KV_CACHE_SATURATED, id="a full pool"),
        pytest.param(
            [Engine(gauges={RUNNING: 60.0, WAITING: 21.0, "vllm:gpu_cache_usage_perc": 0.998}, without=OLD_NAMES)],
            DiagnosisClass.KV_CACHE_SATURATED,
            id="a full pool of an old engine, under its old name",
        ),
        pytest.param(
            [Engine(gauges={RUNNING: 60.0, WAITING: 21.0}, without=frozenset({KV, "vllm:num_preemptions_total"}))],
            DiagnosisClass.UNCLEAR,
            id="an engine that exports no pool",
        ),
        pytest.param(
            [Engine(gauges={RUNNING: 4.0, WAITING: 0.0}, rates=STILL)],
            DiagnosisClass.WEDGED,
            id="a stopped core: frozen gauges, nothing waits, no token",
        ),
        pytest.param(
            [Engine(gauges={RUNNING: 0.0, WAITING: 9.0, KV: 0.0}, rates=STILL)],
            DiagnosisClass.WEDGED,
            id="a scheduler that admits nobody",
        ),
        pytest.param(
            [Engine(gauges={**FULL}, rates={"vllm:generation_tokens_total": 0.0})],
            DiagnosisClass.KV_CACHE_SATURATED,
            id="prefill alone is work, too",
        ),
        pytest.param(
            [Engine(gauges={RUNNING: 0.0, KV: 0.0}, rates=STILL)], DiagnosisClass.IDLE, id="fresh and nothing to do"
        ),
        pytest.param(
            [Engine(gauges={WAITING: 9.0, f"{BY_REASON}{{capacity}}": 0.0, f"{BY_REASON}{{deferred}}": 9.0})],
            DiagnosisClass.DEFERRED_QUEUE,
            id="all that wait are deferred",
        ),
        pytest.param(
            [Engine(gauges=FULL, restarted=NOW - 12)],
            DiagnosisClass.KV_CACHE_SATURATED,
            id="a counter that fell is no negative rate",
        ),
        pytest.param(
            [Engine(index="0"), Engine(index="1", gauges=FULL)],
            DiagnosisClass.KV_CACHE_SATURATED,
            id="one of two engines in a pod",
        ),
        pytest.param([Engine(end=NOW - 60)], DiagnosisClass.METRICS_BLIND, id="its last sample is a minute old"),
        pytest.param(
            [Engine(gauges={RUNNING: 0.0, WAITING: 0.0}, rates=STILL, end=NOW - 60)],
            DiagnosisClass.METRICS_BLIND,
            id="silence after idleness is not idleness",
        ),
        *(
            pytest.param(
                [Engine(gauges=FULL, interval=interval)],
                DiagnosisClass.KV_CACHE_SATURATED,
                id=f"a full pool seen every {interval} s",
            )
            for interval in (1, 5, 10, 15, 30, 60)
        ),
    ],
)
async def test_is_named(engines: list[Engine], expected: DiagnosisClass) -> None:
    found = await named(*engines)
    assert found.primary is expected, found.message


async def test_a_pod_that_is_missing_from_the_scrape_blinds_when_it_may_be_the_half_that_matters() -> None:
    assert (await named(Engine(), expected=2)).primary is DiagnosisClass.METRICS_BLIND
    three = [Engine(pod=f"chat-{number}") for number in range(3)]
    assert (await named(*three, expected=4)).primary is DiagnosisClass.HEALTHY


@pytest.mark.parametrize(
    ("ago", "wedged"),
    [pytest.param(110, False, id="110 s are no hang yet"), pytest.param(130, True, id="130 s are one")],
)
async def test_a_hang_is_named_two_minutes_after_the_last_token(ago: float, wedged: bool) -> None:
    found = await named(Engine(stopped=NOW - ago))
    assert (found.primary is DiagnosisClass.WEDGED) is wedged, found.message
    if wedged:
        assert "no token for 130 s" in found.message
