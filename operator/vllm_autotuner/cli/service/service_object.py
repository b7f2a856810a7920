"""Reading and annotating one VLLMService, or reading the Deployment that it names: no lease, errors in one line.

Must not: write anything but annotations, which is how users give commands to the operator.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from vllm_autotuner.cli.api_connection import connected
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.kubernetes import ClusterOptions

__all__ = ["annotate_service", "read_deployment", "read_service"]

LONGEST_NAME: Final = 253
"""Characters of the name of an object, as Kubernetes has it."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


async def read_service(name: str, *, where: ClusterOptions) -> Mapping[str, Any]:
    """Return the object as it is stored. Raises CommandError."""
    async with connected(where, missing=_missing(name)) as (cluster, namespace):
        return await cluster.read_service(namespace, name)


async def annotate_service(
    name: str, annotations: Mapping[str, str | None], *, where: ClusterOptions
) -> Mapping[str, Any]:
    """Set annotations (None removes one) and return the object as it is stored then. Raises CommandError."""
    async with connected(where, missing=_missing(name)) as (cluster, namespace):
        return await cluster.annotate_service(namespace, name, annotations)


async def read_deployment(name: str, *, where: ClusterOptions) -> Mapping[str, Any]:
    """Return a Deployment as it is stored. Raises CommandError."""
    from vllm_autotuner.cluster.kinds import DEPLOYMENT

    missing = f"Deployment {{namespace}}/{name} not found: check spec.targetRef of the VLLMService"
    async with connected(where, missing=missing) as (cluster, namespace):
        return await cluster.read(DEPLOYMENT, namespace=namespace, name=name)


def _missing(name: str) -> str:
    """What is said when it is not there. Raises CommandError for what can be no name: an empty one asks for all."""
    if len(name) > LONGEST_NAME or _NAME.fullmatch(name) is None:
        raise CommandError(f"{name!r} is no name of a VLLMService: see `kubectl get vllm --all-namespaces`")
    return f"VLLMService {{namespace}}/{name} not found: see `kubectl get vllm --all-namespaces`"
