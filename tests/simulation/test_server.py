"""The stand-in for `vllm serve` over real HTTP on loopback, in real time."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from tests.simulation.virtual import config

from vllm_autotuner.engine.flags import parse_effective
from vllm_autotuner.engine.startup_log import StartupReason, parse_startup_failure
from vllm_autotuner.simulation.driver import EngineDriver
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.server import EngineServer
from vllm_autotuner.simulation.step_duration import StepTimes, step_law

FAST = step_law(StepTimes(base_ms=1, prefill_per_token_ms=0.001), tensor_parallel_size=1, kv_heads=8)
OPERATOR = Path(__file__).parents[2] / "operator"
DEADLINE = 60.0
"""Seconds that anything in these tests may take on a busy machine."""


class Client:
    """One served engine, as a client sees it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, driver: EngineDriver | None = None) -> None:
        self.url = url
        self.session = session
        self.driver = driver

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return the events of a stream; the closing `[DONE]` must be there."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            *events, done, rest = (await response.text()).split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def metric(self, name: str, **labels: str) -> float:
        async with self.session.get(self.url + "/metrics") as response:
            text = await response.text()
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"vllm:{name}" and labels.items() <= sample.labels.items()
        ]
        assert len(values) == 1, f"{name} {labels}: {values}"
        return values[0]

    async def metric_becomes(self, name: str, expected: float, **labels: str) -> None:
        async def seen() -> float:
            return await self.metric(name, **labels)

        await becomes(seen, expected)


