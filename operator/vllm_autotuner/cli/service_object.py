"""Reading one VLLMService for a command: no writes, no lease, errors in one line."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_autotuner.cli.errors import CommandError

__all__ = ["read_service"]


async def read_service(namespace: str, name: str, *, kubeconfig: Path | None) -> Mapping[str, Any]:
    """Return the object as it is stored. Raises CommandError."""
    # The Kubernetes client takes a second to import, which `--help` should not.
    from vllm_autotuner.cluster.adapter import Cluster
    from vllm_autotuner.cluster.client import connect
    from vllm_autotuner.cluster.errors import ClusterError, NotFound
    from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings

    try:
        async with connect(kubeconfig) as connection:
            throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
            cluster = Cluster(connection, throttle=throttle, instance="command", may_write=lambda: False)
            return await cluster.read_service(namespace, name)
    except NotFound:
        raise CommandError(
            f"there is no VLLMService {namespace}/{name}: see `kubectl get vllm --all-namespaces`"
        ) from None
    except ClusterError as error:
        raise CommandError(str(error)) from None
