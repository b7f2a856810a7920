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
    from vllm_autotuner.cluster.errors import ClusterError

__all__ = ["connected"]


@asynccontextmanager
async def connected(where: ClusterOptions, *, missing: str) -> "AsyncIterator[tuple[Cluster, str]]":
    """Yield the API and the namespace that is meant. Raises CommandError.

    `missing`: said of an object that is not there; `{namespace}` stands for the namespace.
    """
    # The Kubernetes client takes a second to import, which `--help` should not.
    from vllm_autotuner.cluster.adapter import Cluster
    from vllm_autotuner.cluster.client import connect, namespace_in_use
    from vllm_autotuner.cluster.errors import ClusterError, NotFound
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
        raise CommandError(f"{_what_to_do(error)}{error}") from None


def _what_to_do(error: "ClusterError") -> str:
    from vllm_autotuner.cluster.errors import FORBIDDEN, NO_ANSWER, UNAUTHORIZED, UNREADABLE, Unavailable

    if error.reason == NO_ANSWER:
        return "the API server does not answer; is --context the right one? "
    if error.reason == UNREADABLE:
        return "what answers is no API server, perhaps a proxy that wants a login; is --context the right one? "
    if error.status is None:
        return ""
    if error.status == UNAUTHORIZED:
        why = "the API server does not accept your credentials; log in again"
    elif error.status == FORBIDDEN:
        why = "ask an administrator for this permission"
    elif isinstance(error, Unavailable):
        why = "the API server, or a proxy before it, cannot answer now; try again in a minute"
    else:
        why = "the API server refuses this"
    return f"HTTP {error.status}: {why}. "
