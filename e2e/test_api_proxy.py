"""The proxy in front of the API server tells every write that happened, also those of a client that died meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession, web

from e2e.agent.server import write_certificate
from e2e.api_proxy import ApiProxy, Write


@dataclass(slots=True)
class Told:
    """Hears of every write, and loses no answer."""

    writes: list[Write] = field(default_factory=list)

    def __call__(self, write: Write) -> bool:
        self.writes.append(write)
        return False


@dataclass(slots=True)
class Upstream:
    """Carries a write out at once, and answers when it is let."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, request: web.Request) -> web.Response:
        await request.read()
        self.reached.set()
        await self.let.wait()
        return web.json_response({"kind": "Event"}, status=409 if "refused" in request.path else 201)

    async def read(self, request: web.Request) -> web.Response:
        return web.Response(text=request.path)


@pytest.fixture
async def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def url(upstream: Upstream) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/{path:.*}", upstream.write)
    application.router.add_get("/{path:.*}", upstream.read)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    """Of a server over TLS. Here it is asked for, and never needed."""
    return write_certificate(tmp_path, ip="127.0.0.1")


async def test_a_write_is_told_with_its_answer(upstream: Upstream, url: str, ca_file: Path) -> None:
    told = Told()
    upstream.let.set()
    async with ApiProxy(api_url=url, ca_file=ca_file, lose=told) as proxy:
        async with ClientSession() as client, client.post(f"{proxy.url}/events", json={"reason": "Told"}) as answer:
            assert (answer.status, await answer.json()) == (201, {"kind": "Event"})
        async with ClientSession() as client, client.post(f"{proxy.url}/refused", json={}) as answer:
            assert answer.status == 409
    assert told.writes == [
        Write(method="POST", path="/events", body={"reason": "Told"}, answer={"kind": "Event"}, heard=True)
    ], "what was refused did not happen"


async def test_an_answer_gets_lost(upstream: Upstream, url: str, ca_file: Path) -> None:
    upstream.let.set()
    async with (
        ApiProxy(api_url=url, ca_file=ca_file, lose=lambda _: True) as proxy,
        ClientSession() as client,
    ):
        with pytest.raises(ClientConnectionError):
            await client.post(f"{proxy.url}/events", json={})


async def test_a_write_of_a_client_that_died_meanwhile_is_told_all_the_same(
    upstream: Upstream, url: str, ca_file: Path
) -> None:
    told = Told()
    async with ApiProxy(api_url=url, ca_file=ca_file, lose=told) as proxy:
        async with ClientSession() as client:
            writing = asyncio.create_task(client.post(f"{proxy.url}/events", json={"reason": "Told"}))
            await upstream.reached.wait()
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        async with ClientSession() as other:  # whose requests are heard after the end of the first client
            for _ in range(3):
                assert (await other.get(f"{proxy.url}/version")).status == 200
        assert told.writes == [], "it has not happened yet"
        upstream.let.set()
    assert [(write.body, write.heard) for write in told.writes] == [({"reason": "Told"}, False)]


async def test_a_busy_server_refuses_and_a_late_one_answers(upstream: Upstream, url: str, ca_file: Path) -> None:
    told, busy, waits = Told(), iter([True, False]), list[float]()
    upstream.let.set()

    def late() -> float:
        waits.append(0.01)
        return waits[-1]

    async with (
        ApiProxy(api_url=url, ca_file=ca_file, lose=told, busy=lambda: next(busy), late=late) as proxy,
        ClientSession() as client,
    ):
        async with client.post(f"{proxy.url}/events", json={}) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            assert (await refused.json())["reason"] == "TooManyRequests"
        assert told.writes == [], "what was refused was not passed on"
        async with client.post(f"{proxy.url}/events", json={}) as answer:
            assert answer.status == 201
    assert len(waits) == 2
