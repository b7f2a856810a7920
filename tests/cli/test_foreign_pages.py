"""`diagnose --metrics` on pages that no vLLM wrote, or wrote in part: a clear line each, never a traceback."""

import json
from typing import Any

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
