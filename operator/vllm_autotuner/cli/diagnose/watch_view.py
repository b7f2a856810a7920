"""What `diagnose --watch` shows: a table on a terminal, otherwise one line per service, or JSON lines.

Must not: read a source, or decide. Services are sorted by the severity of their class.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vllm_autotuner.cli.diagnose.watch import Frame
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.text import panel, quantity, seconds, title_of
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport
from vllm_autotuner.cli.evaluate.moments import rfc3339
from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.class_looks import look_of

__all__ = ["as_json_line", "as_lines", "picture", "view", "worst_first"]


@contextmanager
def view(console: Console, *, as_text: bool) -> Iterator[Callable[[Frame], None]]:
    """Return what shows a frame."""
    if not as_text:
        yield lambda frame: typer.echo(as_json_line(frame))
    elif not console.is_terminal:
        yield lambda frame: typer.echo("\n".join(as_lines(frame)))
    else:
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            yield lambda frame: live.update(picture(frame), refresh=True)


def worst_first(reports: Sequence[ServiceReport]) -> Sequence[ServiceReport]:
    """Order services by severity, then by how long it has lasted."""
    return sorted(
        reports,
        key=lambda one: (-look_of(one.diagnosis.primary).severity, one.diagnosis.since, title_of(one)),
    )


def picture(frame: Frame) -> RenderableType:
    """The table of services, and everything about the worst one."""
    reports = worst_first(frame.reports)
    parts: list[RenderableType] = [Text(f"{rfc3339(round(frame.at))}  {printable(frame.source)}  (Ctrl-C ends)", "dim")]
    if frame.problem:
        parts.append(
            Text(f"No answer from the source; showing the last one: {printable(frame.problem)}", "bold magenta")
        )
    if not reports:
        parts.append(Text("no vLLM engine reports"))
        return Group(*parts)
    if len(reports) > 1:
        parts.append(_table(reports, at=frame.at))
    parts.append(panel(reports[0], at=frame.at, span=None))
    return Group(*parts)


def _table(reports: Sequence[ServiceReport], *, at: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("service")
    table.add_column("class")
    for column in ("for", "engines", "running", "waiting", "KV", "TTFT", "TPOT"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        cells = [Text(printable(title_of(report)))]
        cells.append(Text(report.diagnosis.primary.value, style=look_of(report.diagnosis.primary).terminal))
        cells.append(Text(seconds(max(0.0, at - report.diagnosis.since))))
        table.add_row(*cells, *(Text(value) for _, value in _levels(report)))
    return table


def as_lines(frame: Frame) -> Sequence[str]:
    """One line per service: for logs, `grep` and terminals that cannot be redrawn."""
    when = rfc3339(round(frame.at))
    lines = [f"{when} NO ANSWER {printable(frame.problem)}"] if frame.problem else []
    if not frame.reports and not frame.problem:
        lines.append(f"{when} no vLLM engine reports")
    for report in () if frame.problem else worst_first(frame.reports):
        levels = " ".join(f"{name}={value.replace(' ', '')}" for name, value in _levels(report))
        named = f"{report.diagnosis.primary.value} {report.diagnosis.confidence.value}"
        lines.append(f"{when} {printable(title_of(report))} {named} {levels} {printable(report.diagnosis.message)}")
    return lines


def as_json_line(frame: Frame) -> str:
    """One object per refresh."""
    notes = [f"no answer: {frame.problem}"] if frame.problem else []
    body = as_json(() if frame.problem else frame.reports, at=frame.at, span=None, notes=notes)
    return json.dumps(body, allow_nan=False)


def _levels(report: ServiceReport) -> Sequence[tuple[str, str]]:
    levels = report.levels[-1]

    def count(value: float | None) -> str:
        return "?" if value is None else f"{value:.0f}"

    def known(value: float | None, unit: str) -> str:
        return "?" if value is None else quantity(value, unit)

    return (
        ("engines", count(levels.engines)),
        ("running", count(levels.running)),
        ("waiting", count(levels.waiting)),
        ("kv", known(levels.kv_max, "share")),
        ("ttft", known(levels.ttft, "s")),
        ("tpot", known(levels.tpot, "s")),
    )
