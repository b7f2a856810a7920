"""`diagnose --metrics` on pages that no vLLM wrote, or wrote in part: a clear line each, never a traceback."""

import json
import time
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.cli.servers import Page, serving
from tests.cli.test_diagnose import QUICK, answered, run

BUCKETS = "vllm:time_to_first_token_seconds"


def with_lines(*lines: str) -> Any:
    page = Page()

    def answer(path: str, body: str) -> tuple[int, str]:
        status, text = page(path, body)
        return status, "\n".join([text, *lines, ""])

    return answer


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param(f'{BUCKETS}_bucket{{le="abc",engine="0"}} 5', "le='abc', which is not a number", id="le abc"),
        pytest.param(f'{BUCKETS}_bucket{{engine="0"}} 5', "a bucket without the label le", id="no le"),
        pytest.param('vllm:num_requests_running{engine="0"} -5', "is -5, which is not between 0", id="negative"),
        pytest.param('vllm:kv_cache_usage_perc{engine="0"} 97', "is 97, which is not between 0 and 1", id="percent"),
        pytest.param('vllm:prompt_tokens_total{engine="0"} NaN', "is nan, which no counter", id="a counter of NaN"),
    ],
)
def test_an_odd_series_is_one_clear_line(line: str, says: str) -> None:
    with serving(with_lines(line)) as url:
        text = run("--metrics", url, *QUICK)
        (service,) = answered("--metrics", url, *QUICK, code=2)["services"]
    assert text.exit_code == 2
    assert says in " ".join(text.stdout.replace("│", " ").split())
    assert service["diagnosis"]["class"] == "MetricsBlind"
    assert says in service["diagnosis"]["message"]


def test_an_odd_engine_beside_a_good_one_is_a_note() -> None:
    with serving(Page()) as good, serving(with_lines(f'{BUCKETS}_bucket{{le="abc",engine="0"}} 5')) as odd:
        answer = answered("--metrics", good, "--metrics", odd, *QUICK)
    (service,) = answer["services"]
    assert [engine["pod"] for engine in service["engines"]] == [good.removeprefix("http://")]
    assert service["silent"] == [odd.removeprefix("http://")]
    assert any(odd.removeprefix("http://") in note and "le='abc'" in note for note in answer["notes"])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("vllm:num_requests_running " + "9" * 4300, id="a number of 4,300 digits"),
        pytest.param('vllm:cache_config_info{num_gpu_blocks="' + "9" * 4301 + '",block_size="16"} 1', id="in a label"),
    ],
)
def test_a_number_of_thousands_of_digits_is_no_traceback(line: str) -> None:
    with serving(with_lines(line)) as url:
        result = run("--metrics", url, *QUICK, "--output", "json")
    assert json.loads(result.stdout)["services"]


DECIDING = ("kv_cache_usage_perc", "time_to_first_token_seconds", "inter_token_latency_seconds")


@pytest.mark.parametrize("without", [*((name,) for name in DECIDING), DECIDING], ids=["KV", "TTFT", "ITL", "all"])
def test_a_page_without_what_decides_gets_no_advice_to_change_anything(without: tuple[str, ...]) -> None:
    page = Page(running=4, waiting=9, kv=0.2, without=frozenset(without))
    with serving(page) as url:
        (service,) = answered("--metrics", url, *QUICK, "--engine-args", "--max-num-seqs 4")["services"]
    assert service["diagnosis"]["class"] == "Unclear"
    assert "the cause is unknown" in service["diagnosis"]["message"]
    assert service["recommendation"] is None


ROUTER = """vllm:num_requests_running{server="http://10.0.0.7:8000"} 4
vllm:num_requests_waiting{server="http://10.0.0.7:8000"} 9
vllm:current_qps{server="http://10.0.0.7:8000"} 2
"""
TRITON = """vllm:prompt_tokens_total{model="m",version="1"} 500
vllm:generation_tokens_total{model="m",version="1"} 900
nv_inference_request_success{model="m",version="1"} 3
"""


