"""A pilot that only looks (chart value `rbac.readOnly`), on the real API server with the chart's own rights and flags.

The operator stands behind a proxy that tells every request: none is a write, none is forbidden, and each right that the
chart grants is one that was used.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from e2e import release
from e2e.api_proxy import WRITES, ApiProxy
from e2e.bed import Bed, import_path
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.side_by_side import CROWD, TALK
from e2e.stage import NotSeen, Stage, names_of, until
from e2e.test_adoption import deployment

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS: Final = 120.0
TICKS: Final = 10
"""After all has been seen."""
Right = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


def right_for(request: web.Request) -> Right | None:
    """What a role must grant for this request; None where everybody may send it."""
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else ("".join(parts[1:2]), parts[3:])
    if rest[:1] == ["namespaces"]:
        rest = rest[2:]
    if not rest:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    verb = "watch" if "watch" in request.query else "get" if name else "list"
    verb = verb if request.method == "GET" else request.method.lower()
    return group, f"{plural}/{subresource}" if subresource else plural, verb


def granted(objects: list[dict[str, Any]]) -> Iterator[Right]:
    for role in objects:
        if role["kind"] in ("Role", "ClusterRole") and not role["metadata"]["name"].endswith(("-view", "-edit")):
            for rule in role["rules"]:
                yield from (
                    (group, resource, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                )


class Pilot:
    """The chart's operator as a process, with its flags, its rights, and a proxy between it and the API server."""

    def __init__(self, stage: Stage, objects: list[dict[str, Any]]) -> None:
        self.stage = stage
        self.objects = objects
        self.name = f"pilot-{stage.namespace}"
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.heard: list[tuple[str, int, Right | None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        bed = self.stage.bed
        [container] = next(each for each in self.objects if each["kind"] == "Deployment")["spec"]["template"]["spec"][
            "containers"
        ]

        def answered(request: web.Request, status: int) -> None:
            self.heard.append((request.method, status, right_for(request)))

        async with ApiProxy(api_url=bed.api_url, ca_file=bed.ca_file, answered=answered) as proxy:
            kubeconfig = proxy.kubeconfig(self.stage.kubeconfig)
            more = ["--kubeconfig", str(kubeconfig), "--listen-address", self.address]
            bed.processes.start(
                self.name,
                [sys.executable, "-m", "vllm_autotuner", *container["args"], *more],
                environment=os.environ | {"PYTHONPATH": import_path()},
            )
            try:
                yield
            finally:
                bed.processes.stop(self.name, grace=10)

    def log(self) -> list[dict[str, Any]]:
        text = self.stage.bed.processes.log(self.name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def recommends(self, service: str) -> str:
        """What the log says that would be recommended."""
        about = f"{self.stage.namespace}/{service}"
        found = [each for each in self.log() if (each.get("service"), each.get("reason")) == (about, "Recommended")]
        return str(found[-1]["note"]) if found else ""

    async def page(self) -> str:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://{self.address}/metrics")).text

    async def ticks(self) -> int:
        done = 'vllm_autotuner_ticks_total{outcome="Done"} '
        [line] = [line for line in (await self.page()).splitlines() if line.startswith(done)]
        return int(float(line.removeprefix(done)))

    def used(self) -> set[Right]:
        return {right for _, _, right in self.heard if right is not None}


@pytest_asyncio.fixture(loop_scope="session")
async def pilot(bed: Bed, engines: None, namespace: str) -> AsyncIterator[Pilot]:
    """The chart with rbac.readOnly, for the whole cluster as by default; its process is not started yet."""
    async with Stage(bed, namespace) as stage:
        values = {"rbac": {"readOnly": True}, "interval": "1s", "window": "6s"}
        objects = release.render(bed, namespace=namespace, values=values)
        # Over what the stage has installed, as `helm upgrade --set rbac.readOnly=true` would.
        bed.apply([each for each in objects if each["kind"] != "Deployment"], server_side=True)
        yield Pilot(stage, objects)


def adopting(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    body = vllm_service(namespace, name)
    body["spec"] = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "objectives": {"profile": "Latency", "ttft": {"target": "500ms"}, "tpot": {"target": "200ms"}},
        "tuning": {"mode": "Automatic", "maxNumSeqs": {"min": 2, "max": 8}},
        **spec,
    }
    return body


async def test_a_read_only_operator_recommends_in_its_log_writes_nothing_and_is_forbidden_nothing(
    pilot: Pilot,
) -> None:
    stage, namespace = pilot.stage, pilot.stage.namespace
    stage.selectors["busy"] = "app=busy"
    broken = deployment("broken")
    broken["spec"]["template"]["spec"]["containers"][0]["args"] = ["--no-such-flag"]
    for body in (deployment("busy"), broken):
        body["metadata"]["namespace"] = namespace
        stage.apply(body)
    stage.apply(
        adopting(namespace, "busy", scaling={"minReplicas": 1, "maxReplicas": 2}),
        adopting(namespace, "broken"),
        vllm_service(namespace, "wanted"),
    )
    await until("busy serves", lambda: stage.ready_pods("busy"), seconds=SECONDS)
    await stage.load_on("busy", clients=CROWD, traffic=TALK)
    before = {name: (await stage.service(name))["metadata"]["resourceVersion"] for name in ("busy", "broken", "wanted")}
    async with pilot.running():
        await until("a recommendation in the log", lambda: pilot.recommends("busy"), seconds=SECONDS)
        assert "maxNumSeqs 4 -> 8" in pilot.recommends("busy")
        wanted = set(granted(pilot.objects))
        with suppress(NotSeen):  # told below, with what is missing
            await until("each right is used", lambda: wanted <= pilot.used(), seconds=SECONDS)
        seen = await pilot.ticks()
        await until(f"{TICKS} ticks more", lambda: _is_at(pilot, seen + TICKS), seconds=SECONDS)
        page = await pilot.page()
    assert [heard for heard in pilot.heard if heard[0] in WRITES] == []
    assert [heard for heard in pilot.heard if heard[1] == httpx.codes.FORBIDDEN] == []
    assert pilot.used() == wanted
    assert "vllm_autotuner_held_recommendations{" in page
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 0.0' in page
    assert "vllm_autotuner_writes_total{" not in page
    for name, version in before.items():
        body = await stage.service(name)
        assert (body["metadata"]["resourceVersion"], body.get("status")) == (version, None)
        told = [each for each in await stage.events(name) if each["regarding"]["kind"] == "VLLMService"]
        assert told == []
    deployments = await stage.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    assert sorted(names_of(deployments["items"])) == ["broken", "busy"]
    assert {each["metadata"]["generation"] for each in deployments["items"]} == {1}
    leases = await stage.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    assert leases["items"] == []


async def _is_at(pilot: Pilot, ticks: int) -> bool:
    return await pilot.ticks() >= ticks
