"""What a person tells about model, GPU and flags where there is no VLLMService: for `explain` and `backtest`.

Must not: guess. Without these options the model's name in the metrics is looked up, and the GPU stays unknown.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
import yaml

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.engine.catalogue import Catalogue, CatalogueError, read_catalogue
from vllm_autotuner.planning.platform import Platform, platform_named

__all__ = ["CatalogueFile", "GpuName", "ModelName", "load_catalogue", "platforms"]

_PANEL = "Platform"

ModelName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="The model, such as Qwen/Qwen3-32B. Default: its name in the metrics.",
    ),
]
GpuName: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", rich_help_panel=_PANEL, help="The GPU, such as NVIDIA-H100-80GB-HBM3."),
]
CatalogueFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--catalogue",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="YAML with further `gpus` and with the config.json of further `models`.",
    ),
]


def load_catalogue(path: Path | None) -> Catalogue:
    """Read a catalogue. Raises CommandError."""
    if path is None:
        return Catalogue()
    try:
        return read_catalogue(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except CatalogueError as error:
        raise CommandError(f"{path}: {error}") from error


def platforms(
    *, model: str | None, gpu: str | None, catalogue: Catalogue, engine_args: str | None
) -> Callable[[str], Platform]:
    """Return what the model in the metrics runs on. Raises CommandError for a GPU that nobody knows."""
    if gpu is not None and catalogue.gpu(gpu) is None:
        raise CommandError(f"--gpu {gpu!r} is in no table: write a product such as NVIDIA-H100-80GB-HBM3, or add it "
                           "with --catalogue FILE")  # fmt: skip
    args = tuple(shlex.split(engine_args)) if engine_args is not None else ()
    return lambda seen: platform_named(model or seen, gpu=gpu, args=args, catalogue=catalogue)
