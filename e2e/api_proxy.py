"""Stands between one client and the API server, passes everything on, and can do what networks do to it.

It can lose an answer after the write happened, take no request at all, be late or too busy, and keep watch events back
or bring them twice.
Apart from the tests, because only whoever sees each write can end a process exactly between two of them (T01 to T03).
Must not: change a word of what passes. Plain HTTP towards the client, which listens on loopback only.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml
from aiohttp import ClientSession, ClientTimeout, StreamReader, TCPConnector, web

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP: Final = frozenset({"host", "connection", "content-length", "transfer-encoding", "content-encoding"})
"""Headers that belong to one connection, and those that aiohttp sets for what it has decoded."""
_TOO_MANY: Final = {
    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 429,
    "reason": "TooManyRequests", "message": "too many requests, please try again later",
}  # fmt: skip
"""As an API server with priority and fairness says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write that the API server has carried out."""

    method: str
    path: str
    body: Mapping[str, Any]
    answer: Mapping[str, Any]
    heard: bool
    """Whether the client is still there for the answer. One that was killed meanwhile never learns of its write."""


class ApiProxy:
    """`async with ApiProxy(...) as proxy`: `lose` is asked after every write and says whether its answer gets lost."""

    def __init__(
        self,
        *,
        api_url: str,
        ca_file: Path,
        lose: Callable[[Write], bool] = lambda write: False,
        refuse: Callable[[], bool] = lambda: False,
        late: Callable[[], float] = lambda: 0.0,
        busy: Callable[[], bool] = lambda: False,
        copies: Callable[[str], int] = lambda path: 1,
        answered: Callable[[web.Request, int], object] = lambda request, status: None,
    ) -> None:
        """`refuse` is asked before every request is passed on, `late` for how many seconds it waits then, and `busy`
        whether it is answered with 429 instead; `copies` how often a watch event of a path arrives.

        `answered` is told each request with the HTTP status of its answer.
        """
        self._api_url = api_url
        self._ca_file = ca_file
        self._lose = lose
        self._refuse = refuse
        self._late = late
        self._busy = busy
        self._copies = copies
        self._answered = answered
        self._writes: set[asyncio.Task[web.Response]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context(cafile=self._ca_file)
        self._session = ClientSession(
            connector=TCPConnector(ssl=tls, limit=0), timeout=ClientTimeout(total=None), auto_decompress=True
        )
        application = web.Application(client_max_size=16 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await asyncio.gather(*self._writes)
        await self._session.close()

    def kubeconfig(self, original: Path) -> Path:
        """Write a copy of a kubeconfig that leads here, beside the original."""
        content = yaml.safe_load(original.read_text(encoding="utf-8"))
        for cluster in content["clusters"]:
            cluster["cluster"] = {"server": self.url}
        copy = original.with_name(f"{original.name}-proxied")
        copy.write_text(yaml.safe_dump(content), encoding="utf-8")
        copy.chmod(0o600)
        return copy

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if self._refuse():
            return _cut(request)
        await asyncio.sleep(self._late())
        if self._busy():
            return web.json_response(_TOO_MANY, status=429, headers={"Retry-After": "1"})
        headers = _kept(request.headers)
        body = await request.read()
        url = f"{self._api_url}{request.raw_path}"
        if request.method in WRITES:
            # A client that is killed takes its request along here, but not what the API server was told: each write
            # that happened has to be told.
            writing = asyncio.create_task(self._carry_out(request, url, headers=headers, body=body))
            self._writes.add(writing)
            writing.add_done_callback(self._writes.discard)
            return await asyncio.shield(writing)
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            self._answered(request, answer.status)
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            with suppress(ConnectionResetError):  # the client has gone, as killed ones do
                await response.prepare(request)
                if request.query.get("watch") in ("true", "1"):
                    await self._events(answer.content, response, path=request.path)
                    return response
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    async def _carry_out(
        self, request: web.Request, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> web.Response:
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            self._answered(request, answer.status)
            content = await answer.read()
            if answer.ok and self._lose(_write(request, body, content)):
                return _cut(request)
            return web.Response(status=answer.status, headers=_kept(answer.headers), body=content)

    async def _events(self, lines: StreamReader, response: web.StreamResponse, *, path: str) -> None:
        # Not by `readline`, which refuses an object that is longer than its buffer.
        pending = b""
        async for chunk in lines.iter_any():
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                await response.write((line + b"\n") * self._copies(path))


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}


def _cut(request: web.Request) -> web.Response:
    """End the connection without a word; the client may have ended it already."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _write(request: web.Request, body: bytes, answer: bytes) -> Write:
    # A server-side apply is YAML by its media type; ours is always JSON, which is YAML too.
    return Write(
        method=request.method,
        path=request.path,
        body=json.loads(body or b"{}"),
        answer=json.loads(answer or b"{}"),
        heard=request.transport is not None,
    )
