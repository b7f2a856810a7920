"""The VLLMServices of a cluster or namespace as they are stored, for the commands about all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_autotuner.cli.api_connection import connected
from vllm_autotuner.cli.options.kubernetes import ClusterOptions

__all__ = ["none_there", "stored_services"]


async def stored_services(where: ClusterOptions, *, everywhere: bool) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """Return the objects, and the namespace that they are of; None for all. Raises CommandError."""
    from vllm_autotuner.cluster.kinds import VLLM_SERVICE

    missing = "this cluster does not know VLLMService: install the chart, or apply crds/vllmservices.yaml"
    async with connected(where, missing=missing) as (cluster, current):
        namespace = None if everywhere else current
        objects = [each async for page in cluster.pages(VLLM_SERVICE, namespace=namespace) for each in page.objects]
    return objects, namespace


def none_there(namespace: str | None) -> str:
    """What to say where there is none."""
    return "no VLLMService " + ("in any namespace" if namespace is None else f"in namespace {namespace} (-A shows all)")
