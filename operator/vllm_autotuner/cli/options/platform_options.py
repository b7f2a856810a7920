"""Model, GPU and engine flags of a service that has no VLLMService to read them from.

Must not: guess. Without these options the model's name comes from the metrics, and the GPU stays unknown.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.yaml_file import yaml_document
from vllm_autotuner.engine.catalogue import Catalogue, CatalogueError, read_catalogue
from vllm_autotuner.planning.platform import Platform, platform_named

__all__ = ["CatalogueFile", "EngineArgs", "PlatformOptions", "load_catalogue"]

EngineArgs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ARGS",
        rich_help_panel="Engine",
        help='Flags that vLLM runs with, such as "--max-num-seqs 64". Metrics do not contain them.',
    ),
]
CatalogueFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", metavar="FILE", help="YAML file with additional `gpus` and `models`, and `prices` of GPUs."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformOptions:
    """What the engines run, and on what."""

    PANEL: ClassVar = "Engine"

    engine_args: EngineArgs = None
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Model, such as Qwen/Qwen3-32B. Default: as in the metrics."),
    ] = None
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="GPU product, such as NVIDIA-H100-80GB-HBM3.")
    ] = None
    catalogue: CatalogueFile = None

    def platforms(self, known: Catalogue) -> Callable[[str], Platform]:
        """Return what a model in the metrics runs on. Raises CommandError for an unknown GPU."""
        if self.gpu is not None and known.gpu(self.gpu) is None:
            raise CommandError(
                f"--gpu {self.gpu!r} is unknown: write a product such as NVIDIA-H100-80GB-HBM3, or add it "
                "with --catalogue FILE"
            )
        args = tuple(shlex.split(self.engine_args)) if self.engine_args is not None else ()
        return lambda seen: platform_named(self.model or seen, gpu=self.gpu, args=args, catalogue=known)


def load_catalogue(path: Path | None) -> Catalogue:
    """Read a catalogue. Raises CommandError."""
    if path is None:
        return Catalogue()
    document = yaml_document(path)
    try:
        return read_catalogue(document)
    except CatalogueError as error:
        raise CommandError(f"{path}: {error}") from error
