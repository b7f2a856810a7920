"""Reading one VLLMService, or the Deployment that it names, for a command: no writes, no lease, errors in one line."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_autotuner.cli.errors import CommandError

if TYPE_CHECKING:
    from vllm_autotuner.cluster.adapter import Cluster

__all__ = ["read_deployment", "read_service"]


async def read_service(namespace: str, name: str, *, kubeconfig: Path | None) -> Mapping[str, Any]:
    """Return the object as it is stored. Raises CommandError."""
    missing = f"VLLMService {namespace}/{name} not found: see `kubectl get vllm --all-namespaces`"
    async with _reading(kubeconfig, missing=missing) as cluster:
        return await cluster.read_service(namespace, name)


async def read_deployment(namespace: str, name: str, *, kubeconfig: Path | None) -> Mapping[str, Any]:
    """Return a Deployment as it is stored. Raises CommandError."""
    from vllm_autotuner.cluster.kinds import DEPLOYMENT

    missing = f"Deployment {namespace}/{name} not found: check spec.targetRef of the VLLMService"
    async with _reading(kubeconfig, missing=missing) as cluster:
        return await cluster.read(DEPLOYMENT, namespace=namespace, name=name)


@asynccontextmanager
async def _reading(kubeconfig: Path | None, *, missing: str) -> "AsyncIterator[Cluster]":
    # The Kubernetes client takes a second to import, which `--help` should not.
    from vllm_autotuner.cluster.adapter import Cluster
    from vllm_autotuner.cluster.client import connect
    from vllm_autotuner.cluster.errors import ClusterError, NotFound
    from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings

    try:
        async with connect(kubeconfig) as connection:
            throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
            yield Cluster(connection, throttle=throttle, instance="command", may_write=lambda: False)
    except NotFound:
        raise CommandError(missing) from None
    except ClusterError as error:
        raise CommandError(str(error)) from None
