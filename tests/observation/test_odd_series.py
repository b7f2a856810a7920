"""One odd series costs the engine whose labels it bears, and nobody else; and it is said which series it was."""

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import targets
from tests.observation.fleet import GAUGES, NOW, RATES, Engine, fleet

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.diagnose import History, case_of, diagnose
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import EngineKey, FleetSnapshot, WindowSettings, take_snapshot

RUNNING, WAITING, KV = GAUGES
TTFT = "vllm:time_to_first_token_seconds"
HONEST, ODD = EngineKey("demo", "chat-0", "0"), EngineKey("demo", "odd-0", "0")
NAMES = [
    *GAUGES,
    "vllm:cache_config_info",
    "process_start_time_seconds",
    *(f"{name.partition('{')[0]}{end}" for name in RATES for end in ("", "_bucket", "_sum", "_count")),
]


def added(recording: Recording, name: str, value: float, **labels: str) -> Recording:
    """The recording with one more series of the engine `ODD`, scraped twice."""
    of_engine = {"namespace": "demo", "pod": "odd-0", "engine": "0", "model_name": "m", **labels}
    series = tuple(sorted((label, text) for label, text in of_engine.items() if text))
    for age in (2.0, 0.0):
        recording.add(Sample(name=name, labels=series, value=value, time=None), time=NOW - age)
    return recording


async def look(recording: Recording) -> FleetSnapshot:
    snapshot = await take_snapshot(recording, at=NOW, settings=WindowSettings())
    assert snapshot.error is None
    return snapshot


@pytest.mark.parametrize(
    ("name", "value", "labels", "says"),
    [
        pytest.param(f"{TTFT}_bucket", 5.0, {"le": "abc"}, "le='abc'", id="an edge that is no number"),
        pytest.param(f"{TTFT}_bucket", 5.0, {"le": "NaN"}, "le='NaN'", id="an edge that is not a number"),
        pytest.param(f"{TTFT}_bucket", 5.0, {"le": "-1"}, "le='-1'", id="a negative edge"),
        pytest.param(f"{TTFT}_bucket", 5.0, {"le": ""}, "without the label le", id="a bucket without an edge"),
        pytest.param(f"{TTFT}_bucket", math.inf, {"le": "1.0"}, "growth is not a number", id="a bucket of infinity"),
        pytest.param(f"{TTFT}_sum", math.nan, {"new": "1"}, "is nan", id="a sum that is not a number"),
        pytest.param("vllm:generation_tokens_total", -3.0, {"new": "1"}, "is -3", id="a negative counter"),
        pytest.param("vllm:generation_tokens_total", 1e300, {"new": "1"}, "is 1e+300", id="an impossible counter"),
        pytest.param(KV, 97.0, {"new": "1"}, "is 97, which is not between 0 and 1", id="percent where a share is due"),
        pytest.param(RUNNING, -1.0, {"new": "1"}, "is -1, which is not between 0 and", id="negative requests"),
        pytest.param(WAITING, math.inf, {"new": "1"}, "is inf", id="an endless queue"),
    ],
)
async def test_an_odd_series_costs_its_engine_and_says_why(
    name: str, value: float, labels: dict[str, str], says: str
) -> None:
    alone = observe(await look(fleet(Engine())), [HONEST])
    snapshot = await look(added(fleet(Engine(), Engine(pod="odd-0")), name, value, **labels))
    assert observe(snapshot, [HONEST]) == alone
    odd = observe(snapshot, [ODD])
    assert (odd.engines, odd.silent) == ((), ("odd-0",))
    assert says in odd.unreadable["odd-0"]


async def test_an_engine_whose_only_series_is_odd_is_reported_not_forgotten() -> None:
    odd = observe(await look(added(fleet(Engine()), RUNNING, -1.0)), [ODD])
    assert odd.unreadable.keys() == {"odd-0"}
    case = case_of(odd, targets=targets(), knobs=EngineKnobs(), history=History())
    named, _ = diagnose(case, history=History())
    assert named.message == (
        "No vLLM engine reports metrics that can be true: odd-0: vllm:num_requests_running is -1, which is not "
        "between 0 and 1e+07."
    )


@pytest.mark.parametrize("text", ["inf", "nan", "1e999", "-5", "0", "9" * 5000, "None", ""])
async def test_an_odd_label_of_the_pool_is_a_pool_of_unknown_size(text: str) -> None:
    info = {"num_gpu_blocks": text, "block_size": "16", "kv_cache_max_concurrency": text}
    (engine,) = observe(await look(fleet(Engine(info=info))), [HONEST]).engines
    assert (engine.pool.tokens, engine.pool.max_model_len) == (None, None)


def answering(*results: dict[str, Any], warnings: Any = None) -> PrometheusSource:
    body = {"status": "success", "data": {"result": results}, **({} if warnings is None else {"warnings": warnings})}
    text = json.dumps(body)
    return PrometheusSource(
        PrometheusAddress(url="http://prometheus:9090"),
        transport=httpx.MockTransport(lambda request: httpx.Response(200, text=text)),
    )


