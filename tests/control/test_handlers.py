"""kopf against an emulated API server: the watches feed the registry, and nothing is ever written."""

import ast
import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import kmock
import kopf
import pytest
from tests.control.objects import deployment_object, pod_object, service_object
from tests.patience import PATIENCE

import vllm_autotuner
from vllm_autotuner.api.service import InvalidService
from vllm_autotuner.cluster.client import connect
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.run.handlers import Login, build_registry, build_settings
from vllm_autotuner.workload.labels import MANAGED_SELECTOR

CHAT = Key("prod", "chat")
SERVICES = kmock.resource("vllm-autotuner.dev", "v1alpha1", "vllmservices")
DEPLOYMENTS = kmock.resource("apps", "v1", "deployments")
PODS = kmock.resource("", "v1", "pods")
SERVICES_URL = "/apis/vllm-autotuner.dev/v1alpha1/namespaces/prod/vllmservices"


@pytest.fixture
def api(kmock: Any) -> Any:
    """An API server with our three kinds and what kopf needs to exist."""
    verbs = {"get", "list", "watch", "patch"}
    for resource, kind in ((SERVICES, "VLLMService"), (DEPLOYMENTS, "Deployment"), (PODS, "Pod")):
        kmock.resources[resource] = kmock.ResourceInfo(kind=kind, namespaced=True, verbs=verbs)
    for name in ("namespaces", "events"):
        kmock.resources[f"v1/{name}"] = kmock.ResourceInfo(namespaced=name == "events", verbs=verbs)
    return kmock


class Watching:
    """kopf in a thread of its own: at its end it waits for every other task of its loop, and the server has some."""

    def __init__(self, kubeconfig: Path, *, namespaces: tuple[str, ...] = ()) -> None:
        self.registry = Registry()
        self.cleaned_up = threading.Event()
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self._namespaces = namespaces
        self.thread = threading.Thread(target=asyncio.run, args=[self._watch()])

    async def _watch(self) -> None:
        async with connect(self._kubeconfig) as connection:
            await kopf.operator(
                registry=build_registry(self.registry, connection=connection, cleanup=self._clean_up),
                settings=build_settings(),
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
            )

    async def _clean_up(self) -> None:
        self.cleaned_up.set()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self.thread.join, PATIENCE)
        assert not self.thread.is_alive(), "kopf did not stop"


