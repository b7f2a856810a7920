"""What rules read beside gauges and latencies: reasons, sources, caches, ages, and what was before."""

import httpx
import pytest
from tests.builders import SCRAPES, engine, observation
from tests.observation.fleet import BORN, GAUGES, NOW, RATES, Engine, fleet

from vllm_autotuner.engine.metric_names import NAMES, PROCESS_START, Meaning
from vllm_autotuner.observation.observation import EngineWindow, Observation, observe
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.reading import Measured, NoData, number
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings, take_snapshot

SETTINGS = WindowSettings()
SAMPLED = 28.0
"""Seconds between the first and the last scrape of a 30 s window, scraped every 2 s."""


async def seen(*engines: Engine, at: float = NOW) -> Observation:
    snapshot = await take_snapshot(fleet(*engines), at=at, settings=SETTINGS)
    return observe(snapshot, snapshot.engines)


async def one(engine: Engine) -> EngineWindow:
    (found,) = (await seen(engine)).engines
    return found


# --- reasons, sources, caches -----------------------------------------------------------------------------------------


async def test_requests_are_counted_by_the_reason_they_ended_for() -> None:
    found = await one(Engine(rates={"vllm:request_success_total{length}": 6.0}))
    assert found.finished_by == {"stop": pytest.approx(2 * SAMPLED), "length": pytest.approx(6 * SAMPLED)}
    assert found.finished == pytest.approx(8 * SAMPLED)


async def test_prompt_tokens_that_no_cache_held_are_told_apart() -> None:
    found = await one(Engine())
    assert found.prompt_tokens_computed == pytest.approx(400 * SAMPLED)
    assert found.prompt_tokens == pytest.approx(500 * SAMPLED)
    split = frozenset(name for name in RATES if name.startswith("vllm:prompt_tokens_by_source"))
    assert (await one(Engine(without=split))).prompt_tokens_computed == pytest.approx(400 * SAMPLED), "less the hits"
    hits = frozenset({"vllm:prefix_cache_hits_total"})
    assert (await one(Engine(without=split | hits))).prompt_tokens_computed is None


async def test_the_hit_rate_is_over_all_engines_that_tell() -> None:
    busy = Engine(
        pod="chat-1", rates={"vllm:prefix_cache_hits_total": 900.0, "vllm:prefix_cache_queries_total": 1500.0}
    )
    assert (await seen(Engine(), busy)).prefix_hit_rate == pytest.approx(1000 / 2000)
    untold = Engine(without=frozenset({"vllm:prefix_cache_hits_total"}))
    assert (await seen(untold)).prefix_hit_rate is None
    quiet = Engine(rates={"vllm:prefix_cache_hits_total": 0.0, "vllm:prefix_cache_queries_total": 0.0})
    assert (await seen(quiet)).prefix_hit_rate is None, "0/0 is no rate of zero"


async def test_times_and_step_sizes_are_means() -> None:
    found = await seen(Engine())
    for distribution in (found.prefill_time, found.decode_time, found.queue_time, found.step_tokens):
        assert number(distribution.mean) == pytest.approx(0.1)
    assert found.engines[0].prefill_seconds == pytest.approx(0.2 * SAMPLED)
    missing = await seen(Engine(without=frozenset({"vllm:request_decode_time_seconds"})))
    assert isinstance(missing.decode_time.mean, NoData)


async def test_lengths_have_quantiles_of_half_an_hour_and_means_of_now() -> None:
    found = await seen(Engine(begin=NOW - 1800))
    assert found.prompt_length.count > 10 * found.recent_prompt_length.count > 0
    assert number(found.recent_prompt_length.mean) == pytest.approx(0.1)
    assert isinstance(found.prompt_length.quantile(0.999), Measured)
    assert isinstance(found.prompt_length.mean, NoData), "sum and count of the long window are not asked for"


# --- ages and what was before -----------------------------------------------------------------------------------------