async def becomes(seen: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Wait until `seen` gives what is expected; fail with what it gave last."""
    until = time.monotonic() + DEADLINE
    while (last := await seen()) != expected:
        assert time.monotonic() < until, f"expected {expected!r}, last seen {last!r}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def served(*, faults: Faults | None = None, **changes: Any) -> AsyncIterator[Client]:
    """Serve an engine with steps of about 1 ms inside this process."""
    engine_config = config(**{"law": FAST, "model_name": "tiny", "max_model_len": 8192, **changes})
    driver = EngineDriver(SimulatedEngine(engine_config, started=time.monotonic(), faults=faults), clock=time.monotonic)
    server = EngineServer(driver, model="./model", created=1.0)
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    driving = asyncio.create_task(driver.run())
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE)) as session:
            yield Client(f"http://{host}:{port}", session, driver)
    finally:
        driving.cancel()
        await runner.cleanup()


async def test_a_completion_has_as_many_tokens_as_it_asked_for() -> None:
    async with served() as client:
        status, body = await client.post(
            "/v1/completions", {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7, "ignore_eos": True}
        )
    assert status == 200
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["text"] == " token" * 7


async def test_a_chat_answer_counts_its_messages() -> None:
    async with served() as client:
        messages = [{"role": "system", "content": "x" * 40}, {"role": "user", "content": [{"text": "y" * 8}]}]
        status, body = await client.post("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 5})
    assert status == 200
    assert body["usage"]["prompt_tokens"] == 10 + 2 + 2 * 4
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " token" * 5}


@pytest.mark.parametrize(
    ("path", "body", "text_of"),
    [
        pytest.param("/v1/completions", {"prompt": "hello"}, lambda choice: choice["text"], id="completion"),
        pytest.param(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hello"}]},
            lambda choice: choice["delta"]["content"],
            id="chat",
        ),
    ],
)
async def test_a_stream_delivers_tokens_as_they_come(
    path: str, body: dict[str, Any], text_of: Callable[[Any], str]
) -> None:
    async with served() as client:
        events = await client.stream(path, {**body, "max_tokens": 60, "stream_options": {"include_usage": True}})
    *chunks, usage = events
    assert len(chunks) > 3
    assert "".join(text_of(event["choices"][0]) for event in chunks) == " token" * 60
    assert [event["choices"][0]["finish_reason"] for event in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 60)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        pytest.param({"prompt": [1] * 8192}, 400, "maximum context length is 8192", id="a prompt over the context"),
        pytest.param({"prompt": [1] * 8000, "max_tokens": 193}, 400, "(193 > 8192 - 8000)", id="both together over"),
        pytest.param({"prompt": [1], "model": "other"}, 404, "`other` does not exist", id="another model"),
        pytest.param({"prompt": [1], "max_tokens": "many"}, 400, "max_tokens must be an integer", id="no number"),
        pytest.param({"prompt": [1], "n": 2}, 400, "n=1 only", id="several answers"),
        pytest.param({}, 400, "prompt must be", id="no prompt"),
        pytest.param([], 400, "JSON object", id="no object"),
    ],
)
async def test_refuses_with_vllms_error_body(body: Any, status: int, words: str) -> None:
    async with served() as client:
        answered, error = await client.post("/v1/completions", body)
        assert answered == status
        assert error["error"]["code"] == status
        assert words in error["error"]["message"]
        assert await client.metric("num_requests_running") == 0


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with served() as client, client.session.post(client.url + "/v1/completions", data="{") as response:
        assert response.status == 400


async def test_tells_model_and_version() -> None:
    async with served() as client:
        async with client.session.get(client.url + "/v1/models") as response:
            (model,) = (await response.json())["data"]
        async with client.session.get(client.url + "/version") as response:
            assert await response.json() == {"version": "0.32.0"}
    assert (model["id"], model["root"], model["max_model_len"]) == ("tiny", "./model", 8192)


async def test_metrics_agree_with_what_clients_received() -> None:
    async with served(max_num_seqs=4) as client:
        bodies = [{"prompt": [1] * 100, "max_tokens": 20 + index} for index in range(12)]
        await asyncio.gather(*(client.post("/v1/completions", body) for body in bodies))
        assert await client.metric("generation_tokens_total") == sum(20 + index for index in range(12))
        assert await client.metric("prompt_tokens_total") == 1200
        assert await client.metric("request_success_total", finished_reason="length") == 12
        assert await client.metric("request_queue_time_seconds_sum") > 0, "four seats for twelve clients"


async def test_a_client_that_goes_away_aborts_its_request() -> None:
    async with served() as client:
        request = asyncio.create_task(client.post("/v1/completions", {"prompt": [1], "max_tokens": 8000}))
        await client.metric_becomes("num_requests_running", 1)
        request.cancel()
        await client.metric_becomes("request_success_total", 1, finished_reason="abort")
        await client.metric_becomes("num_requests_running", 0)


async def test_a_wedged_engine_is_healthy_but_answers_no_request() -> None:
    async with served(faults=Faults(wedge_after=0.3)) as client:
        stuck = asyncio.create_task(client.post("/v1/completions", {"prompt": [1], "max_tokens": 8000}))
        assert client.driver is not None
        engine = client.driver.engine

        async def halted() -> bool:
            return engine.next_step_end is None and engine.metrics.generation_tokens > 0

        await becomes(halted, True)
        before = await client.metric("generation_tokens_total")
        late = asyncio.create_task(client.post("/v1/completions", {"prompt": [1], "max_tokens": 1}))

        async def queued() -> int:
            return len(list(engine.waiting))

        await becomes(queued, 1)
        async with client.session.get(client.url + "/health") as response:
            assert response.status == 200
        assert await client.metric("generation_tokens_total") == before
        assert await client.metric("num_requests_waiting") == 0
        assert not stuck.done()
        assert not late.done()
        stuck.cancel()
        late.cancel()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Process:
    """The server as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def ends(self) -> tuple[int, str]:
        """Return exit code and log."""
        out, _ = await asyncio.wait_for(self.process.communicate(), DEADLINE)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    async def ready(self, session: aiohttp.ClientSession) -> None:
        async def health() -> int | None:
            assert self.process.returncode is None, "the server ended before it was ready"
            try:
                async with session.get(self.url + "/health") as response:
                    return response.status
            except aiohttp.ClientError:
                return None

        await becomes(health, 200)


@asynccontextmanager
async def process(*args: str, **environment: str) -> AsyncIterator[Process]:
    port = free_port()
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vllm_autotuner.simulation.server", "serve", "./model", "--host", "127.0.0.1",
        f"--port={port}", *args,
        env={**os.environ, "PYTHONPATH": str(OPERATOR), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield Process(started, port)
    finally:
        if started.returncode is None:
            started.kill()
            await started.communicate()


@pytest.mark.parametrize(
    ("args", "environment", "code", "reason", "length"),
    [
        pytest.param(["--max-num-sequences=8"], {}, 2, StartupReason.INVALID_FLAG, None, id="bad flag"),
        pytest.param(["-tp=3"], {"SIM_ATTENTION_HEADS": "8"}, 1, StartupReason.HEADS_NOT_DIVISIBLE, None, id="heads"),
        pytest.param(
            ["--max-model-len=100000"],
            {"SIM_MODEL_MAX_LEN": "8192"},
            1,
            StartupReason.LENGTH_OVER_MODEL,
            8192,
            id="length over model",
        ),
        pytest.param(
            ["--max-model-len=8192"],
            {"SIM_GPU_BLOCKS": "10", "SIM_BLOCK_SIZE": "128"},
            1,
            StartupReason.INSUFFICIENT_KV_CACHE,
            1152,
            id="KV too small",
        ),
    ],
)
async def test_a_failed_start_exits_and_says_why(
    args: list[str], environment: dict[str, str], code: int, reason: StartupReason, length: int | None
) -> None:
    async with process(*args, **environment) as server:
        exited, log = await server.ends()
    failure = parse_startup_failure(log)
    assert failure is not None, log
    assert (exited, failure.reason, failure.suggested_max_model_len) == (code, reason, length)


async def test_a_setting_with_a_typo_stops_the_server() -> None:
    async with process(SIM_GPU_BLOKS="1") as server:
        code, log = await server.ends()
    assert (code, "SIM_GPU_BLOKS: unknown setting" in log) == (2, True)


async def test_starts_late_serves_and_leaves_on_sigterm_whatever_runs() -> None:
    began = time.monotonic()
    async with (
        process("--served-model-name=tiny", "--max-num-seqs=8", SIM_STARTUP_SECONDS="1.5") as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE)) as session,
    ):
        await server.ready(session)
        assert time.monotonic() - began > 1.5
        client = Client(server.url, session)
        status, _ = await client.post("/v1/completions", {"model": "tiny", "prompt": [1], "max_tokens": 3})
        assert status == 200
        long = asyncio.create_task(client.post("/v1/completions", {"prompt": [1], "max_tokens": 100_000}))
        await client.metric_becomes("num_requests_running", 1)
        server.process.terminate()
        # Within its deadline, which the request under way would exceed by far.
        code, log = await server.ends()
        assert code == 0
        with pytest.raises(aiohttp.ClientError):
            await long
    assert parse_startup_failure(log) is None
    effective = parse_effective(log)
    assert effective is not None
    assert (effective.served_model_name, effective.max_num_seqs) == ("tiny", 8)


