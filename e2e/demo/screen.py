"""The output of the demo: a live view in a terminal, plain lines elsewhere, with the same texts.

Acts run at the same time and are shown one after the other: each writes into a chapter, and a chapter is shown when
those before it are closed. Each line carries the time at which it was written.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

WIDTH: Final = 130
"""Columns where there is no terminal to ask: wide enough for every sentence of the story."""
FEWEST_LINES: Final = 3
"""Of the story, in a terminal however small."""


class Screen:
    """Where the demo writes. As a context it owns the terminal."""

    def __init__(self, *, plain: bool, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH
        self._live = None if plain or not self.console.is_terminal else Live(console=self.console, auto_refresh=False)
        self._began = time.monotonic()
        self._told: list[Any] = []
        self._lines: list[Line] = []
        """Of `_told` what is a line of the story."""
        self._chapters: list[Chapter] = []
        self._services: Mapping[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for chapter in list(self._chapters):
            chapter.close()
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
            # What scrolled by in the live view stays readable afterwards.
            for each in self._told:
                self.console.print(each)

    @property
    def seconds(self) -> float:
        """Seconds since the curtain."""
        return time.monotonic() - self._began

    def chapter(self) -> "Chapter":
        """The next chapter; it is shown when those before it are closed."""
        chapter = Chapter(self)
        self._chapters.append(chapter)
        return chapter

    def show(self, services: Mapping[str, Mapping[str, Any]]) -> None:
        """Refresh the table of services."""
        self._services = services
        self._refresh()

    def print(self, *renderables: Any) -> None:
        """Print below everything that was told."""
        self._told += renderables
        self._lines += [each for each in renderables if isinstance(each, Line)]
        if self._live is None:
            for each in renderables:
                self.console.print(each)
        self._refresh()

    def tells(self, chapter: "Chapter") -> bool:
        """Whether a chapter is the one that is shown now."""
        return self._chapters[:1] == [chapter]

    def follow(self) -> None:
        """Show what may be shown now."""
        while self._chapters:
            first = self._chapters[0]
            if first.lines:
                lines, first.lines = first.lines, []
                self.print(*lines)
            if not first.closed:
                return
            self._chapters.pop(0)

    def _refresh(self) -> None:
        if self._live is None:
            return
        table, width = services_table(self._services), self.console.width
        # What does not fit would push the table out of sight: count the lines as they wrap, newest first.
        room = max(FEWEST_LINES, self.console.height - len(self._services) - 7)
        shown: list[Line] = []
        for line in reversed(self._lines):
            room -= len(self.console.render_lines(line, self.console.options.update_width(width - 4)))
            if room < 0:
                break
            shown.insert(0, line)
        story = Panel(Group(*shown), title="vllm-autotuner demo")
        self._live.update(Group(story, table), refresh=True)


class Chapter:
    """What one act tells."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.lines: list[Any] = []
        """Written, and not shown yet."""
        self.closed = False

    @property
    def seconds(self) -> float:
        """Seconds since the curtain."""
        return self._screen.seconds

    def act(self, name: str, about: str) -> None:
        """Begin an act; one that is told after others which it played beside says so."""
        name = name if self._screen.tells(self) else f"{name}, meanwhile"
        self._line(Text(f"{name}: {about}", style="bold cyan"))

    def say(self, text: str) -> None:
        """Tell one thing that was seen."""
        self._line(Text(text))

    def good(self, text: str) -> None:
        """Tell that a check held."""
        self._line(Text(f"ok   {text}", style="green"))

    def bad(self, text: str) -> None:
        """Tell that a check failed."""
        self._line(Text(f"FAIL {text}", style="bold red"))

    def print(self, renderable: Any) -> None:
        """Tell something that is more than a line."""
        self.lines.append(renderable)
        self._screen.follow()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._screen.follow()

    def _line(self, text: Text) -> None:
        self.print(Line(self.seconds, text))


class Line:
    """One line of the story; what goes on below does not stand under the time."""

    def __init__(self, seconds: float, text: Text) -> None:
        self._time = Text(f"{seconds:5.0f} s  ", style="dim")
        self._text = text

    def __rich__(self) -> Table:
        line = Table.grid(Column(no_wrap=True), Column())
        line.add_row(self._time, self._text)
        return line


def services_table(services: Mapping[str, Mapping[str, Any]]) -> Table:
    """What `kubectl get vllm -o wide` shows, with the change under way."""
    table = Table(expand=True, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("service", "diagnosis", "effective", "ready", "TTFT p95", "TPOT p95", "change"):
        table.add_column(column, no_wrap=True, min_width=len(column))
    for name, status in services.items():
        summary = status.get("summary", {})
        table.add_row(
            name,
            status.get("diagnosis", {}).get("class", "-"),
            summary.get("effective", "-"),
            f"{status.get('readyReplicas', 0)}/{status.get('effective', {}).get('replicas', '-')}",
            summary.get("ttft", "-"),
            summary.get("tpot", "-"),
            summary.get("change", "-"),
        )
    return table
