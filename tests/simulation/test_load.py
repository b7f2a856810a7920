"""The load generator against servers that record what they are sent."""

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from vllm_autotuner.simulation.load import Answer, Load, Traffic
from vllm_autotuner.simulation.load import main as load_program

TRAFFIC = Traffic(model="tiny", prompt_tokens=(5, 10), output_tokens=(3, 4))
DEADLINE = 60.0


class Recorder:
    """A server that keeps the bodies and answers as it is told."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        return web.json_response({}, status=self.status)


@asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    recording = Recorder()
    app = web.Application()
    app.router.add_post("/v1/completions", recording.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    recording.url = f"http://{host}:{port}"
    try:
        yield recording
    finally:
        recording.open.set()
        await runner.cleanup()


async def until(condition: Callable[[], bool], see: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"last seen: {see()}"
        await asyncio.sleep(0.01)


async def test_requests_are_what_a_real_engine_understands() -> None:
    async with recorder() as server, Load(lambda: [server.url], TRAFFIC, rate=500) as load:
        await until(lambda: load.tally.succeeded >= 20, lambda: load.tally)
    for body in server.bodies:
        assert {key: body[key] for key in ("model", "ignore_eos", "stream")} == {
            "model": "tiny",
            "ignore_eos": True,
            "stream": False,
        }
        assert 5 <= len(body["prompt"]) <= 10
        assert body["max_tokens"] in {3, 4}
    assert len({tuple(body["prompt"]) for body in server.bodies}) == len(server.bodies), "no prefix hits"


async def test_the_same_seed_sends_the_same_requests() -> None:
    async def first(seed: int) -> list[int]:
        async with recorder() as server, Load(lambda: [server.url], TRAFFIC, clients=1, seed=seed) as load:
            await until(lambda: load.tally.succeeded >= 5, lambda: load.tally)
        return [token for body in server.bodies[:5] for token in body["prompt"]]

    assert await first(1) == await first(1) != await first(2)


async def test_an_open_loop_keeps_its_rate_whatever_the_servers_answer() -> None:
    async with recorder() as server:
        server.open.clear()
        async with Load(lambda: [server.url], TRAFFIC, rate=500) as load:
            await until(lambda: load.tally.sent >= 100, lambda: load.tally)
            assert load.tally.in_flight == load.tally.sent


async def test_late_wake_ups_do_not_lower_the_rate() -> None:
    # Each arrival blocks the loop for half a mean interval. A generator that counted on from there would need half as
    # long again; this one needs what its seed draws, busy or not. A ratio, as a loaded machine stretches both.
    async def seconds(busy: float) -> float:
        def nobody() -> list[str]:
            time.sleep(busy)
            return []

        began = time.monotonic()
        async with Load(nobody, TRAFFIC, rate=100, seed=0) as load:
            await until(lambda: load.tally.homeless >= 100, lambda: load.tally)
        return time.monotonic() - began

    assert await seconds(0.005) < 1.35 * await seconds(0.0)


async def test_the_rate_changes_at_run_time() -> None:
    async with recorder() as server, Load(lambda: [server.url], TRAFFIC, rate=0) as load:
        await asyncio.sleep(0)
        assert load.tally.sent == 0
        load.rate = 500
        await until(lambda: load.tally.sent >= 50, lambda: load.tally)
        load.rate = 0
        await until(lambda: load.tally.in_flight == 0, lambda: load.tally)
        paused = load.tally.sent
        load.rate = 0.001
        load.rate = 500
        await until(lambda: load.tally.sent > paused, lambda: load.tally)


async def test_an_open_loop_sheds_what_is_over_its_bound() -> None:
    async with recorder() as server:
        server.open.clear()
        async with Load(lambda: [server.url], TRAFFIC, rate=500, max_in_flight=10) as load:
            await until(lambda: load.tally.shed >= 5, lambda: load.tally)
            assert load.tally.in_flight == 10


async def test_a_closed_loop_keeps_one_request_per_client() -> None:
    async with recorder() as server:
        server.open.clear()
        async with Load(lambda: [server.url], TRAFFIC, clients=8) as load:
            await until(lambda: server.waiting == 8, lambda: server.waiting)
            assert load.tally.in_flight == 8
            load.clients = 3
            server.open.set()
            await until(lambda: load.tally.succeeded >= 20, lambda: load.tally)
            server.open.clear()
            await until(lambda: server.waiting == 3, lambda: server.waiting)
            load.clients = 5
            await until(lambda: server.waiting == 5, lambda: server.waiting)


async def test_requests_go_round_the_servers_that_are_ready() -> None:
    async with recorder() as one, recorder() as two:
        ready: list[str] = []
        async with Load(lambda: ready, TRAFFIC, rate=100) as load:
            await until(lambda: load.tally.homeless >= 5, lambda: load.tally)
            ready.extend([one.url, two.url])
            await until(lambda: load.tally.succeeded >= 40, lambda: load.tally)
            assert abs(len(one.bodies) - len(two.bodies)) <= 4
            ready.remove(one.url)
            # On a machine that is busy enough there is always a request under way: so nobody comes for a moment.
            load.rate = 0
            await until(lambda: load.tally.in_flight == 0, lambda: load.tally)
            load.rate = 100
            seen = len(one.bodies)
            await until(lambda: len(two.bodies) > seen + 20, lambda: load.tally)
            assert len(one.bodies) == seen


@pytest.mark.parametrize("status", [400, 503])
async def test_answers_are_counted_by_status(status: int) -> None:
    async with recorder() as server, Load(lambda: [server.url], TRAFFIC, rate=500) as load:
        server.status = status
        await until(lambda: load.tally.statuses[status] >= 5, lambda: load.tally)
        assert (load.tally.succeeded, load.tally.failed) == (0, load.tally.statuses[status])


async def test_a_server_that_is_gone_is_a_failure_with_status_zero() -> None:
    answers: list[Answer] = []
    async with recorder() as server:
        url = server.url
    async with Load(lambda: [url], TRAFFIC, clients=2, on_answer=answers.append) as load:
        await until(lambda: load.tally.statuses[0] >= 4, lambda: load.tally)
    assert {(answer.url, answer.status, answer.first_chunk_seconds) for answer in answers} == {(url, 0, None)}


async def test_a_mistake_of_ours_is_raised_when_the_load_ends() -> None:
    called = asyncio.Event()

    def broken() -> list[str]:
        called.set()
        raise LookupError("no endpoints")

    with pytest.raises(LookupError, match="no endpoints"):
        async with Load(broken, TRAFFIC, rate=500):
            await asyncio.wait_for(called.wait(), DEADLINE)


async def test_a_server_whose_address_swallows_packets_is_left_soon() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Nobody accepts: once its queue is full the kernel drops whatever asks to connect, and asks again for minutes.
        host, port = full.getsockname()
        queued = [socket.socket() for _ in range(4)]
        for each in queued:
            each.setblocking(False)
            each.connect_ex((host, port))
        urls = [f"http://{host}:{port}"]
        async with recorder() as server, Load(lambda: urls, replace(TRAFFIC, connect_timeout=0.2), clients=1) as load:
            await until(lambda: load.tally.sent == 1, lambda: load.tally)
            urls[:] = [server.url]
            await until(lambda: load.tally.succeeded > 0, lambda: load.tally)
            assert load.tally.statuses[0] == 1
        for each in queued:
            each.close()


async def test_without_keep_alive_every_request_has_a_connection_of_its_own() -> None:
    connections = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        connections.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with Load(lambda: (f"http://{host}:{port}",), TRAFFIC, clients=1, keep_alive=False) as load:
        await until(lambda: load.tally.succeeded >= 5, lambda: load.tally)
    await runner.cleanup()
    assert len(connections) >= 5


async def test_as_a_program_it_prints_its_tally_until_it_is_told_to_stop() -> None:
    async with recorder() as recording:
        command = [sys.executable, "-m", "vllm_autotuner.simulation.load", recording.url, "--model", "tiny"]
        process = await asyncio.create_subprocess_exec(*command, "--clients", "2", stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        first = json.loads(await process.stdout.readline())
        second = json.loads(await process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert first == {"sent": 0, "succeeded": 0, "failed": 0}
    assert second["succeeded"] > 0
    assert second["failed"] == 0
    assert {body["model"] for body in recording.bodies} == {"tiny"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["chat:8000", "--clients", "1"], "'chat:8000' is no URL"),
        (["ftp://chat", "--clients", "1"], "is no URL"),
        (["http://chat"], "nothing is sent"),
        (["http://chat", "--clients", "-1"], "above 0"),
        (["http://chat", "--rate", "-1"], "above 0"),
        (["http://chat", "--rate", "nan"], "above 0"),
        (["http://chat", "--rate", "inf"], "above 0"),
    ],
)
def test_as_a_program_it_refuses_what_would_send_nothing(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_program([*words, "--model", "tiny"])
    assert says in capsys.readouterr().err


async def test_as_a_program_it_says_why_requests_fail() -> None:
    command = [sys.executable, "-m", "vllm_autotuner.simulation.load", "http://127.0.0.1:1", "--model", "tiny"]
    process = await asyncio.create_subprocess_exec(*command, "--clients", "1", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    told = json.loads(await process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert told["failures"] == {"no answer": told["failed"]}
