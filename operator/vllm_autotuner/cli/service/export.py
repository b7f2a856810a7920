"""`vllm-autotuner export`: the recommendation of a service as a patch that is ready to commit. Changes nothing."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import NAME_HELP, ClusterOptions
from vllm_autotuner.cli.service.patch import PatchFormat, export_text
from vllm_autotuner.cli.service.service_object import read_deployment, read_service
from vllm_autotuner.cli.terminal import failed
from vllm_autotuner.observation.whole_file import replacing

__all__ = ["EXAMPLES", "export"]

EXAMPLES = """
Examples:

  A patch for kubectl:

    vllm-autotuner export chat -n prod > patch.yaml

  For a kustomization, written to a file:

    vllm-autotuner export chat -n prod --format kustomize --output kustomization.yaml

  Values for your own Helm chart, under its keys:

    vllm-autotuner export chat -n prod --format helm --values-key services.chat

Exit codes: 0 written, 1 error or no recommendation.
"""


@with_groups
def export(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    *,
    cluster: ClusterOptions,
    form: Annotated[
        PatchFormat,
        typer.Option(
            "--format", metavar="FORMAT", help="strategic (for kubectl), kustomize or helm.", rich_help_panel="Output"
        ),
    ] = PatchFormat.STRATEGIC,
    values_key: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Place in the Helm values, such as services.chat. Default: the top level.",
            rich_help_panel="Output",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: standard output.", rich_help_panel="Output"
        ),
    ] = None,
) -> None:
    """Write the recommendation of a service as a patch that is ready to commit.

    Changes nothing: apply the patch with kubectl, Argo CD or Flux. It is for the VLLMService, or for the Deployment
    in its spec.targetRef; then it repeats the other flags, because the list can only be replaced as a whole.
    """
    try:
        if values_key and form is not PatchFormat.HELM:
            raise CommandError("--values-key needs --format helm")
        service = parse_service(asyncio.run(read_service(name, where=cluster)))
        if not isinstance(service, VLLMService):
            raise CommandError(f"{service.key} cannot be read: {service.message}")
        deployment = None
        if (target := service.spec.target_ref) is not None:
            where = replace(cluster, namespace=service.metadata.namespace)
            deployment = asyncio.run(read_deployment(target.name, where=where))
        text = export_text(service, form=form, values_key=values_key, deployment=deployment)
        if output is None:
            typer.echo(text, nl=False)
        else:
            _write(output, text)
    except CommandError as error:
        raise failed(error, code=1) from None


def _write(path: Path, text: str) -> None:
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
