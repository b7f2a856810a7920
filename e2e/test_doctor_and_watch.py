"""`doctor` and `diagnose --watch` against a real Prometheus, which scrapes pages of engines with one fault each.

Recorded answers cannot show that a query is one that Prometheus accepts and answers as we think.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.cli.servers import serving
from tests.cli.test_record import REAL_PAGE, VirtualEngine, plan, played
from typer.testing import CliRunner

from e2e.processes import PATIENCE, Processes, StateFile
from e2e.prometheus import SCRAPE_CONFIG, Prometheus, load_recording
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.engine.metric_names import NAMES, PROCESS_START, Meaning
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.questions import Beside
from vllm_autotuner.observation.scrape import Clock

Found = TypeVar("Found")
OPERATOR = Path(__file__).parents[1] / "operator"
FULL = {"num_requests_running": 9, "num_requests_waiting": 21, "kv_cache_usage_perc": 0.97}
GROWING = ("generation_tokens_total", "prompt_tokens_total")
BEGAN = 1_795_000_000


def live_page(path: str, body: str) -> tuple[int, str]:
    """The page of a real engine, full: its gauges as in `FULL`, tokens counted by the clock, a start of its own."""
    text = REAL_PAGE.read_text()
    for name, value in FULL.items():
        text = re.sub(rf"(?m)^(vllm:{name}\{{.*\}}) .*$", rf"\g<1> {value}", text)
    text = re.sub(r'(?m)^(vllm:num_requests_waiting_by_reason\{.*reason="capacity".*\}) .*$', r"\g<1> 21", text)
    for name in GROWING:
        text = re.sub(rf"(?m)^(vllm:{name}\{{.*\}}) .*$", rf"\g<1> {100 * time.time():.0f}", text)
    return 200, re.sub(rf"(?m)^{PROCESS_START} .*$", f"{PROCESS_START} {BEGAN}", text)


def idle_page(path: str, body: str) -> tuple[int, str]:
    """The same engine without requests."""
    return 200, re.sub(
        r"(?m)^(vllm:(num_requests_\w+|kv_cache_usage_perc)\{.*\}) .*$", r"\g<1> 0", REAL_PAGE.read_text()
    )


def job(url: str, *, pod: str, drop: str = "", **labels: str) -> dict[str, object]:
    relabelled = [{"source_labels": ["__name__"], "regex": drop, "action": "drop"}] if drop else []
    return {
        "job_name": "-".join((pod, *labels.values())),
        "fallback_scrape_protocol": "PrometheusText0.0.4",
        "static_configs": [
            {"targets": [url.removeprefix("http://")], "labels": {"namespace": "prod", "pod": pod} | labels}
        ],
        "metric_relabel_configs": relabelled,
    }


@asynccontextmanager
async def prometheus(
    *jobs: Mapping[str, object], binaries: Mapping[str, Path], folder: Path
) -> AsyncIterator[Prometheus]:
    processes = Processes(logs=folder / "logs", state=StateFile(folder / "bed.json"))
    server = Prometheus(
        binaries=binaries,
        processes=processes,
        data=folder / "data",
        config={"global": SCRAPE_CONFIG, "scrape_configs": list(jobs)},
    )
    await server.start()
    try:
        yield server
    finally:
        server.stop()


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"never {what}"
        await asyncio.sleep(0.2)


async def scraped(server: Prometheus, *pods: str, times: int = 3, jobs: int = 1) -> None:
    """Wait until each pod was scraped so often that its pace is known, by each of its jobs."""

    def enough() -> bool:
        seen = server.query(f'sum_over_time(up{{namespace="prod"}}[5m]) >= {times}')
        counts = Counter(sample.labels["pod"] for sample in seen)
        return all(counts[pod] == jobs for pod in pods)

    await until(enough, f"scraped {times} times")


async def doctor(url: str, *more: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and of each check that is not fine its status and what it says."""
    arguments = ["doctor", "--prometheus", url, "--output", "json", *more]
    # In a thread of its own, because pages are served from this one's loop meanwhile.
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert "Traceback" not in result.output
    checks = json.loads(result.stdout)["checks"]
    assert all(one["remedy"] for one in checks if one["status"] != "ok")
    return result.exit_code, {one["check"]: (one["status"], one["what"]) for one in checks if one["status"] != "ok"}


async def in_the_end(ask: Callable[[], Awaitable[Found]], expected: Callable[[Found], bool]) -> Found:
    """Ask until the answer is as expected, for a busy machine misses a scrape now and then; at last as it is."""
    deadline = time.monotonic() + PATIENCE
    while not expected(found := await ask()) and time.monotonic() < deadline:
        await asyncio.sleep(1)
    return found


