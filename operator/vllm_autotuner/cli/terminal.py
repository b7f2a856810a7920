"""Answers go to stdout, progress and errors to stderr; escape codes only to a terminal.

Names come from metrics and error texts from servers: both may hold control characters, which `printable` replaces.
"""

import os
import sys

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from vllm_autotuner.overview.plain_text import printable

__all__ = ["WholeTable", "answers", "failed", "hint", "printable", "progress", "remarks"]

PLAIN_WIDTH = 120
"""Columns where the output is not a terminal and COLUMNS is not set: wide enough for the evidence table."""


class WholeTable(Table):
    """Printed at its natural width, with `crop=False`: a figure that is cut short reads as another one."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options.update(max_width=sys.maxsize))


def answers() -> Console:
    """The console of stdout."""
    return _console(stderr=False)


def remarks() -> Console:
    """The console of stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # There is no stream at all where the caller closed it.
    terminal = stream is not None and stream.isatty()
    # NO_COLOR alone would leave bold and dim, which are escape codes as well.
    plain = bool(os.environ.get("NO_COLOR")) or not terminal
    width = None if terminal or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(
        stderr=stderr,
        width=width,
        color_system=None if plain else "auto",
        highlight=False,
        emoji=False,
        markup=False,
    )


def progress(console: Console) -> Progress:
    """A progress bar, on a terminal only, that is removed when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def failed(why: object, *, code: int, kind: str = "error") -> typer.Exit:
    """Print the reason as one line on stderr and return the exit to raise."""
    remarks().print(Text(printable(f"{kind}: {why}")), soft_wrap=True)
    return typer.Exit(code)


def hint(text: str) -> None:
    """Say on stderr, after the answer, what is missing from it and how to get it."""
    remarks().print(Text(printable(f"note: {text}")), soft_wrap=True)
