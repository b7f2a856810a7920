"""A fleet of services on a test bed's API server, and the operators beside it.

Apart from the command, which measures, and `troubles`, which hinders. Must not: judge a figure.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import httpx

from benchmarks.fleets.metrics_servers import samples_of
from benchmarks.fleets.played_node import NAME
from e2e import release
from e2e.errors import BedError
from e2e.hostile.cost import Cost, Place
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.stage import Stage, condition, until
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.control.read.interference import wanted_deployment
from vllm_autotuner.control.shard import WHOLE

__all__ = ["HOME", "INTERVAL", "LOOK", "Fleet", "Operator", "fleet_on", "settled"]

HOME: Final = "fleet-home"
"""The namespace of the operator's Lease, and of the one real engine, whose metrics all others repeat."""
LIMITS: Final = "vllm-autotuner-limits"
"""The ConfigMap that the chart has the operator read in each tick."""
PER_NAMESPACE: Final = 25
INTERVAL: Final = 15.0
"""Seconds between ticks: the chart's."""
LOOK: Final = 5.0
"""Seconds between two looks at the operator's metrics, more often than a Prometheus scrapes them: with 10 s, two slow
ticks ended between two looks."""
SERVICES: Final = "/apis/vllm-autotuner.dev/v1alpha1/vllmservices"
PATHS: Final = {
    "VLLMService": "/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
}
CHANGE: Final = {
    "id": "left-behind",
    "generation": 1,
    "knob": "maxNumSeqs",
    "fromValue": "4",
    "toValue": "8",
    "from": {"maxNumSeqs": 4, "configHash": "aaaa"},
    "to": {"maxNumSeqs": 8, "configHash": "bbbb"},
    "target": "TTFT",
    "state": "Analyzing",
    "stateSince": "2026-03-01T12:00:00Z",
}
"""A change as a status has it whose operator is gone. Its canary is gone as well, so that the next one acts on it."""
CREATED_AT_ONCE: Final = 16
PAGE: Final = 500
WRITES: Final = ("POST", "PUT", "PATCH", "APPLY", "DELETE")


