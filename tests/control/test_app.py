"""The composition root against an emulated API server: what stops a start, and that nothing dies alone."""

import asyncio
import json
import logging
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import kmock
import pytest
from tests.control.objects import service_object
from tests.patience import PATIENCE

from vllm_autotuner.cluster.lease import Election, LeaseSettings
from vllm_autotuner.cluster.read_only import ReadOnlyCluster
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.run.app import FleetLoop, OperatorFailed, run
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.observation.prometheus import PrometheusAddress

SERVICES = kmock.resource("vllm-autotuner.dev", "v1alpha1", "vllmservices")
LEASES = kmock.resource("coordination.k8s.io", "v1", "leases")
CHAT = Key("prod", "chat")


@pytest.fixture
def api(kmock: Any) -> Any:
    """An API server with everything but our CRD."""
    verbs = {"get", "list", "watch", "patch", "create", "update"}
    for name, namespaced in (
        ("v1/namespaces", False),
        ("v1/events", True),
        ("v1/pods", True),
        ("apps/v1/deployments", True),
    ):
        kmock.resources[name] = kmock.ResourceInfo(namespaced=namespaced, verbs=verbs)
    kmock.resources[LEASES] = kmock.ResourceInfo(kind="Lease", namespaced=True, verbs=verbs)
    return kmock


@pytest.fixture
def served(api: Any) -> Any:
    """With our CRD too, and one service."""
    api.resources[SERVICES] = api.ResourceInfo(kind="VLLMService", namespaced=True, verbs={"get", "list", "watch"})
    api.objects[SERVICES, "prod", "chat"] = service_object(version="10")

    def put(request: Any) -> Any:
        api.objects[LEASES, "default", "vllm-autotuner"].patch(request.data)
        return request.data

    api["put", LEASES] << put  # The emulator itself knows no PUT.
    return api


def settings(api: Any, tmp_path: Path, **changed: Any) -> OperatorSettings:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": str(api.url)}}],
        "users": [{"name": "here", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    defaults: dict[str, Any] = {
        "prometheus": PrometheusAddress(url="http://127.0.0.1:9"),
        "kubeconfig": path,
        "listen_address": "127.0.0.1:0",
        "identity": "test_1",
        # Too long for a machine that stalls to lose it: these tests are not about that.
        "lease": LeaseSettings(lease_duration=20, renew_deadline=15, retry_period=0.1, request_timeout=10),
    }
    return OperatorSettings(**defaults | changed)


async def run_in_a_thread(settings: OperatorSettings, fleet_loop: FleetLoop) -> BaseException | None:
    """Run an operator away from the server's loop, for whose tasks kopf would wait; return how it ended."""
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            asyncio.run(run(settings, fleet_loop=fleet_loop))
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive(), "the operator did not end"
    return ended[0]


def holder(api: Any) -> str:
    return str(api.objects[LEASES, "default", "vllm-autotuner"]["spec"]["holderIdentity"])


async def leads(context: ControlContext) -> None:
    assert isinstance(context.election, Election)
    async with asyncio.timeout(PATIENCE):
        await context.election.leading.wait()


async def test_without_the_crd_it_says_what_to_apply(api: Any, tmp_path: Path) -> None:
    with pytest.raises(OperatorFailed, match=r"kubectl apply -f crds/"):
        await run(settings(api, tmp_path))


async def test_without_an_api_server_it_says_whom_it_asked(tmp_path: Path) -> None:
    class Nowhere:
        url = "http://127.0.0.1:1"

    with pytest.raises(OperatorFailed, match=r"/apis/vllm-autotuner\.dev/v1alpha1"):
        await run(settings(Nowhere(), tmp_path))


async def test_the_loop_starts_with_the_whole_fleet_known(served: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    async def looks_and_dies(context: ControlContext, stop: asyncio.Event) -> None:
        seen.append((context.registry.synced, list(context.registry.snapshot().services)))
        await leads(context)
        seen.append((context.election.is_leader, holder(served)))
        raise RuntimeError("no more\nof this")

    ended = await run_in_a_thread(settings(served, tmp_path), looks_and_dies)
    assert seen == [(True, [CHAT]), (True, "test_1")]
    assert isinstance(ended, OperatorFailed)
    assert str(ended) == "fleet loop: no more of this", "one line that names the part"
    assert holder(served) == "", "the lease was not given back"


async def test_a_read_only_operator_looks_at_once_and_takes_part_in_no_election(served: Any, tmp_path: Path) -> None:
    seen: list[tuple[bool, type]] = []

    async def looks_and_dies(context: ControlContext, stop: asyncio.Event) -> None:
        seen.append((context.election.is_leader, type(context.cluster)))
        await asyncio.sleep(0.5)  # an election would have been won by now
        raise RuntimeError("enough")

    ended = await run_in_a_thread(settings(served, tmp_path, read_only=True), looks_and_dies)
    assert str(ended) == "fleet loop: enough"
    assert seen == [(True, ReadOnlyCluster)]
    with pytest.raises(KeyError):
        holder(served)


@pytest.mark.parametrize(("web", "status"), [(False, 404), (True, 200)])
async def test_the_web_page_is_served_only_where_it_is_asked_for(
    served: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, web: bool, status: int
) -> None:
    caplog.set_level(logging.INFO)
    seen: list[tuple[int, bool]] = []

    async def reads_and_dies(context: ControlContext, stop: asyncio.Event) -> None:
        async with asyncio.timeout(PATIENCE):
            while not (bound := [record for record in caplog.records if hasattr(record, "addresses")]):
                await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as session, session.get(f"http://{bound[0].addresses[0]}/") as response:
            seen.append((response.status, "prod/chat" in await response.text()))
        raise RuntimeError("enough")

    await run_in_a_thread(settings(served, tmp_path, web=web), reads_and_dies)
    assert seen == [(status, web)]


async def test_a_loop_that_just_ends_is_a_failure(served: Any, tmp_path: Path) -> None:
    async def ends(context: ControlContext, stop: asyncio.Event) -> None:
        await leads(context)

    ended = await run_in_a_thread(settings(served, tmp_path), ends)
    assert str(ended) == "fleet loop stopped unexpectedly"


async def test_changes_in_the_cluster_reach_the_loop(served: Any, tmp_path: Path) -> None:
    versions: list[str] = []

    async def waits(context: ControlContext, stop: asyncio.Event) -> None:
        deadline = time.monotonic() + PATIENCE
        while (entry := context.registry.services.get(CHAT)) is None or entry.resource_version == "10":
            assert time.monotonic() < deadline, "no change arrived"
            await asyncio.sleep(0.01)
        versions.append(entry.resource_version)

    async def changes() -> None:
        await asyncio.sleep(0.2)
        url = "/apis/vllm-autotuner.dev/v1alpha1/namespaces/prod/vllmservices/chat"
        await served.patch(url, json=service_object(version="11"))

    ended, _ = await asyncio.gather(run_in_a_thread(settings(served, tmp_path), waits), changes())
    assert versions == ["11"], ended


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param({"interval": timedelta(seconds=0.5)}, "at least 1s", id="an interval that would only burn CPU"),
        pytest.param({"interval": timedelta(minutes=1)}, "window", id="a window that misses time between two ticks"),
        pytest.param({"identity": ""}, "identity", id="nobody"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, Any], says: str) -> None:
    possible = OperatorSettings(prometheus=PrometheusAddress(url="http://p"), identity="x")
    with pytest.raises(ValueError, match=says):
        replace(possible, **changed)
