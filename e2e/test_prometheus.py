"""Prometheus is a real one: it can be frozen, restarted with its data, filled from a recording, and it finds pods."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from e2e.bed import Bed
from e2e.errors import CommandError, StartError
from e2e.ports import free_ports
from e2e.processes import PATIENCE, Processes, StateFile
from e2e.prometheus import SCRAPE_CONFIG, Prometheus, Sample, load_recording

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "data" / "vllm-0.32" / "recordings"
SATURATED_AT = 1795211087
"""140.6 s into `kv-saturation`: the KV pool is full."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(logs=tmp_path / "logs", state=StateFile(tmp_path / "bed.json"))
    yield processes
    for name in processes.names():
        processes.stop(name)


@pytest.fixture
async def scraping_itself(
    binaries: Mapping[str, Path], processes: Processes, tmp_path: Path
) -> AsyncIterator[Prometheus]:
    """A Prometheus whose one target is itself, every second."""
    port = free_ports(1)[0]
    config = {
        "global": SCRAPE_CONFIG,
        "scrape_configs": [{"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    prometheus = Prometheus(binaries=binaries, processes=processes, data=tmp_path / "data", config=config, port=port)
    await prometheus.start()
    yield prometheus
    prometheus.stop()


async def answer_of(prometheus: Prometheus, expression: str, *, seconds: float = PATIENCE) -> list[Sample]:
    """Wait until a query has an answer."""
    deadline = time.monotonic() + seconds
    while not (samples := prometheus.query(expression)):
        assert time.monotonic() < deadline, f"no answer to {expression} after {seconds:.0f} s"
        await asyncio.sleep(0.1)
    return samples


async def test_a_frozen_prometheus_answers_no_query_and_then_goes_on(scraping_itself: Prometheus) -> None:
    await answer_of(scraping_itself, "up == 1")

    scraping_itself.pause()
    with pytest.raises(httpx.TimeoutException):
        scraping_itself.query("up", timeout=0.5)
    scraping_itself.resume()

    assert await answer_of(scraping_itself, "up == 1")


@pytest.mark.parametrize(
    "crash", [pytest.param(False, id="stopped in order"), pytest.param(True, id="killed, as in a crash")]
)
async def test_a_restart_goes_on_with_the_same_port_and_data(scraping_itself: Prometheus, crash: bool) -> None:
    [newest] = await answer_of(scraping_itself, "timestamp(up) and count_over_time(up[1m]) >= 2")

    if crash:
        scraping_itself.kill()
    else:
        scraping_itself.stop()
    with pytest.raises(httpx.ConnectError):
        scraping_itself.query("up")
    await scraping_itself.start()

    [count] = scraping_itself.query("count_over_time(up[1m])", at=newest.value)
    assert count.value >= 2


async def test_a_port_in_use_is_one_clear_line(
    scraping_itself: Prometheus, binaries: Mapping[str, Path], processes: Processes, tmp_path: Path
) -> None:
    port = int(scraping_itself.url.rpartition(":")[2])
    second = Prometheus(
        binaries=binaries, processes=processes, data=tmp_path / "second", config={}, name="second", port=port
    )

    with pytest.raises(StartError, match=rf"^second ended with code 1: .*127\.0\.0\.1:{port}: bind: address already"):
        await second.start()


async def test_a_refused_query_is_told_in_prometheus_own_words(scraping_itself: Prometheus) -> None:
    with pytest.raises(CommandError, match="parse error"):
        scraping_itself.query("rate(up")


async def test_recordings_answer_with_what_was_measured(
    binaries: Mapping[str, Path], processes: Processes, tmp_path: Path
) -> None:
    for name in ("healthy", "kv-saturation", "seats-saturation"):
        load_recording(RECORDINGS / f"{name}.om.gz", binaries=binaries, data=tmp_path / "data", labels={"pod": name})
    prometheus = Prometheus(binaries=binaries, processes=processes, data=tmp_path / "data", config={})
    await prometheus.start()

    def value(expression: str) -> float:
        [sample] = prometheus.query(expression, at=SATURATED_AT)
        assert sample.labels["pod"] == "kv-saturation"
        return sample.value

    assert value("vllm:num_requests_running") == 9
    assert value("max_over_time(vllm:kv_cache_usage_perc[60s])") == 1
    assert value("rate(vllm:num_preemptions_total[60s])") == pytest.approx(4.85, abs=0.005)
    # All three are there, each in its own time.
    assert len(prometheus.query("count by (pod) (count_over_time(vllm:num_requests_running[1h]))", at=1795212400)) == 3
    # At this moment there is nothing: a recording is not live.
    assert prometheus.query("vllm:num_requests_running", at=SATURATED_AT + 3600) == []


def test_a_file_that_is_no_recording_is_refused(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "broken.om"
    source.write_text("this is not a metric\n", encoding="utf-8")

    with pytest.raises(CommandError, match=r"^promtool tsdb: "):
        load_recording(source, binaries=binaries, data=tmp_path / "data")


SERVER = """
import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"bed_answer 42\\n")
http.server.HTTPServer((os.environ["POD_IP"], 8000), Page).serve_forever()
"""


async def test_a_new_pod_is_found_and_scraped(bed: Bed, namespace: str) -> None:
    bed.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "server",
                    "namespace": namespace,
                    "labels": {"app": "answers"},
                    "annotations": {"prometheus.io/scrape": "true"},
                },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {
                            "name": "server",
                            "image": "python:3",
                            "args": ["-c", SERVER],
                            "ports": [{"containerPort": 8000}],
                            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                        }
                    ],
                },
            }
        ]
    )

    [sample] = await answer_of(bed.prometheus, f'bed_answer{{namespace="{namespace}"}}')

    assert sample.value == 42
    assert (sample.labels["pod"], sample.labels["app"], sample.labels["job"]) == ("server", "answers", "pods")
