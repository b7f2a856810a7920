"""`vllm-autotuner crd`: print the CustomResourceDefinition, to apply it or to compare it with the cluster."""

import typer

from vllm_autotuner.api.crd import crd_yaml

__all__ = ["EXAMPLES", "crd"]

EXAMPLES = """
Examples:

  Install or update the CustomResourceDefinition:

    vllm-autotuner crd | kubectl apply --server-side -f -

  Compare it with the one in the cluster:

    vllm-autotuner crd | kubectl diff --server-side -f -
"""


def crd() -> None:
    """Print the CustomResourceDefinition of VLLMService as YAML, as this version needs it."""
    typer.echo(crd_yaml(), nl=False)
