"""The `--output` option: text for people or JSON for programs."""

from typing import Annotated, TypeAlias

import typer

from vllm_autotuner.cli.options.values import one_of

__all__ = ["OutputFormat", "is_text"]

OutputFormat: TypeAlias = Annotated[
    str, typer.Option("--output", "-o", metavar="FORMAT", help="human or json.", rich_help_panel="Output")
]


def is_text(output: str) -> bool:
    """Return whether the answer is text for people. Raises CommandError for an unknown format."""
    return one_of("--output", output, ("human", "json")) == "human"
