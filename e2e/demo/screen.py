"""How the story is told: a live view in a terminal, plain lines everywhere else. The same words in both."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

LINES_KEPT: Final = 14
WIDTH: Final = 130
"""Columns where there is no terminal to ask: wide enough for every sentence of the story."""


class Screen:
    """Where the demo writes. As a context it owns the terminal."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH
        self._live = None if plain or not self.console.is_terminal else Live(console=self.console, auto_refresh=False)
        self._began = time.monotonic()
        self._told: list[Any] = []
        self._services: Mapping[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def act(self, title: str) -> None:
        """Begin an act."""
        self._line(Text(title, style="bold cyan"))

    def say(self, text: str) -> None:
        """Tell one thing that was seen."""
        self._line(Text(text))

    def good(self, text: str) -> None:
        """Tell that a check held."""
        self._line(Text(f"ok   {text}", style="green"))

    def bad(self, text: str) -> None:
        """Tell that a check failed."""
        self._line(Text(f"FAIL {text}", style="bold red"))

    def show(self, services: Mapping[str, Mapping[str, Any]]) -> None:
        """Refresh the table of services."""
        self._services = services
        self._refresh()

    def print(self, *renderables: Any) -> None:
        """Print below everything."""
        self._told += renderables
        if self._live is None:
            for each in renderables:
                self.console.print(each)

    def _line(self, text: Text) -> None:
        stamped = Text(f"{self.seconds:5.0f} s  ", style="dim") + text
        self._told.append(stamped)
        if self._live is None:
            self.console.print(stamped)
        self._refresh()

    def _refresh(self) -> None:
        if self._live is None:
            return
        lines = [each for each in self._told if isinstance(each, Text)]
        story = Panel(Group(*lines[-LINES_KEPT:]), title="vllm-autotuner: the main job")
        self._live.update(Group(story, services_table(self._services)), refresh=True)


def services_table(services: Mapping[str, Mapping[str, Any]]) -> Table:
    """What `kubectl get vllm -o wide` shows, with the change under way."""
    table = Table(expand=True)
    for column in ("service", "diagnosis", "effective", "replicas", "TTFT p95", "TPOT p95", "change"):
        table.add_column(column)
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
