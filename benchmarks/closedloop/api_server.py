"""What the operator's requests reach: one VLLMService, and the Deployments and pods of a simulated cluster.

The same objects as from a real API server, so that the product's own fleet loop can be put in front of them.
Must not: decide, or tell anything that a watch would not bring.
"""

import copy
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from benchmarks.closedloop.cluster import Deployment, SimulatedCluster
from benchmarks.closedloop.pods import GPUS, NAMESPACE, Body, Pod, pod_body
from benchmarks.closedloop.service import Owner
from vllm_autotuner.cluster.adapter import Page
from vllm_autotuner.cluster.errors import Conflict, NotFound
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.cluster.kinds import DEPLOYMENT, NODE, POD, Kind
from vllm_autotuner.control.read.registry import Key, Registry

__all__ = ["ApiServer"]


class ApiServer:
    """Answers as `cluster.adapter.Cluster` does; one writer besides the owner."""

    writes = True

    def __init__(self, owner: Owner, cluster: SimulatedCluster, *, status: Body, gpus: int | None = None) -> None:
        self.status = status
        self._gpus = gpus
        """All that there are; None: nodes come when they are needed, so that what is free now says nothing."""
        self._owner = owner
        self._cluster = cluster
        self._version = 1
        self._others: dict[tuple[str, str], Body] = {}

    def tell(self, registry: Registry) -> None:
        """What the watches bring: everything as it is now, and the end of what is gone."""
        self._version += 1
        registry.services.see(self._service())
        for name, deployment in self._cluster.deployments.items():
            registry.deployments.see(self._deployment(name, deployment))
        for key, view in registry.deployments.views().items():
            if key.name not in self._cluster.deployments:
                registry.deployments.evict(key, uid=view.uid)
        known = set(registry.pods.views())
        for pod in self._cluster.pods:
            if not pod.gone:
                registry.pods.see(pod_body(pod, version=self._version))
                known.discard(Key(NAMESPACE, pod.name))
        for key in known:
            registry.pods.evict(key, uid=key.name)

    async def read_service(self, namespace: str, name: str) -> Body:
        """See Cluster."""
        return self._service()

    async def read(self, kind: Kind, *, namespace: str, name: str) -> Body:
        """See Cluster. What was applied and is not simulated, a Service for one, is there as it was applied."""
        if kind == DEPLOYMENT and (found := self._cluster.deployments.get(name)) is not None:
            return self._deployment(name, found)
        if (body := self._others.get((kind.kind, name))) is not None:
            return body
        raise NotFound(f"there is no {kind.kind} {name}", reason="NotFound")

    async def write_status(self, namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        """See Cluster."""
        if resource_version != str(self._version):
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        self._version += 1
        self.status = copy.deepcopy(status)
        return self._service()

    async def apply(self, body: Body, *, epoch: int) -> Body:
        """See Cluster."""
        self._version += 1
        if body["kind"] != DEPLOYMENT.kind:
            self._others[body["kind"], body["metadata"]["name"]] = body
            return body
        name = body["metadata"]["name"]
        self._cluster.apply(body)
        return self._deployment(name, self._cluster.deployments[name])

    async def delete(self, kind: Kind, *, namespace: str, name: str, **_: Any) -> None:
        """See Cluster."""
        self._cluster.delete(name)

    async def post_event(self, about: Body, event: Event, *, now: datetime) -> None:
        """See Cluster."""

    async def pod_log(self, namespace: str, pod: str, container: str, **cut: Any) -> str:
        """See Cluster."""
        return await self._cluster.pod_log(namespace, pod, container, **cut)

    async def pages(self, kind: Kind, **_: Any) -> AsyncIterator[Page]:
        """See Cluster."""
        if self._gpus is not None:
            objects = {NODE: (_node(self._gpus),), POD: tuple(map(_on_node, self._cluster.pods))}.get(kind, ())
            yield Page(objects=objects, resource_version=str(self._version))

    def _service(self) -> Body:
        return self._owner.body(self.status, version=self._version)

    def _deployment(self, name: str, deployment: Deployment) -> Body:
        live = self._cluster.live(name)
        ready = sum(pod.ready for pod in live)
        metadata = deployment.body["metadata"] | {
            "uid": f"deployment-{name}",
            "generation": deployment.generation,
            "resourceVersion": str(self._version),
        }
        status = {
            "observedGeneration": deployment.generation,
            "replicas": len(live),
            "readyReplicas": ready,
            "updatedReplicas": sum(pod.template == deployment.template for pod in live),
            "availableReplicas": ready,
            "unavailableReplicas": len(live) - ready,
        }
        return {**deployment.body, "metadata": metadata, "status": status}


def _node(gpus: int) -> Body:
    conditions = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "node"}, "status": {"allocatable": {GPUS: str(gpus)}, "conditions": conditions}}


def _on_node(pod: Pod) -> Body:
    container = {"resources": {"limits": {GPUS: str(0 if pod.gone else pod.template.gpus)}}}
    return {
        "metadata": {"namespace": NAMESPACE, "name": pod.name},
        "spec": {"nodeName": "node", "containers": [container]},
        "status": {"phase": "Running"},
    }