HISTOGRAM = {"count": "3", "sum": "1", "buckets": []}
OF_ODD = {"namespace": "demo", "pod": "odd-0", "engine": "0"}
OF_HONEST = {"namespace": "demo", "pod": "chat-0", "engine": "0"}


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"histograms": [[NOW, HISTOGRAM]]}, id="native histograms"),
        pytest.param({"histograms": [[NOW, HISTOGRAM]], "values": [[NOW, "1"]]}, id="a mix of both"),
        pytest.param({"histogram": [NOW, HISTOGRAM]}, id="one native histogram"),
    ],
)
async def test_a_native_histogram_among_numbers_costs_its_engine(entry: dict[str, Any]) -> None:
    odd: dict[str, Any] = {"metric": {"__name__": RUNNING, **OF_ODD}, **entry}
    honest: list[dict[str, Any]] = [
        {"metric": {"__name__": name, **OF_HONEST}, "values": [[NOW, "0.5"]]} for name in GAUGES
    ]
    source = answering(*honest, odd)

    class OnlyGauges:
        async def ask(self, question: Any, *, at: float) -> Any:
            return await source.ask(question, at=at) if RUNNING in getattr(question, "names", ()) else []

    snapshot = await take_snapshot(OnlyGauges(), at=NOW, settings=WindowSettings())
    await source.close()
    assert snapshot.error is None
    assert snapshot.engines[ODD].unreadable == f"{RUNNING} is a native histogram; vLLM exports a number under this name"
    assert not snapshot.engines[HONEST].unreadable


MIXED = 'PromQL warning: encountered a mix of histograms and floats for metric name "vllm:generation_tokens_total"'


@pytest.mark.parametrize(
    ("warnings", "partial"),
    [
        pytest.param([MIXED], False, id="about one series"),
        pytest.param(["fetch series: store 10.0.0.1 unavailable"], True, id="about a store"),
        pytest.param([MIXED, "fetch series: store 10.0.0.1 unavailable"], True, id="about both"),
        pytest.param("half an answer", True, id="a text where a list is due"),
        pytest.param({"a": 1}, True, id="an object where a list is due"),
        pytest.param([17], True, id="a number in the list"),
        pytest.param([], False, id="none"),
    ],
)
async def test_a_warning_about_a_series_is_not_a_partial_answer(warnings: Any, partial: bool) -> None:
    source = answering({"metric": {}, "value": [NOW, "1"]}, warnings=warnings)
    try:
        if partial:
            with pytest.raises(SourceError, match="returned a partial answer"):
                await source.query("up", at=NOW)
        else:
            assert len(await source.query("up", at=NOW)) == 1
    finally:
        await source.close()


BRIEF, BRIEF_ODD = Engine(begin=NOW - 40), Engine(pod="odd-0", begin=NOW - 40)


@given(
    name=st.sampled_from(NAMES),
    value=st.floats(),
    le=st.one_of(st.text(max_size=8), st.floats().map(str)),
    engine=st.sampled_from(["0", "1", ""]),
)
async def test_no_series_of_a_neighbour_changes_what_is_seen_of_an_honest_engine(
    name: str, value: float, le: str, engine: str
) -> None:
    alone = observe(await look(fleet(BRIEF)), [HONEST])
    snapshot = await look(added(fleet(BRIEF, BRIEF_ODD), name, value, le=le, engine=engine))
    assert observe(snapshot, [HONEST]) == alone
    for key in snapshot.engines:
        case = case_of(observe(snapshot, [key]), targets=targets(), knobs=EngineKnobs(), history=History())
        diagnose(case, history=History())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        pytest.param(RUNNING, {"instance": "10.9.9.9:8000"}, id="a gauge of another pod"),
        pytest.param(RUNNING, {"model_name": "other"}, id="two models on one engine"),
        pytest.param(KV, {"job": "second"}, id="a second scrape job"),
        pytest.param("vllm:generation_tokens_total", {"instance": "10.9.9.9:8000"}, id="a counter of another pod"),
        pytest.param(f"{TTFT}_sum", {"instance": "10.9.9.9:8000"}, id="a sum of another pod"),
    ],
)
async def test_an_engine_that_two_series_report_as_is_blind(name: str, labels: dict[str, str]) -> None:
    """Another pod with its labels would be believed otherwise, if only it is newer."""
    snapshot = await look(added(fleet(Engine(), Engine(pod="odd-0")), name, 0.5, **labels))
    (why,) = observe(snapshot, [ODD]).unreadable.values()
    assert why.endswith(f"report as this engine; they differ in {next(iter(labels))}")
    assert not observe(snapshot, [HONEST]).silent


async def test_histograms_of_a_stranger_are_not_added_to_those_of_an_engine() -> None:
    at_home = {"instance": "10.0.0.2:8000"}
    beside = fleet(Engine(labels=at_home), Engine(pod="odd-0", labels={"instance": "10.0.0.3:8000"}))
    snapshot = await look(added(beside, f"{TTFT}_bucket", 900.0, le="0.05", instance="10.9.9.9:8000"))
    (why,) = observe(snapshot, [ODD]).unreadable.values()
    assert why == "10.9.9.9:8000 reports histograms as this engine"
    assert not observe(snapshot, [HONEST]).silent


async def test_a_pod_that_came_back_under_another_address_is_one_engine() -> None:
    before = Engine(end=NOW - 40, labels={"instance": "10.0.0.1:8000"})
    after = Engine(begin=NOW - 38, labels={"instance": "10.0.0.2:8000"})
    snapshot = await look(fleet(before, after))
    assert not snapshot.engines[HONEST].unreadable
    assert observe(snapshot, [HONEST]).engines