async def test_a_well_scraped_engine_has_no_complaint(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    with serving(live_page) as engine:
        async with prometheus(job(engine, pod="chat-0"), binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "chat-0")
            found = await in_the_end(
                lambda: doctor(server.url, "--ttft", "2500ms", "--tpot", "50ms"), lambda found: found == (0, {})
            )
    assert found == (0, {})


async def test_series_that_a_rule_drops_are_named_with_what_is_lost(
    binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    with serving(live_page) as engine:
        jobs = (
            job(engine, pod="whole-0"),
            job(engine, pod="late-0", drop="vllm:time_to_first_token_seconds.*"),
            job(engine, pod="deaf-0", drop="vllm:num_requests_waiting.*"),
        )
        async with prometheus(*jobs, binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "whole-0", "late-0", "deaf-0")

            async def families() -> tuple[int, dict[str, Any]]:
                arguments = ["doctor", "--prometheus", server.url, "--output", "json"]
                result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
                found = [one for one in json.loads(result.stdout)["checks"] if one["check"] == "families"]
                return result.exit_code, {one["what"].partition(" ")[0]: one for one in found}

            code, said = await in_the_end(
                families, lambda found: [one["status"] for one in found[1].values()].count("ok") == 1 and found[0] == 2
            )
    assert code == 2
    assert said["prod/whole-0"]["status"] == "ok"
    assert said["prod/late-0"]["status"] == "warning"
    assert "the TTFT objective is not checked" in said["prod/late-0"]["what"]
    assert said["prod/deaf-0"]["status"] == "failed"
    assert "this engine cannot be diagnosed" in said["prod/deaf-0"]["what"]
    assert "metric_relabel_configs" in said["prod/deaf-0"]["remedy"]


async def test_a_scrape_that_fails_loses_no_family(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    """Prometheus ends every series of a target with the first scrape that fails."""
    healthy = True

    def page(path: str, body: str) -> tuple[int, str]:
        return live_page(path, body) if healthy else (503, "busy")

    with serving(page) as engine:
        # Slowly, so that the doctor comes before the engine counts as silent.
        slow = {**job(engine, pod="chat-0"), "scrape_interval": "5s"}
        async with prometheus(slow, binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "chat-0", times=2)
            healthy = False
            await until(lambda: not server.query("vllm:num_requests_running"), "a failed scrape")
            code, complaints = await doctor(server.url, "--ttft", "2500ms", "--tpot", "50ms")
    assert (code, complaints) == (0, {})


async def test_two_clusters_behind_one_address_are_told_apart(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    """As a Thanos over two clusters answers: the same namespace and pod, and another value of one label."""
    with serving(live_page) as full, serving(idle_page) as idle:
        jobs = (job(full, pod="chat-0", cluster="eu"), job(idle, pod="chat-0", cluster="us"))
        async with prometheus(*jobs, binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "chat-0", times=8, jobs=2)

            async def running(*match: str) -> tuple[int, list[str]]:
                arguments = ["diagnose", "--prometheus", server.url, "--output", "json", *match]
                found = await asyncio.to_thread(CliRunner().invoke, app, arguments)
                services = json.loads(found.stdout)["services"] if found.exit_code == 0 else []
                return found.exit_code, [each["diagnosis"]["class"] for each in services]

            idle_one = await in_the_end(lambda: running("--match", "cluster=us"), lambda found: found == (0, ["Idle"]))
            assert idle_one == (0, ["Idle"])
            code, [busy] = await in_the_end(
                lambda: running("--match", "cluster=eu"), lambda found: found[0] == 0 and "Idle" not in found[1]
            )
            assert (code, busy != "Idle") == (0, True)
            assert (await running("--match", "cluster=~e.|nowhere"))[1] == [busy]
            assert await running("--match", "cluster=nowhere") == (2, [])
            _, complaints = await in_the_end(lambda: doctor(server.url), lambda found: "duplicates" in found[1])
            assert "duplicates" in complaints
            code, complaints = await in_the_end(
                lambda: doctor(server.url, "--match", "cluster=eu"), lambda found: found[0] == 0
            )
            assert (code, {"duplicates", "reachable"} & set(complaints)) == (0, set()), complaints


async def test_an_engine_that_two_jobs_scrape_is_found(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    with serving(live_page) as engine:
        twice = {**job(engine, pod="chat-0"), "job_name": "annotations"}
        async with prometheus(job(engine, pod="chat-0"), twice, binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "chat-0", times=4, jobs=2)
            code, complaints = await in_the_end(lambda: doctor(server.url), lambda found: "duplicates" in found[1])
    assert code == 2
    assert complaints["duplicates"] == ("failed", "prod/chat-0 has 2 live series that differ in job")


async def test_scrapes_that_are_too_far_apart_are_found(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    """Twelve minutes of one scrape a minute, up to now."""
    out, engine = tmp_path / "slow.om", VirtualEngine(clients=4, seats=8)
    clock = Clock(started=time.time() - 720, monotonic=lambda: engine.now, sleep=engine.sleep)
    chosen = plan(out, duration=720, interval=60, everything=True)
    assert await played(chosen, clock=clock, answer=engine)
    labels = {"namespace": "prod", "pod": "chat-0"}
    await asyncio.to_thread(load_recording, out, binaries=binaries, data=tmp_path / "data", labels=labels)
    async with prometheus(binaries=binaries, folder=tmp_path) as server:
        code, complaints = await doctor(server.url)
    assert code == 1
    status, what = complaints["interval"]
    assert status == "warning"
    assert what.startswith("prod/chat-0 is scraped every 60 s: a diagnosis needs")


async def test_only_the_start_of_processes_that_are_engines_is_asked_for(
    binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    """Prometheus scrapes itself, too: like every process of a cluster it exports when it started."""
    with serving(live_page) as engine:
        async with prometheus(job(engine, pod="chat-0"), binaries=binaries, folder=tmp_path) as server:
            server.reconfigure(
                {
                    "global": SCRAPE_CONFIG,
                    "scrape_configs": [job(engine, pod="chat-0"), job(server.url, pod="prometheus-0")],
                }
            )
            await scraped(server, "chat-0", "prometheus-0")
            await until(lambda: len(server.query(PROCESS_START)) == 2, "told by both")
            source = PrometheusSource(PrometheusAddress(url=server.url, timeout=timedelta(minutes=1)))
            question = Beside(name=PROCESS_START, anchor=NAMES[Meaning.RUNNING].names[0])
            (answer,) = await source.ask(question, at=time.time())
            await source.close()
    assert (answer.labels["pod"], list(answer.values)) == ("chat-0", [BEGAN])


def watching(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vllm_autotuner", "diagnose", "--prometheus", url, "--watch"]
    options = ["--refresh", "1s", "--output", "json", "--engine-args=--max-num-seqs 64"]
    return subprocess.Popen(
        [*command, *options],
        env={**os.environ, "PYTHONPATH": str(OPERATOR)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def looks(
    process: subprocess.Popen[str], *, end: Callable[[Mapping[str, Any]], bool]
) -> Sequence[Mapping[str, Any]]:
    """Read looks up to the first for which `end` holds."""
    assert process.stdout is not None
    seen: list[Mapping[str, Any]] = []
    deadline = time.monotonic() + PATIENCE
    while not seen or not end(seen[-1]):
        assert time.monotonic() < deadline, seen[-3:]
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE)
        assert line, "the watch ended"
        seen.append(json.loads(line))
    return seen


async def test_a_watch_names_the_limit_and_outlives_its_prometheus(
    binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    def named(look: Mapping[str, Any]) -> list[str]:
        return [service["diagnosis"]["class"] for service in look["services"]]

    with serving(live_page) as engine:
        async with prometheus(job(engine, pod="chat-0"), binaries=binaries, folder=tmp_path) as server:
            await scraped(server, "chat-0", times=10)
            with watching(server.url) as process:
                try:
                    first = await looks(process, end=lambda look: named(look) == ["KVCacheSaturated"])
                    assert first[-1]["services"][0]["service"] == "chat"
                    server.kill()
                    lost = await looks(process, end=lambda look: bool(look["notes"]))
                    assert lost[-1]["services"] == []
                    assert "no answer: cannot reach" in lost[-1]["notes"][0]
                    await server.start()
                    await looks(process, end=lambda look: named(look) == ["KVCacheSaturated"])
                finally:
                    process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 0
                assert process.stderr is not None
                assert process.stderr.read() == ""


@pytest.mark.parametrize("command", ["doctor", "diagnose"])
async def test_an_empty_prometheus_is_said_in_one_line(
    command: str, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    async with prometheus(binaries=binaries, folder=tmp_path) as server:
        result = await asyncio.to_thread(CliRunner().invoke, app, [command, "--prometheus", server.url])
    assert result.exit_code == 2
    assert "no vLLM engine" in result.output
