"""How many GPUs are free for a service: one list of nodes, pods and quotas for the whole fleet, on demand.

A list and not a watch: pods that hold devices carry no label of the operator, a watch of every pod in the cluster would
cost memory and events all day, and the answer is needed only when a change is about to be proposed. A failed read makes
the number unknown, and the change is proposed without it: a trial that finds no GPU ends without harm.
Must not: decide, write, or raise.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.budgets import READ_TICK_SECONDS
from vllm_autotuner.cluster.adapter import Cluster, Object
from vllm_autotuner.cluster.bounded_json import is_cut
from vllm_autotuner.cluster.errors import FORBIDDEN, ClusterError, Refused
from vllm_autotuner.cluster.kinds import NODE, POD, RESOURCE_QUOTA, Kind
from vllm_autotuner.control.read.gpu_views import (
    HeldDevices,
    NodeView,
    devices_left,
    gpu_resource,
    held_devices,
    node_view,
    products,
)
from vllm_autotuner.planning.placement import FreeGpus, GpuNode, admitting, free_gpus_on

__all__ = ["LOOK_EVERY", "FreeGpuLookup"]

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = timedelta(seconds=60)
"""How long an answer is used. A list of 10,000 pods costs the API server and us about a second; GPUs come and go with
pods of large models, which take minutes. Our choice, unmeasured."""

ON_NODES: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The pods that hold what they ask for."""

