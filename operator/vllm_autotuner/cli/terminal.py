"""What is printed where: answers on stdout, progress on stderr, and no escape code where nobody asked for colour.

Names come from metrics and error texts from servers: both are foreign and may hold control characters.
"""

import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["answers", "printable", "progress", "remarks"]

PLAIN_WIDTH = 120
"""Columns where the output is no terminal and COLUMNS does not say: wide enough for the evidence table."""


def answers() -> Console:
    """The console of stdout."""
    return _console(stderr=False)


def remarks() -> Console:
    """The console of stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
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
    """A bar that exists only while it moves, and only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def printable(text: str) -> str:
    """Replace what a terminal would obey instead of show."""
    return "".join(character if character.isprintable() else " " for character in text)