async def test_the_start_of_a_process_is_that_of_every_engine_in_its_pod() -> None:
    first, second = (Engine(index=index, gauges={PROCESS_START: NOW - 45}) for index in ("0", "1"))
    other = Engine(pod="chat-1", gauges={PROCESS_START: BORN})
    found = await seen(first, second, other)
    assert [engine.started for engine in found.engines] == [NOW - 45, NOW - 45, BORN]


async def test_a_process_beside_an_engine_tells_nothing() -> None:
    """Every process of a cluster exports its start; only those at an engine's own address are asked about."""
    sidecar = Engine(
        pod="chat-0", gauges={PROCESS_START: NOW - 5}, labels={"instance": "10.0.0.1:9100"}, without=frozenset()
    )
    recording = fleet(Engine(labels={"instance": "10.0.0.1:8000"}))
    for sample, time in sidecar.samples():
        if sample.name == PROCESS_START:
            recording.add(sample, time=time)
    snapshot = await take_snapshot(recording, at=NOW, settings=SETTINGS)
    assert [engine.started for engine in snapshot.engines.values()] == [None]


REJECTIONS = {
    "vllm:admission_rejections_total{max_num_queued_reqs}": 0.5,
    "vllm:admission_rejections_total{max_num_queued_tokens}": 0.25,
}


async def test_requests_that_are_turned_away_are_counted_for_all_reasons_and_arrived() -> None:
    found = await seen(Engine(rates=REJECTIONS))
    (engine,) = found.engines
    assert engine.rejected == pytest.approx(0.75 * engine.sampled)
    assert found.arrivals_per_second == pytest.approx(2.75)
    assert (await seen(Engine())).engines[0].rejected is None, "not exported is not zero"


@pytest.mark.parametrize(
    ("finished", "grew", "pressure"),
    [
        pytest.param(310.0, 230.0, 540 / 310, id="540 came"),
        pytest.param(490.0, 50.0, 1.0, id="50 of a thousand are chance"),
        pytest.param(490.0, -200.0, 1.0, id="what had piled up goes"),
        pytest.param(0.0, 200.0, 1.0, id="nothing ends: nobody knows what is served"),
        pytest.param(None, 200.0, 1.0, id="not told"),
    ],
)
def test_pressure_is_what_clearly_comes_over_what_goes(finished: float | None, grew: float, pressure: float) -> None:
    rising = [300.0 + grew * scrape / (SCRAPES - 1) for scrape in range(SCRAPES)]
    found = observation(engine(running=rising, finished=finished))
    assert found.pressure == pytest.approx(pressure)


async def test_the_rejections_of_a_server_are_those_of_its_first_engine_and_of_no_engine_without_a_core() -> None:
    cores = Engine(rates=REJECTIONS), Engine(index="1")
    snapshot = await take_snapshot(fleet(*cores), at=NOW, settings=SETTINGS)
    assert set(snapshot.engines) == {EngineKey("demo", "chat-0", "0"), EngineKey("demo", "chat-0", "1")}
    windows = observe(snapshot, snapshot.engines).engines
    assert [window.rejected is not None for window in windows] == [True, False]
    alone = Engine(rates=REJECTIONS, without=frozenset({*GAUGES, *RATES, "vllm:cache_config_info"}))
    assert (await take_snapshot(fleet(alone), at=NOW, settings=SETTINGS)).engines == {}


async def test_an_untold_start_is_unknown() -> None:
    assert (await one(Engine())).started is None


async def test_counters_remember_what_was_before_the_window() -> None:
    found = (await one(Engine(rates={"vllm:request_success_total{length}": 6.0}))).earlier
    assert found is not None
    before = NOW - SETTINGS.gauges - BORN
    assert found.finished == pytest.approx(8 * before, rel=1e-3)
    assert found.by_length == pytest.approx(6 * before, rel=1e-3)
    assert found.output_mean == pytest.approx(0.1)


async def test_requests_that_the_engine_failed_on_are_counted_for_all_its_life() -> None:
    found = await one(Engine(rates={"vllm:request_success_total{error}": 1.0}))
    assert found.earlier is not None
    assert found.lately is not None
    assert found.earlier.failed == pytest.approx(NOW - SETTINGS.gauges - BORN, rel=1e-3)
    assert found.lately.failed == pytest.approx(SETTINGS.gauges, rel=0.1)


