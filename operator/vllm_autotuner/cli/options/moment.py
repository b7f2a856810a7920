"""The `--at` option: one moment of a recording or of a Prometheus."""

from typing import Annotated, TypeAlias

import typer

__all__ = ["Moment"]

Moment: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel="Time",
        help="Evaluate one moment: Unix seconds, RFC 3339, or +90s from the start of a recording. "
        "Default: now, or the end of the recording.",
    ),
]