@dataclass(slots=True)
class Fleet:
    """The services of one measurement, and what the API server says of them."""

    stage: Stage
    services: int
    engines: float
    """Of each service, in the mean: with 2.5 every other one has two, and three."""
    namespaces: list[str] = field(default_factory=list)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """What each says beyond its replicas."""

    @property
    def all_engines(self) -> int:
        """Those of all services."""
        return int(self.services * self.engines)

    def name_of(self, number: int) -> tuple[str, str]:
        """Namespace and name of a service."""
        return self.namespaces[number // PER_NAMESPACE], f"svc-{number:05}"

    async def create(self) -> None:
        """Create all services at once, as a pipeline does."""
        await self._create(self._service(number) for number in range(self.services))

    async def create_with_pods(self) -> None:
        """Create all services, and what an operator and controllers would make of them: a Deployment each, paused, so
        that no controller acts on it, and its pods on the played node."""
        await self.create()
        made = [parse_service(each) for each in await self.listed(SERVICES)]
        deployments = [
            wanted_deployment(each, VLLMServiceStatus(), None)
            for each in made
            if isinstance(each, VLLMService) and each.metadata.namespace in self.namespaces
        ]
        for each in deployments:
            each["spec"]["paused"] = True
        await self._create(deployments)
        await self._create(pod for each in deployments for pod in _pods_of(each))

    async def _create(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        limit = asyncio.Semaphore(CREATED_AT_ONCE)

        async def one(body: Mapping[str, Any]) -> None:
            namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
            async with limit:
                answer = await self.stage.api.post(PATHS[body["kind"]].format(namespace=namespace), json=body)
            if answer.status_code != httpx.codes.CREATED:
                raise BedError(f"{name}: {answer.json()['message']}")

        await asyncio.gather(*(one(body) for body in bodies))

    def _service(self, number: int) -> dict[str, Any]:
        namespace, name = self.name_of(number)
        replicas = int((number + 1) * self.engines) - int(number * self.engines)
        return vllm_service(namespace, name, replicas=replicas, **self.spec)

    async def listed(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        """Everything of a list, page by page."""
        items: list[dict[str, Any]] = []
        asked = {"limit": str(PAGE), **parameters}
        while True:
            answer = await self.stage.api.get(path, params=asked)
            answer.raise_for_status()
            found = answer.json()
            items += found["items"]
            if not (more := found["metadata"].get("continue")):
                return items
            asked["continue"] = more

    async def with_status(self) -> int:
        """How many services have a status."""
        return sum(bool(each.get("status")) for each in await self.listed(SERVICES))

    async def with_metrics(self) -> int:
        """How many services the operator has metrics of."""
        found = [each.get("status") or {} for each in await self.listed(SERVICES)]
        return sum(condition(status, "MetricsAvailable") == "True" for status in found)

    async def pods(self) -> Mapping[str, list[str]]:
        """The names of its pods that serve, by namespace."""
        found: dict[str, list[str]] = {}
        for pod in await self.listed("/api/v1/pods", fieldSelector=f"spec.nodeName={NAME},status.phase=Running"):
            if pod["metadata"]["namespace"] in self.namespaces:
                found.setdefault(pod["metadata"]["namespace"], []).append(pod["metadata"]["name"])
        return found

    async def leave_a_change(self, number: int) -> object:
        """Write a running change into the status of a service, as the operator that is gone would have; return it as
        the API server has stored it."""
        answer = await self.stage.api.patch(
            f"{self._path_of(number)}/status",
            json={"status": {"activeChange": CHANGE}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        answer.raise_for_status()
        return answer.json()["status"]["activeChange"]

    async def change_of(self, number: int) -> object:
        """The running change of a service, None without one."""
        return ((await self.stage.get(self._path_of(number))).get("status") or {}).get("activeChange")

    def _path_of(self, number: int) -> str:
        namespace, name = self.name_of(number)
        return f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices/{name}"

    async def transitions(self) -> int:
        """The number of the operator's Lease, a larger one whenever it changes hands; numbers are left out."""
        lease = await self.stage.get(f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/{release.RELEASE}")
        return int(lease["spec"].get("leaseTransitions") or 0)

    async def writes(self) -> int:
        """How many writes of VLLMServices the API server has answered: those of their status are the operator's."""
        page = (await self.stage.api.get("/metrics")).text
        return sum(
            round(sample.value)
            for sample in samples_of(page)
            if sample.name == "apiserver_request_total"
            and sample.labels.get("resource") == "vllmservices"
            and sample.labels.get("subresource") == "status"
            and sample.labels.get("verb") in WRITES
        )


def _pods_of(deployment: Mapping[str, Any]) -> list[dict[str, Any]]:
    template, of = deployment["spec"]["template"], deployment["metadata"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"] | {"name": f"{of['name']}-{number}", "namespace": of["namespace"]},
            "spec": template["spec"] | {"nodeName": NAME},
        }
        for number in range(deployment["spec"]["replicas"])
    ]


async def fleet_on(
    stage: Stage, *, services: int, engines: float, shards: int = 1, of: Callable[[str], bool] = WHOLE.has
) -> Fleet:
    """The fleet to come: its namespaces, of those that `of` allows, and the rights of its operators over all."""
    fleet = Fleet(stage=stage, services=services, engines=engines)
    names = filter(of, (f"fleet-{number:03}" for number in count()))
    fleet.namespaces = list(islice(names, (services - 1) // PER_NAMESPACE + 1))
    for namespace in fleet.namespaces:
        await asyncio.to_thread(stage.bed.create_namespace, namespace)
    await asyncio.to_thread(release.install_account, stage.bed, namespace=HOME, everywhere=True, shards=shards)
    stage.everywhere = True
    return fleet


@dataclass(slots=True)
class Operator:
    """The operator's process of a stage, started with these arguments."""

    stage: Stage
    prometheus: str
    port: int = 0

    def start(self, *arguments: str) -> None:
        """Start it, over all namespaces."""
        (self.port,) = free_ports(1)
        self.stage.start_operator(
            "--prometheus-url", self.prometheus, "--listen-address", f"127.0.0.1:{self.port}",
            "--limits-configmap", LIMITS, "--interval", f"{INTERVAL:g}s", "--window", "60s", *arguments,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process."""
        return self.stage.bed.processes.identity(self.stage.operator).pid

    async def place(self) -> Place:
        """Where it is watched."""
        return Place(pid=self.pid, metrics=f"http://127.0.0.1:{self.port}/metrics")


async def settled(cost: Cost, *, ticks: int) -> None:
    """Wait for the end of so many ticks."""
    wanted = cost.ticks + ticks
    await until("ticks", lambda: cost.ticks >= wanted, seconds=600)