@pytest.fixture
def kubeconfig(api: Any, tmp_path: Path) -> Path:
    """A user of the emulated server, whose token is in a file."""
    (tmp_path / "token").write_text("token-1")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": str(api.url)}}],
        "users": [{"name": "here", "user": {"tokenFile": str(tmp_path / "token")}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
async def watching(kubeconfig: Path) -> AsyncIterator[Watching]:
    watching = Watching(kubeconfig)
    watching.thread.start()
    yield watching
    await watching.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never {what}"
        await asyncio.sleep(0.01)


async def test_objects_that_exist_and_their_changes_reach_the_registry(api: Any, kubeconfig: Path) -> None:
    api.objects[SERVICES, "prod", "chat"] = service_object(version="10")
    api.objects[DEPLOYMENTS, "prod", "chat"] = deployment_object()
    api.objects[PODS, "prod", "chat-77b-x"] = pod_object()
    watching = Watching(kubeconfig)
    watching.thread.start()
    registry = watching.registry
    try:
        await until(lambda: len(registry.services) == len(registry.deployments) == len(registry.pods) == 1, "listed")
        await api.patch(f"{SERVICES_URL}/chat", json=service_object(version="11", replicas=3))
        await until(lambda: getattr(registry.services.get(CHAT), "resource_version", None) == "11", "modified")
        await api.post(SERVICES_URL, json=service_object("search", uid="u2", version="12"))
        await until(lambda: len(registry.services) == 2, "added")
        await api.delete(f"{SERVICES_URL}/search")
        await until(lambda: len(registry.services) == 1, "deleted")
    finally:
        await watching.stop()
    assert watching.cleaned_up.is_set()


async def test_a_poisoned_object_stops_neither_the_list_nor_the_watch_of_the_others(api: Any, kubeconfig: Path) -> None:
    """kopf copies what it reads, level by level; three levels of Python's stack for one of the object's."""
    deep = {"spec": json.loads('{"a":' * 400 + "1" + "}" * 400)}
    api.objects[SERVICES, "prod", "chat"] = service_object(version="10")
    api.objects[SERVICES, "prod", "deep"] = service_object("deep", uid="u3", version="10", podTemplate=deep)
    watching = Watching(kubeconfig)
    watching.thread.start()
    registry = watching.registry
    try:
        await until(lambda: len(registry.services) == 2, "listed")
        await api.post(SERVICES_URL, json=service_object("deeper", uid="u4", version="12", podTemplate=deep))
        await api.post(SERVICES_URL, json=service_object("search", uid="u2", version="13"))
        await until(lambda: len(registry.services) == 4, "added")
    finally:
        await watching.stop()
    for name in ("deep", "deeper"):
        entry = registry.services.get(Key("prod", name))
        assert entry is not None
        assert isinstance(entry.service, InvalidService)
        assert "nested deeper than 32 levels" in entry.service.message


async def test_kopf_itself_writes_nothing(api: Any, watching: Watching) -> None:
    await api.post(SERVICES_URL, json=service_object(version="10"))
    await until(lambda: len(watching.registry.services) == 1, "added")
    await watching.stop()
    ours = [request for request in list(api) if "kopf" in request.headers.get("User-Agent", "")]
    assert ours, "kopf asked nothing at all"
    assert {request.method.value for request in ours} == {"GET"}


def test_no_handler_of_ours_makes_kopf_write_finalizers_or_annotations() -> None:
    """Only `on.event`, `on.login` and `on.cleanup` leave users' objects alone: nothing shows up as drift in GitOps."""
    used, words = set(), set()
    for path in Path(vllm_autotuner.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and (text := ast.unparse(node)).startswith("kopf."):
                used.add(text)
            if isinstance(node, ast.Constant):
                words.add(node.value)
    assert {name for name in used if name.startswith("kopf.on.")} == {
        "kopf.on.event",
        "kopf.on.login",
        "kopf.on.cleanup",
    }
    assert used.isdisjoint({"kopf.timer", "kopf.daemon", "kopf.index", "kopf.adopt", "kopf.append_owner_reference"})
    assert "finalizers" not in words


async def test_only_objects_of_ours_are_asked_for(api: Any, watching: Watching) -> None:
    def selectors(resource: Any) -> set[str | None]:
        return {request.params.get("labelSelector") for request in api[resource]}

    await until(lambda: all(len(api[resource]) >= 2 for resource in (SERVICES, DEPLOYMENTS, PODS)), "list and watch")
    assert selectors(SERVICES) == {None}
    assert selectors(DEPLOYMENTS) == selectors(PODS) == {MANAGED_SELECTOR}


async def test_chosen_namespaces_are_watched_one_by_one(api: Any, kubeconfig: Path) -> None:
    watching = Watching(kubeconfig, namespaces=("prod", "test"))
    watching.thread.start()
    try:
        await until(lambda: {request.namespace for request in api[SERVICES]} >= {"prod", "test"}, "watched both")
        assert None not in {request.namespace for request in api[SERVICES]}
    finally:
        await watching.stop()


async def test_an_object_that_cannot_be_served_does_not_stop_the_others(api: Any, watching: Watching) -> None:
    await api.post(SERVICES_URL, json=service_object("poison", uid="u0", version="9", model=7))
    await api.post(SERVICES_URL, json=service_object(version="10"))
    await until(lambda: len(watching.registry.services) == 2, "both known")


class SomeConnection:
    """A connection whose credentials change over time."""

    server = "https://api"

    def __init__(self, *headers: str | None) -> None:
        self._headers = list(headers)

    async def authorization(self) -> str | None:
        return self._headers.pop(0) if len(self._headers) > 1 else self._headers[0]

    def session(self) -> Any:
        return object()


@pytest.mark.parametrize(
    ("headers", "logins"),
    [
        pytest.param(["Bearer 1"], [True, False], id="refused credentials are not used again"),
        pytest.param(["Bearer 1", "Bearer 2"], [True, True], id="a rotated token is used at once"),
        pytest.param(["Bearer 1", "Bearer 1", "Bearer 1", "Bearer 2"], [True, True], id="or when it turns up"),
        pytest.param([None], [True, False], id="a refused client certificate is not used again"),
    ],
)
async def test_a_second_login_needs_other_credentials(headers: list[str | None], logins: list[bool]) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    login = Login(SomeConnection(*headers), sleep=sleep)  # type: ignore[arg-type]
    assert [await login() is not None for _ in logins] == logins
    assert sum(slept) <= 70
