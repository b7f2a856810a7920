"""Which VLLMService a command reads, and from which cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, TypeAlias

import typer

__all__ = ["NAME_HELP", "ClusterOptions", "Context", "Kubeconfig"]

NAME_HELP: Final = "Name of the VLLMService."

Kubeconfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Default: the pod's service account if there is one, else $KUBECONFIG."),
]
Context: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig. Default: its current one.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where the VLLMService is."""

    PANEL: ClassVar = "Cluster"

    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace of the VLLMService. Default: that of the context."
        ),
    ] = None
    context: Context = None
    kubeconfig: Kubeconfig = None
