"""`vllm-autotuner crd`: print the CustomResourceDefinition, for `kubectl apply -f -` and for the drift check."""

import typer

from vllm_autotuner.api.crd import crd_yaml


def crd() -> None:
    """Print the CustomResourceDefinition of VLLMService, generated from the models of this version."""
    typer.echo(crd_yaml(), nl=False)
