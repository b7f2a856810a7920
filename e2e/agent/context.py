"""What surrounds a pod and its containers: the node's parts, and what the containers of one pod share.

Must not: decide or start anything; these are values that are handed down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from e2e.agent.api import ApiClient, ApiError
from e2e.agent.backoff import BackOff
from e2e.agent.environment import PodFacts, Source
from e2e.agent.events import EventRecorder
from e2e.agent.images import ImageTable
from e2e.agent.objects import Object
from e2e.agent.volumes import Volumes
from e2e.network import Network, PodNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The node as a pod sees it."""

    api: ApiClient
    http: aiohttp.ClientSession
    """For probes."""
    events: EventRecorder
    images: ImageTable
    network: Network
    back_off: BackOff
    folder: Path
    kept: Sequence[str]
    """Folders that no volume may hide: the interpreter, the checkout, the node's data."""

    async def read(self, namespace: str, source: Source) -> Object | None:
        """Read a ConfigMap or Secret. None when there is none."""
        kind, name = source
        try:
            return await self.api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise


@dataclass(slots=True, kw_only=True)
class PodContext:
    """One pod as its containers see it; `pod` is replaced whenever the API object changes."""

    node: NodeContext
    pod: Object
    folder: Path
    volumes: Volumes
    changed: Callable[[], None]
    """Tells the worker that the status may be different now."""
    network: PodNetwork | None = None
    variables: Mapping[str, str] | None = None
    """Environment of every container: how to reach the API server."""

    @property
    def facts(self) -> PodFacts:
        """Return what the downward API may say now."""
        return PodFacts(pod=self.pod, pod_ip=self.ip, host_ip=self.node.network.node_ip)

    @property
    def ip(self) -> str:
        """Return the pod's address, empty before it has one."""
        return self.network.ip if self.network else ""

    def emit(self, *, kind: str, reason: str, message: str, container: str = "") -> None:
        """Say something about the pod in an event."""
        self.node.events.emit(self.pod, kind=kind, reason=reason, message=message, container=container)
