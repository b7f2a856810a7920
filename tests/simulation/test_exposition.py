"""The metrics page against that of a real vLLM 0.32."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.simulation.virtual import config, play, poisson

from vllm_autotuner.simulation.metrics import Histogram, length_edges
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine

REAL = (Path(__file__).parents[1] / "data/vllm-0.32/metrics.txt").read_text(encoding="utf-8")
ABSENT = {
    # The server's process and its Python: nothing true about vLLM.
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
    "python_gc_collections_total",
    "python_info",
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
    # The HTTP server's own counts: another server, other handlers.
    "http_requests_total",
    "http_request_size_bytes",
    "http_response_size_bytes",
    "http_request_duration_highr_seconds",
    "http_request_duration_highr_seconds_created",
    "http_request_duration_seconds",
}
"""What the page leaves out on purpose."""

REAL_CONFIG = {"model_name": "tiny", "max_num_seqs": 64, "num_gpu_blocks": 256, "block_size": 128}


def page(**changes: object) -> str:
    engine_config = config(**{**REAL_CONFIG, "num_gpu_blocks_override": 256, **changes})
    return render(SimulatedEngine(engine_config).metrics, engine_config, created=1.0)


def declared(text: str) -> dict[str, tuple[str, str]]:
    """Family -> (type, help text), in the order of the page."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    return {name: (kinds[name], line) for name, line in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)}


def series(text: str) -> dict[str, set[str]]:
    """Sample name -> its label sets, as they are written."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^([a-z][\w:]*)(\{.*\})? \S+$", text, re.MULTILINE):
        found[name].add(labels)
    return found


def test_has_the_families_of_the_real_page_but_for_those_left_out() -> None:
    assert declared(REAL).keys() - declared(page()).keys() == ABSENT
    assert declared(page()).keys() - declared(REAL).keys() == set()


def test_types_help_texts_and_order_are_those_of_the_real_page() -> None:
    real = {name: what for name, what in declared(REAL).items() if name not in ABSENT}
    assert declared(page()) == real
    assert list(declared(page())) == list(real)


def test_series_labels_and_bucket_edges_are_those_of_the_real_page() -> None:
    absent = tuple(name.removesuffix("_total") for name in ABSENT)
    real = {name: labels for name, labels in series(REAL).items() if not name.startswith(absent)}
    ours = series(page())
    info = "vllm:cache_config_info"
    # CPU engines state the space they were given; a GPU engine only what `--kv-cache-memory-bytes` says.
    assert ours.pop(info) == {
        labels.replace('kv_cache_memory_bytes="1073741824"', 'kv_cache_memory_bytes="None"')
        for labels in real.pop(info)
    }
    assert ours == real


@pytest.mark.parametrize(("longest", "last"), [(1, 1), (2048, 2000), (4999, 2000), (5000, 5000), (35840, 20000)])
def test_the_edges_of_lengths_go_up_to_max_model_len(longest: int, last: int) -> None:
    assert length_edges(longest)[-1] == last


def test_samples_stand_in_the_order_of_the_real_page() -> None:
    names = [line.split(" ")[0] for line in page().splitlines() if line.startswith("vllm:") and "_info" not in line]
    real = [line.split(" ")[0] for line in REAL.splitlines() if line.startswith("vllm:") and "_info" not in line]
    assert names == real


def test_an_idle_engine_counts_nothing() -> None:
    values = re.findall(r"^vllm:(?!\w*_created|cache_config|engine_sleep)\S+ (\S+)$", page(), re.MULTILINE)
    assert set(values) == {"0.0"}


def test_the_page_of_a_busy_engine_is_read_by_the_prometheus_client() -> None:
    engine = SimulatedEngine(config(num_gpu_blocks=300, model_name='a"b\\c'))
    outcomes, _ = play(engine, poisson(rate=20, seconds=10, prompt=(50, 500), output=(5, 100)))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(engine.metrics, engine.config, created=1.0))
        for sample in family.samples
    }
    common = (("engine", "0"), ("model_name", 'a"b\\c'))
    assert samples["vllm:generation_tokens_total", common] == sum(outcome.output_tokens for outcome in outcomes)
    assert samples["vllm:e2e_request_latency_seconds_count", common] == len(outcomes)
    finished = ("engine", "0"), ("finished_reason", "length"), ("model_name", 'a"b\\c')
    assert samples["vllm:request_success_total", finished] == len(outcomes)
    edges = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in samples.items()
        if name == "vllm:e2e_request_latency_seconds_bucket"
    ]
    below = [outcome.finished - outcome.sequence.request.arrival for outcome in outcomes]
    assert edges == [(edge, sum(value <= edge for value in below)) for edge, _ in edges]
    assert samples["vllm:e2e_request_latency_seconds_sum", common] == pytest.approx(sum(below))


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"kv_cache_dtype": "fp8"}, 'cache_dtype="fp8"'),
        ({"gpu_memory_utilization": 0.8}, 'gpu_memory_utilization="0.8"'),
        ({"enable_prefix_caching": False}, 'enable_prefix_caching="False"'),
        ({"num_gpu_blocks_override": None}, 'num_gpu_blocks_override="None"'),
        ({"max_model_len": 4096}, 'kv_cache_max_concurrency="8.0"'),
        ({"num_gpu_blocks": 40}, 'kv_cache_size_tokens="5120"'),
    ],
)
def test_cache_config_info_tells_the_configuration(changes: dict[str, object], label: str) -> None:
    (line,) = [line for line in page(**changes).splitlines() if line.startswith("vllm:cache_config_info")]
    assert f"{label}," in line


def test_an_edge_belongs_to_its_bucket_and_equal_values_count_at_once() -> None:
    histogram = Histogram([1, 2])
    histogram.observe(1.0, 3)
    histogram.observe(1.5, 2)
    histogram.note(9.0)
    assert (histogram.counts, histogram.total, histogram.count) == ([3, 2, 1], 15.0, 6)
