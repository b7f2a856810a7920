"""The Node object: registration, status with every heartbeat, and the Lease.

Apart from `pods`: a node whose pods are in trouble still has to say that it is alive.
Must not: remove taints; the controller manager takes `not-ready` away when it sees Ready.
The status is posted every time: once a node was marked Unknown, a renewed Lease alone does not make it Ready again.
"""

import asyncio
import logging
import platform
import uuid
from collections.abc import Mapping
from typing import Final

from e2e.agent.api import MERGE, ApiClient, ApiError, ConnectionFailed
from e2e.agent.objects import Object, rfc3339, rfc3339_micro, utc_now

HEARTBEAT_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 40
GPU: Final = "nvidia.com/gpu"
OWN_LABEL: Final = "vllm-autotuner.dev/process-node"
"""Selects this node where fake nodes stand beside it."""

# A GPU server, whatever the machine is: manifests ask for what vLLM needs, and nothing here enforces it.
SERVER: Final[Mapping[str, str]] = {"cpu": "256", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": "500"}
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}

logger = logging.getLogger(__name__)


class Node:
    """This node at the API server."""

    def __init__(
        self,
        name: str,
        *,
        api: ApiClient,
        ip: str,
        server_port: int,
        gpus: int,
        capacity: Mapping[str, str] = SERVER,
    ) -> None:
        self.name = name
        self._api = api
        self._ip = ip
        self._server_port = server_port
        self._capacity = {**capacity, **({GPU: str(gpus)} if gpus else {})}
        self._version = "v0.0.0"
        self._ready_since = rfc3339(utc_now())
        self._uid = ""

    async def register(self) -> None:
        """Create the Node, or take over the one that is there, and report it Ready. Raises as any request does."""
        self._version = (await self._api.get("/version"))["gitVersion"]
        node: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": node_labels(self.name, gpus=self._capacity.get(GPU))},
            "spec": {},
        }
        try:
            node = await self._api.post("/api/v1/nodes", node)
        except ApiError as error:
            if error.code != 409:
                raise
            node = await self._api.patch(f"/api/v1/nodes/{self.name}", {"metadata": node["metadata"]}, kind=MERGE)
        self._uid = node["metadata"]["uid"]
        await self._beat()

    async def run(self) -> None:
        """Send heartbeats for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._beat()
            except (ApiError, *ConnectionFailed) as error:
                logger.warning("heartbeat failed: %r", error)
                if isinstance(error, ApiError) and error.code == 404:
                    await self._register_again()

    async def _register_again(self) -> None:
        try:
            await self.register()
        except (ApiError, *ConnectionFailed) as error:
            logger.warning("the node is gone and cannot be registered again: %r", error)

    async def _beat(self) -> None:
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": self._status()})
        await self._renew_lease()

    async def _renew_lease(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": "kube-node-lease",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}],
            },
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": rfc3339_micro(utc_now()),
            },
        }
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        try:
            await self._api.patch(f"{leases}/{self.name}", lease, kind=MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            await self._api.post(leases, lease)

    def _status(self) -> Object:
        now = rfc3339(utc_now())
        conditions = [
            {"type": kind, "status": "False", "reason": f"KubeletHas{amount}", "message": "not measured"}
            for kind, amount in (
                ("MemoryPressure", "SufficientMemory"),
                ("DiskPressure", "NoDiskPressure"),
                ("PIDPressure", "SufficientPID"),
            )
        ]
        conditions.append(
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "process node is posting ready status",
            }
        )
        return {
            "capacity": self._capacity,
            "allocatable": self._capacity,
            "conditions": [
                each | {"lastHeartbeatTime": now, "lastTransitionTime": self._ready_since} for each in conditions
            ],
            # No Hostname: the API server would try to resolve it to read logs.
            "addresses": [{"type": "InternalIP", "address": self._ip}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server_port}},
            "nodeInfo": {
                "machineID": uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex,
                "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name)),
                "bootID": str(uuid.uuid5(uuid.NAMESPACE_DNS, self._ready_since)),
                "kernelVersion": platform.release(),
                "osImage": "process node",
                "containerRuntimeVersion": "process://1.0.0",
                "kubeletVersion": self._version,
                "kubeProxyVersion": self._version,
                "operatingSystem": "linux",
                "architecture": _architecture(),
            },
        }


def node_labels(name: str, *, gpus: str | None) -> Mapping[str, str]:
    """Return the labels; those of the GPUs are what NVIDIA's feature discovery sets on an H100 server."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        OWN_LABEL: "true",
    }
    if gpus:
        labels |= {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.memory": "81559",
            "nvidia.com/gpu.count": gpus,
        }
    return labels


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
