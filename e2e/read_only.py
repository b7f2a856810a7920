"""A pilot that only looks (chart value `rbac.readOnly`), on the real API server with the chart's own rights and flags.

The operator stands behind a proxy that tells every request: none is a write, none is forbidden, and each right that the
chart grants is one that was used. `make read-only` lets it run for ten minutes and prints what it did; a test has it
shorter. Must not: give the operator a right or a flag that its chart does not.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx
from aiohttp import web

from e2e import release
from e2e.api_proxy import WRITES, ApiProxy
from e2e.bed import Bed, import_path
from e2e.errors import BedError
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.side_by_side import CROWD, TALK
from e2e.stage import SIMULATED_ENGINE, NotSeen, Stage, names_of, plain_client, until
from e2e.test_adoption import deployment

SECONDS: Final = 300.0
MOST_MINUTES: Final = 24 * 60
TICKS: Final = 10
"""After all has been seen."""
Right = tuple[str, str, str]
"""Group, resource with its subresource, verb."""
Heard = tuple[str, int, Right | None]
"""Method, status of the answer, and the right that it takes."""


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
        self.heard: list[Heard] = []

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
                # Not longer: the proxy answers nothing while this process waits here.
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
        async with plain_client() as client:
            return (await client.get(f"http://{self.address}/metrics")).text

    async def holding(self) -> str:
        """Its page, once it tells of a recommendation that is held; empty before."""
        page = await self.page()
        return page if "vllm_autotuner_held_recommendations{" in page else ""

    async def ticks(self) -> int:
        done = 'vllm_autotuner_ticks_total{outcome="Done"} '
        [line] = [line for line in (await self.page()).splitlines() if line.startswith(done)]
        return int(float(line.removeprefix(done)))

    def requests(self) -> Mapping[str, int]:
        """How many there were, by what a role calls them."""
        return Counter(right[2] if right is not None else "others" for _, _, right in self.heard)

    def writes(self) -> list[Heard]:
        return [heard for heard in self.heard if heard[0] in WRITES]

    def forbidden(self) -> list[Heard]:
        return [heard for heard in self.heard if heard[1] == httpx.codes.FORBIDDEN]

    def used(self) -> set[Right]:
        return {right for _, _, right in self.heard if right is not None}


def adopting(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    body = vllm_service(namespace, name)
    body["spec"] = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "objectives": {"profile": "Latency", "ttft": {"target": "500ms"}, "tpot": {"target": "200ms"}},
        "tuning": {"mode": "Automatic", "maxNumSeqs": {"min": 2, "max": 8}},
        **spec,
    }
    return body


@asynccontextmanager
async def opened(bed: Bed, namespace: str) -> AsyncIterator[Pilot]:
    """The chart with rbac.readOnly, for the whole cluster as by default; its process is not started yet."""
    async with Stage(bed, namespace) as stage:
        values = {"rbac": {"readOnly": True}, "interval": "1s", "window": "6s"}
        objects = release.render(bed, namespace=namespace, values=values)
        # Over what the stage has installed, as `helm upgrade --set rbac.readOnly=true` would.
        bed.apply([each for each in objects if each["kind"] != "Deployment"], server_side=True)
        yield Pilot(stage, objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run came to."""

    seconds: float
    ticks: int
    requests: Mapping[str, int]
    writes: int
    forbidden: int
    recommends: str

    def told(self) -> str:
        """In a line."""
        verbs = ", ".join(f"{count} {verb}" for verb, count in sorted(self.requests.items()))
        return (
            f"{self.seconds:.0f} s, {self.ticks} ticks, {sum(self.requests.values())} requests ({verbs}), "
            f"{self.writes} writes, {self.forbidden} Forbidden; it recommends {self.recommends}"
        )


async def looks_on(pilot: Pilot, *, seconds: float = 0.0) -> Figures:
    """Let it run among services that it would change, so many seconds at least, and check that it touched nothing."""
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
        began = time.monotonic()
        # While the crowd is still coming, a busy machine sees another queue at first, and advises something else.
        recommended: str = await until(
            "maxNumSeqs 4 -> 8 recommended in the log", lambda: _eight(pilot.recommends("busy")), seconds=SECONDS
        )
        wanted = set(granted(pilot.objects))
        with suppress(NotSeen):  # told below, with what is missing
            await until("each right is used", lambda: wanted <= pilot.used(), seconds=SECONDS)
        seen = await pilot.ticks()
        await until(f"{TICKS} ticks more", lambda: _is_at(pilot, seen + TICKS), seconds=SECONDS)
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        # On a busy machine a recommendation may go for a moment.
        page: str = await until("the metrics tell that it is held", pilot.holding, seconds=SECONDS)
        lasted, ticks = time.monotonic() - began, await pilot.ticks()
    assert pilot.writes() == [], f"it wrote: {pilot.writes()[:3]}"
    assert pilot.forbidden() == [], f"it may not: {pilot.forbidden()[:3]}"
    assert pilot.used() == wanted, f"not used, or not granted: {pilot.used() ^ wanted}"
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 0.0' in page
    assert "vllm_autotuner_writes_total{" not in page
    for name, version in before.items():
        body = await stage.service(name)
        assert (body["metadata"]["resourceVersion"], body.get("status")) == (version, None)
        told = [each for each in await stage.events(name) if each["regarding"]["kind"] == "VLLMService"]
        assert told == [], told
    deployments = await stage.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    assert sorted(names_of(deployments["items"])) == ["broken", "busy"]
    assert {each["metadata"]["generation"] for each in deployments["items"]} == {1}
    leases = await stage.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    assert leases["items"] == []
    return Figures(
        seconds=lasted,
        ticks=ticks,
        requests=pilot.requests(),
        writes=len(pilot.writes()),
        forbidden=len(pilot.forbidden()),
        recommends=recommended,
    )


def _eight(recommended: str) -> str:
    """What is recommended, if it is that; else empty."""
    return recommended if "maxNumSeqs 4 -> 8" in recommended else ""


async def _is_at(pilot: Pilot, ticks: int) -> bool:
    return await pilot.ticks() >= ticks


async def _run(seconds: float) -> Figures:
    async with Bed(images=[SIMULATED_ENGINE]) as bed:
        bed.create_namespace("pilot")
        async with opened(bed, "pilot") as pilot:
            return await looks_on(pilot, seconds=seconds)


def main() -> int:
    """Run it on a bed of its own, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m e2e.read_only", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the operator runs (default 10)")
    options = parser.parse_args()
    if not 0 < options.minutes <= MOST_MINUTES:
        parser.error(f"--minutes {options.minutes:g}: write a number above 0, of at most {MOST_MINUTES}")
    try:
        print(f"read-only: {asyncio.run(_run(options.minutes * 60)).told()}")
    except (BedError, AssertionError) as error:
        print(f"read-only: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