async def test_without_counters_nothing_was_before() -> None:
    assert (await one(Engine(without=frozenset({"vllm:request_success_total"})))).earlier is None
    told = (await one(Engine(without=frozenset({"vllm:request_generation_tokens"})))).earlier
    assert told is not None
    assert told.output_mean is None


# --- engine versions --------------------------------------------------------------------------------------------------

KV, RUNNING = "vllm:kv_cache_usage_perc", "vllm:num_requests_running"
OLD_KV, OLD_ITL = "vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds"
V1_ONLY = {
    "vllm:prompt_tokens_by_source_total{local_compute}",
    "vllm:prompt_tokens_by_source_total{local_cache_hit}",
    "vllm:request_time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    KV,
}
VERSIONS = {
    # V0: no engine label, no per-request TPOT, hit *rates* instead of counters, the queue time under another name.
    "0.6": Engine(
        index="",
        gauges={OLD_KV: 0.5},
        rates={OLD_ITL: 200.0, "vllm:time_in_queue_requests": 2.0},
        without=frozenset({*V1_ONLY, "vllm:request_queue_time_seconds"}),
    ),
    "0.8": Engine(
        gauges={OLD_KV: 0.5},
        rates={OLD_ITL: 200.0, "vllm:gpu_prefix_cache_hits_total": 1.0, "vllm:gpu_prefix_cache_queries_total": 5.0},
        without=frozenset(V1_ONLY),
    ),
    "0.10": Engine(
        rates={OLD_ITL: 200.0},
        without=frozenset(V1_ONLY - {KV, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"}),
    ),
    "0.32": Engine(gauges={"vllm:num_requests_waiting_by_reason{capacity}": 0.0}),
}
"""The names that differ, by the version that used them; what a version lacks must read as unknown."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_is_read_by_its_own_names(version: str) -> None:
    found = await seen(VERSIONS[version])
    (engine,) = found.engines
    assert all(moment.kv == 0.5 for moment in engine.moments)
    assert number(found.itl.mean) == pytest.approx(0.1)
    assert number(found.queue_time.mean) == pytest.approx(0.1)
    per_request, rate = isinstance(found.tpot.mean, Measured), found.prefix_hit_rate
    assert (per_request, None if rate is None else round(rate, 2)) == {
        "0.6": (False, None),
        "0.8": (False, 0.2),
        "0.10": (False, 0.2),
        "0.32": (True, 0.2),
    }[version]


def test_no_name_has_two_meanings() -> None:
    names = [name for entry in NAMES.values() for name in entry.names]
    assert len(names) == len(set(names))
    assert set(NAMES) == set(Meaning)


# --- cost -------------------------------------------------------------------------------------------------------------


class FakePrometheus:
    """Counts queries, and knows a running gauge of as many engines as it is told."""

    def __init__(self, engines: int) -> None:
        self.engines, self.queries = engines, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.queries += 1
        asked = dict(httpx.QueryParams(request.content.decode()))["query"]
        result = [self._series(number) for number in range(self.engines)] if asked.startswith("{__name__") else []
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "matrix", "result": result}})

    def _series(self, number: int) -> dict[str, object]:
        labels = {"__name__": RUNNING, "namespace": "demo", "pod": f"service-{number}-0", "engine": "0"}
        return {"metric": labels, "values": [[NOW - 15 * scrape, "1"] for scrape in range(19, -1, -1)]}


@pytest.mark.parametrize("engines", [1, 500])
async def test_a_look_costs_as_many_queries_whatever_the_size_of_the_fleet(engines: int) -> None:
    fake = FakePrometheus(engines)
    source = PrometheusSource(PrometheusAddress(url="http://prometheus:9090"), transport=httpx.MockTransport(fake))
    snapshot = await take_snapshot(source, at=NOW, settings=SETTINGS)
    await source.close()
    assert snapshot.error is None
    assert set(snapshot.engines) == {EngineKey("demo", f"service-{number}-0", "0") for number in range(engines)}
    assert fake.queries == 16
