"""The monitor's watches run side by side: what came to pass earlier may be seen later."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from tests.invariants.moment import Object
from typing_extensions import override

from e2e.monitor import Monitor
from e2e.stage import Stage


class Watches(httpx.AsyncBaseTransport):
    """Answers each watch with the versions that are put into its queue, by the plural of the kind."""

    def __init__(self) -> None:
        kinds = ("vllmservices", "deployments", "events")
        self._versions: dict[str, asyncio.Queue[Object]] = {kind: asyncio.Queue() for kind in kinds}

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=_Lines(self._versions[request.url.path.rpartition("/")[2]]))

    async def show(self, kind: str, version: int, **body: Any) -> None:
        """Send a version of the object `chat`, and let the monitor take it in."""
        self.send(kind, version, **body)
        for _ in range(20):
            await asyncio.sleep(0)

    def send(self, kind: str, version: int, **body: Any) -> None:
        """Send it; what is sent before the monitor looks again arrives at once."""
        metadata = {"name": "chat", "uid": "1", "resourceVersion": str(version), "generation": 1}
        self._versions[kind].put_nowait({"type": "MODIFIED", "object": {"metadata": metadata, "spec": {}, **body}})


class _Lines(httpx.AsyncByteStream):
    def __init__(self, versions: "asyncio.Queue[Object]") -> None:
        self._versions = versions

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            versions = [await self._versions.get()]
            while not self._versions.empty():
                versions.append(self._versions.get_nowait())
            yield b"".join(json.dumps(version).encode() + b"\n" for version in versions)


def ready(status: str) -> Object:
    return {"conditions": [{"type": "Ready", "status": status, "message": "as told"}]}


def serving(replicas: int) -> Object:
    return {
        "spec": {"template": {"spec": {"containers": [{"args": ["--max-num-seqs=4"]}]}}},
        "status": {"availableReplicas": replicas} if replicas else {},
    }


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[Watches, Monitor]]:
    watches = Watches()

    async def get(path: str) -> Object:
        return {"metadata": {"resourceVersion": "1"}}

    async with httpx.AsyncClient(transport=watches, base_url="http://api") as api:
        stage = cast(Stage, SimpleNamespace(api=api, get=get, namespace="demo"))
        async with Monitor(stage) as monitor:
            yield watches, monitor


async def lapses_after(*shown: tuple[str, int, Object]) -> list[str]:
    async with watching() as (watches, monitor):
        for kind, version, body in shown:
            await watches.show(kind, version, **body)
        return monitor.lapses("chat")


UP = ("vllmservices", 20, {"status": ready("True")})


async def test_the_versions_of_a_deployment_from_before_its_service_was_ready_are_no_lapse() -> None:
    assert await lapses_after(UP, ("deployments", 10, serving(0)), ("deployments", 15, serving(1))) == []


@pytest.mark.parametrize(
    ("later", "lapse"),
    [
        pytest.param(("deployments", 30, serving(0)), "no pod of the Deployment is available", id="no pod"),
        pytest.param(("vllmservices", 30, {"status": ready("False")}), "Ready=False: as told", id="not ready"),
    ],
)
async def test_what_ends_after_the_service_was_ready_is_a_lapse(later: tuple[str, int, Object], lapse: str) -> None:
    assert await lapses_after(UP, later) == [lapse]


async def test_a_status_is_seen_that_was_another_one_before_anybody_could_look() -> None:
    async with watching() as (watches, monitor):
        kind, version, body = UP
        await watches.show(kind, version, **body)
        waiting = asyncio.create_task(monitor.when("chat", lambda status: status == ready("False"), seconds=60))
        await asyncio.sleep(0)
        for later, status in ((30, "False"), (40, "True")):
            watches.send(kind, later, status=ready(status))
        assert await waiting == ready("False")
