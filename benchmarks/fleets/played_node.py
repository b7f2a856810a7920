"""A node of the real control plane whose pods are only played: each is Running and ready as soon as it is scheduled.

It stands in for a cluster of GPU servers, which no machine of a test has. The objects and everything else that acts on
them (scheduler, controllers, the operator) are real.
Must not: run anything, or answer for a container's log.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from e2e.agent.api import ApiClient, ApiError, ConnectionFailed, until_answered
from e2e.agent.node import Node
from e2e.agent.objects import Object, uid_of, utc_now
from e2e.agent.status import ContainerView, PodView, Running, pod_status

NAME: Final = "played"
ADDRESS: Final = "127.0.0.1"
WRITERS: Final = 8
"""Requests at a time: as a few kubelets would send."""
GPUS: Final = 100_000
SERVERS: Final = {"cpu": "1M", "memory": "8Pi", "ephemeral-storage": "8Pi", "pods": str(GPUS)}
"""Of many servers: more pods than a kubelet takes."""

logger = logging.getLogger(__name__)


class PlayedPods:
    """Follows the pods of the node (a `Follower`) and says of each that it runs."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._started: set[str] = set()
        self._queue: asyncio.Queue[Object] = asyncio.Queue()

    def replace(self, items: list[Object]) -> None:
        """See `Follower`."""
        for item in items:
            self._queue.put_nowait(item)

    def apply(self, kind: str, item: Object) -> None:
        """See `Follower`."""
        if kind != "DELETED":
            self._queue.put_nowait(item)

    async def write(self) -> None:
        """Write statuses for ever."""
        while True:
            item = await self._queue.get()
            try:
                await self._write(item)
            except (ApiError, *ConnectionFailed) as error:
                logger.info("pod is not written: %r", error)

    async def _write(self, pod: Object) -> None:
        meta, uid = pod["metadata"], uid_of(pod)
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            await until_answered(lambda: self._api.delete(path, body), fine=(404, 409))
        elif uid not in self._started:
            self._started.add(uid)
            status = _running(pod, address=_address(len(self._started)))
            body = {"metadata": {"uid": uid}, "status": status}
            await until_answered(lambda: self._api.patch(f"{path}/status", body), fine=(404, 409))


def _running(pod: Object, *, address: str) -> Object:
    now = utc_now()
    containers = [
        ContainerView(
            name=each["name"], image=each["image"], state=Running(started_at=now), ready=True, started=True,
            container_id=f"played://{uid_of(pod)}",
        )
        for each in pod["spec"]["containers"]
    ]  # fmt: skip
    view = PodView(
        restart_policy="Always", init=[], main=containers, pod_ip=address, host_ip=ADDRESS, started_at=now, ended=False
    )
    former = pod.get("status", {}).get("conditions") or []
    return pod_status(view, former=former, gates=[], now=now)


def _address(number: int) -> str:
    """An address of its own for each pod, out of 10.128.0.0/9."""
    return f"10.{128 + number // 65_536}.{number // 256 % 256}.{number % 256}"


@asynccontextmanager
async def played_node(kubeconfig: Path) -> AsyncIterator[None]:
    """Have the node, its heartbeats and its pods while the context lasts."""
    async with ApiClient(kubeconfig) as api:
        node = Node(NAME, api=api, ip=ADDRESS, server_port=1, gpus=GPUS, capacity=SERVERS)
        pods = PlayedPods(api)
        await until_answered(node.register)
        tasks = [
            asyncio.create_task(node.run()),
            asyncio.create_task(api.follow("/api/v1/pods", pods, selector=f"spec.nodeName={NAME}")),
            *(asyncio.create_task(pods.write()) for _ in range(WRITERS)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