_Where = tuple[str, frozenset[tuple[str, str]], tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The cluster's devices at one moment."""

    nodes: tuple[NodeView, ...] = ()
    pods: Mapping[tuple[str, str], HeldDevices] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By resource and node."""
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What quotas leave, by namespace and resource."""
    open: dict[_Where, tuple[GpuNode, ...]] = field(default_factory=dict)
    """Which nodes take pods that ask for the same: services of one kind share the answer."""


class FreeGpuLookup:
    """What was last seen of the cluster's devices."""

    def __init__(
        self, cluster: Cluster, *, enabled: bool, monotonic: Callable[[], float], beat: Callable[[], None]
    ) -> None:
        """`beat` is called after each page that was read."""
        self._cluster = cluster
        self._enabled = enabled
        self._monotonic = monotonic
        self._beat = beat
        self._seen: _Seen | None = None
        self._looked_at: datetime | None = None
        self._reading: AsyncIterator[_Seen | None] | None = None
        """A look that a tick had no time to end."""
        self._page: asyncio.Future[_Seen | None] | None = None
        """The page of it that had not come."""
        self._out_of_time = False
        self._told = ""

    def begin_tick(self) -> None:
        """Give the tick that begins its whole budget. A look that the last one did not go on with is forgotten."""
        if not self._out_of_time:
            self._reading = None
            if self._page is not None:
                self._page.cancel()
                self._page = None
        self._out_of_time = False

    def is_due(self, now: datetime) -> bool:
        """Whether the last answer is too old, and this tick has time for another one."""
        return self._enabled and not self._out_of_time and self._is_old(now)

    def _is_old(self, now: datetime) -> bool:
        # Also where it is of a time before the clock was set back.
        return self._looked_at is None or abs(now - self._looked_at) >= LOOK_EVERY

    async def look(self, now: datetime) -> None:
        """Read everything, as far as this tick has time for it; the next look goes on there, and the last answer holds.

        A failed read makes the free GPUs unknown until the next look.
        """
        until = self._monotonic() + READ_TICK_SECONDS.limit
        reading, self._reading = self._reading or self._read(), None
        try:
            seen = None
            while seen is None:
                # One page may take as long as a list may: it goes on while the tick does.
                page, self._page = self._page or asyncio.ensure_future(anext(reading)), None
                await asyncio.wait({page}, timeout=max(0.0, until - self._monotonic()))
                self._beat()
                if not page.done() or (page.result() is None and self._monotonic() > until):
                    READ_TICK_SECONDS.exceeded()
                    self._reading, self._page, self._out_of_time = reading, None if page.done() else page, True
                    return
                seen = page.result()
            self._seen, self._looked_at, self._told = seen, now, ""
        except ClusterError as error:
            self._seen, self._looked_at = None, now
            if self._told != error.reason:
                self._told = error.reason
                forbidden = isinstance(error, Refused) and error.status == FORBIDDEN
                logger.warning("failed to look up free GPUs", extra={"error": str(error), "forbidden": forbidden})

    def of(self, service: VLLMService, pods: Iterable[str], *, now: datetime) -> FreeGpus | None:
        """Return the GPUs that are free for more pods like those of the service; None when unknown.

        `pods`: the names of its own pods. The requested resources are read from them.
        """
        if self._seen is None or (self._is_old(now) and self._reading is None):
            return None
        return _free_gpus_of(self._seen, service, pods)

    async def _read(self) -> AsyncIterator[_Seen | None]:
        """Yield None after each page, and at the end what was seen."""
        nodes: list[NodeView] = []
        async for bodies in self._pages(NODE):
            nodes += [view for body in bodies if (view := node_view(body)) is not None]
            yield None
        if not nodes:
            yield _Seen()
            return
        pods: dict[tuple[str, str], HeldDevices] = {}
        held: dict[str, dict[str, int]] = {}
        left: dict[str, dict[str, int]] = {}
        async for bodies in self._pages(POD, fields=ON_NODES):
            for pod in filter(None, map(held_devices, bodies)):
                pods[pod.namespace, pod.name] = pod
                for resource, count in pod.devices.items():
                    of_node = held.setdefault(resource, {})
                    of_node[pod.node] = of_node.get(pod.node, 0) + count
            yield None
        async for bodies in self._pages(RESOURCE_QUOTA):
            for body in bodies:
                of_namespace = left.setdefault(body["metadata"]["namespace"], {})
                for resource, count in devices_left(body).items():
                    of_namespace[resource] = min(count, of_namespace.get(resource, count))
            yield None
        yield _Seen(nodes=tuple(nodes), pods=pods, held=held, left=left)

    async def _pages(self, kind: Kind, *, fields: str = "") -> AsyncIterator[Sequence[Object]]:
        """All of a kind but those that are too large: what such a pod holds is not known, and costs nobody else."""
        async for page in self._cluster.pages(kind, fields=fields):
            yield [body for body in page.objects if not is_cut(body)]


def _free_gpus_of(seen: _Seen, service: VLLMService, names: Iterable[str]) -> FreeGpus | None:
    namespace, accelerator = service.metadata.namespace, service.spec.accelerator
    own = [pod for name in names if (pod := seen.pods.get((namespace, name))) is not None]
    if not own:
        return None
    like = own[0]
    asked_for = accelerator.resource_name if accelerator is not None else None
    resource = gpu_resource(like.devices, asked_for=asked_for)
    if resource is None:
        return None
    nodes = _open_to(seen, like, resource)
    home = {pod.node for pod in own}
    views = [view for view in seen.nodes if view.name in home]
    if not nodes or any(view.on_demand for view in views):
        # No node although pods run contradicts itself; and where nodes are added on demand, none need be free.
        return None
    mine: dict[str, int] = {}
    for pod in own:
        mine[pod.node] = mine.get(pod.node, 0) + pod.devices.get(resource, 0)
    return replace(
        free_gpus_on(nodes, held=seen.held.get(resource, {}), own=mine),
        devices=like.devices[resource],
        quota=seen.left.get(namespace, {}).get(resource),
        product=products(views),
    )


def _open_to(seen: _Seen, pod: HeldDevices, resource: str) -> tuple[GpuNode, ...]:
    where = (resource, frozenset(pod.selector.items()), pod.tolerations)
    if where not in seen.open:
        nodes = (view.with_devices(resource) for view in seen.nodes if resource in view.allocatable)
        seen.open[where] = admitting(nodes, selector=pod.selector, tolerations=pod.tolerations)
    return seen.open[where]