@pytest.mark.parametrize(
    ("page", "says"),
    [
        pytest.param("ray_vllm:num_requests_running 4\n", "vLLM on Ray Serve: Ray renames them", id="Ray"),
        pytest.param("ray_vllm_num_requests_running 4\n", "vLLM on Ray Serve: Ray renames them", id="Ray, underscores"),
        pytest.param("sglang:num_running_reqs 4\n", "metrics of SGLang: only vLLM's own", id="SGLang"),
        pytest.param("trtllm_request_success_total 4\n", "metrics of TensorRT-LLM", id="TensorRT-LLM"),
        pytest.param("tgi_queue_size 4\n", "metrics of Text Generation Inference (TGI)", id="TGI"),
        pytest.param("nv_inference_request_success 4\n", "metrics of Triton Inference Server", id="Triton"),
        pytest.param("llamacpp:requests_processing 4\n", "metrics of llama.cpp", id="llama.cpp"),
        pytest.param("node_load1 4\n", "returns metrics, but none of vLLM", id="something else"),
    ],
)
def test_a_server_that_is_no_vllm_is_named_with_what_is_needed(page: str, says: str) -> None:
    with serving(lambda path, body: (200, page)) as url:
        result = run("--metrics", url, *QUICK)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("page", "says", "note"),
    [
        pytest.param(ROUTER, "a router's view of http://10.0.0.7:8000", "production-stack", id="a router"),
        pytest.param(TRITON, "not how many requests run and wait", "Triton Inference Server", id="Triton's backend"),
    ],
)
def test_a_page_with_part_of_vllms_metrics_is_named_and_not_left_out(page: str, says: str, note: str) -> None:
    with serving(lambda path, body: (200, page)) as url:
        answer = answered("--metrics", url, *QUICK, code=2)
    (service,) = answer["services"]
    assert service["diagnosis"]["class"] == "MetricsBlind"
    assert says in service["diagnosis"]["message"]
    assert note == "production-stack" or any(note in line for line in answer["notes"])


def test_a_prometheus_without_vllm_says_what_it_has_instead() -> None:
    def answer(path: str, body: str) -> tuple[int, str]:
        asked = parse_qs(body)["query"][0]
        found = [{"metric": {"__name__": "sglang:num_running_reqs"}, "value": [0, "1"]}] if "sglang" in asked else []
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})

    with serving(answer) as url:
        result = run("--prometheus", url)
    assert result.exit_code == 2
    assert "these are metrics of SGLang" in " ".join(result.stderr.split())


def test_a_long_time_without_vllm_takes_one_look() -> None:
    asked: list[str] = []

    def answer(path: str, body: str) -> tuple[int, str]:
        asked.append(body)
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})

    with serving(answer) as url:
        result = run("--prometheus", url, "--since", "2h")
    assert (result.exit_code, len(asked) < 30) == (2, True), len(asked)
    assert f"no data: no vLLM engine reports to {url}" in result.stderr


def test_a_scrape_that_takes_too_long_is_a_note_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_autotuner.observation.scrape.SCRAPE_TIMEOUT", timedelta(seconds=0.15))
    page, scrapes = Page(), 0

    def answer(path: str, body: str) -> tuple[int, str]:
        nonlocal scrapes
        scrapes += 1
        if scrapes == 1:
            time.sleep(0.4)
        return page(path, body)

    with serving(answer) as url:
        found = answered("--metrics", url, "--for", "1500ms", "--scrape-interval", "200ms")
    assert found["services"][0]["engines"]
    assert any("some scrapes failed" in note and "did not answer within" in note for note in found["notes"])


def test_an_engine_that_never_answers_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_autotuner.observation.scrape.SCRAPE_TIMEOUT", timedelta(seconds=0.1))

    def answer(path: str, body: str) -> tuple[int, str]:
        time.sleep(0.3)
        return 200, ""

    with serving(answer) as url:
        result = run("--metrics", url, *QUICK)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did not answer within" in " ".join(result.stderr.split())


def test_no_value_is_proposed_that_may_lower_what_it_is_meant_to_raise() -> None:
    with serving(Page(running=4, waiting=9, kv=0.2)) as url:
        (service,) = answered("--metrics", url, *QUICK)["services"]
    assert service["diagnosis"]["class"] == "ConcurrencyCapped"
    assert service["recommendation"]["knob"] == "replicas"
    assert any("the present value is not known, and may be higher" in line for line in service["passedOver"])