async def test_sigterm_during_start_up_ends_it() -> None:
    async with process(SIM_STARTUP_SECONDS="600") as server:
        assert server.process.stdout is not None
        await asyncio.wait_for(server.process.stdout.readuntil(b"non-default args"), DEADLINE)
        server.process.terminate()
        code, log = await server.ends()
    assert code in {0, -15}, log


async def test_a_crash_breaks_connections_and_exits_with_one() -> None:
    async with (
        process(SIM_CRASH_AFTER="1") as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE)) as session,
    ):
        await server.ready(session)
        with pytest.raises(aiohttp.ClientError):
            await Client(server.url, session).post("/v1/completions", {"prompt": [1], "max_tokens": 100_000})
        code, log = await server.ends()
    assert (code, "EngineDeadError" in log) == (1, True)


async def test_imports_nothing_heavy() -> None:
    script = (
        "import sys, vllm_autotuner.simulation.server;"
        "print([name for name in ('numpy', 'pydantic', 'kopf', 'kubernetes', 'httpx') if name in sys.modules])"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": str(OPERATOR)}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(started.communicate(), DEADLINE)
    assert out.decode().strip() == "[]"


async def test_a_step_that_ends_while_a_request_arrives_is_not_lost() -> None:
    # A clock that moves with every reading: between two of them, steps end.
    readings = iter(range(1_000_000))
    driver = EngineDriver(SimulatedEngine(config(law=FAST, max_model_len=8192)), clock=lambda: next(readings) * 0.0007)
    generations = [driver.submit(prompt_tokens=5, max_tokens=50, ignore_eos=True, stream=False) for _ in range(100)]
    while not all(generation.outcome.done() for generation in generations):
        driver.catch_up()
    assert {generation.outcome.result().output_tokens for generation in generations} == {50}


async def test_the_runaway_share_of_requests_never_ends_by_itself() -> None:
    engine = SimulatedEngine(config(law=FAST, max_model_len=8192))
    driver = EngineDriver(engine, clock=lambda: 0.0, eos_mean_tokens=20, runaway_share=0.25, seed=3)
    ends = [
        driver.submit(prompt_tokens=1, max_tokens=5000, ignore_eos=False, stream=False).sequence.target
        for _ in range(400)
    ]
    # 400 draws of 0.25: standard deviation 8.7 around 100.
    assert 70 < ends.count(5000) < 130
    assert max(end for end in ends if end < 5000) < 400
