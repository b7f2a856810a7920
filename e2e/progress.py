"""What a person sees while something long goes on: a spinner on a terminal, else a plain line now and then.

Apart from the builds, so that a build says *what* it does and this module decides *how often* it is shown.
Must not: write to stdout, which belongs to the answers of a command line.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

PLAIN_LINE_EVERY_SECONDS = 15.0


class Progress:
    """Reports steps and their elapsed time to stderr, or to the console given."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(escape(text))

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[], None]]:
        """Show `text` with its elapsed time for the length of the block; the caller calls the tick that it gets."""
        started = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(escape(text)) as status:
                yield lambda: status.update(escape(f"{text}: {elapsed(time.monotonic() - started)}"))
            return
        self.say(text)
        shown = started

        def tick() -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= PLAIN_LINE_EVERY_SECONDS:
                shown = now
                self.say(f"{text}: {elapsed(now - started)} so far")

        yield tick


def elapsed(seconds: float) -> str:
    """Write a duration as people say it: `45 s`, `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
