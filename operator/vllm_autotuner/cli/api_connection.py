"""The Kubernetes API for a command: connects as kubectl would, and turns refusals into one line.

Must not: know a command, or keep a connection.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.kubernetes import ClusterOptions

if TYPE_CHECKING:
    from vllm_autotuner.cluster.adapter import Cluster

__all__ = ["connected"]


@asynccontextmanager
async def connected(where: ClusterOptions, *, missing: str) -> "AsyncIterator[tuple[Cluster, str]]":
    """Yield the API and the namespace that is meant. Raises CommandError.

    `missing`: said of an object that is not there; `{namespace}` stands for the namespace.
    """
    # The Kubernetes client takes a second to import, which `--help` should not.
    from vllm_autotuner.cluster.adapter import Cluster
    from vllm_autotuner.cluster.client import connect, namespace_in_use
    from vllm_autotuner.cluster.errors import NO_ANSWER, ClusterError, NotFound
    from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings

    namespace = where.namespace
    try:
        async with connect(where.kubeconfig, context=where.context) as connection:
            namespace = namespace or namespace_in_use(where.kubeconfig, context=where.context)
            throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
            yield Cluster(connection, throttle=throttle, instance="command"), namespace
    except NotFound:
        raise CommandError(missing.format(namespace=namespace)) from None
    except ClusterError as error:
        hint = "the API server does not answer; is --context the right one? " if error.reason == NO_ANSWER else ""
        raise CommandError(f"{hint}{error}") from None
