"""Full lists of the watched kinds: one fills the registry before the first tick, later ones find missed deletions.

Apart from the watches in `run.handlers`, because kopf reports neither that its first list is complete nor what was
deleted while it was disconnected (after `410 Gone` it lists again without comparing).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError, Conflict
from vllm_autotuner.cluster.kinds import DEPLOYMENT, POD, VLLM_SERVICE, Kind
from vllm_autotuner.control.read.registry import Registry, Shelf
from vllm_autotuner.workload.labels import MANAGED_SELECTOR

logger = logging.getLogger(__name__)

SELECTORS: Final[dict[Kind, str]] = {VLLM_SERVICE: "", DEPLOYMENT: MANAGED_SELECTOR, POD: MANAGED_SELECTOR}
"""What is watched of each kind. Users' own Deployments and pods are not ours to hold in memory."""

_ATTEMPTS: Final = 3
"""A list of a huge fleet can expire between two pages (410); it then starts again."""


async def fill(registry: Registry, cluster: Cluster, *, namespaces: Sequence[str]) -> None:
    """List everything into the registry and mark it synced. Raises ClusterError."""
    for kind, shelf in _shelves(registry):
        for namespace in _scopes(namespaces):
            await _fill_one(shelf, cluster, kind=kind, namespace=namespace)
    registry.synced = True


async def sweep(registry: Registry, cluster: Cluster, *, namespaces: Sequence[str]) -> int:
    """Forget what no longer exists; return how many objects that were. Raises ClusterError."""
    forgotten = 0
    for kind, shelf in _shelves(registry):
        for namespace in _scopes(namespaces):
            alive: set[str] = set()
            as_of = ""
            async for page in cluster.pages(kind, namespace=namespace, selector=SELECTORS[kind], metadata_only=True):
                alive |= {each["metadata"]["uid"] for each in page.objects}
                as_of = as_of or page.resource_version
            vanished = shelf.sweep(namespace=namespace, alive=alive, as_of=as_of)
            for key in vanished:
                logger.info(
                    "removed object, the watch missed its deletion", extra={"kind": kind.kind, "key": "/".join(key)}
                )
            forgotten += len(vanished)
    return forgotten


async def sweep_regularly(
    registry: Registry,
    cluster: Cluster,
    *,
    namespaces: Sequence[str],
    interval: timedelta,
    report: Callable[[int], None],
    stop: asyncio.Event,
) -> None:
    """Sweep every `interval` until `stop`. A failed sweep is made up for by the next."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(interval.total_seconds()):
                await stop.wait()
        except TimeoutError:
            try:
                report(await sweep(registry, cluster, namespaces=namespaces))
            except ClusterError as error:
                logger.warning("sweep failed", extra={"error": str(error)})


async def _fill_one(shelf: Shelf[Any], cluster: Cluster, *, kind: Kind, namespace: str | None) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            async for page in cluster.pages(kind, namespace=namespace, selector=SELECTORS[kind]):
                for each in page.objects:
                    shelf.see(each)
            return
        except Conflict:
            if attempt == _ATTEMPTS:
                raise


def _shelves(registry: Registry) -> tuple[tuple[Kind, Shelf[Any]], ...]:
    return (VLLM_SERVICE, registry.services), (DEPLOYMENT, registry.deployments), (POD, registry.pods)


def _scopes(namespaces: Sequence[str]) -> Sequence[str | None]:
    return namespaces or (None,)
