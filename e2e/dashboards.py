"""The chart's dashboards as a Prometheus answers them, and drawn without a Grafana.

What is drawn has the panels, places and queries of a dashboard and the annotations across them. It shows what the
queries answer, not how Grafana looks. Must not: add to a query or leave one out.
"""

import base64
import io
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_autotuner.overview.html_page import document, safe

__all__ = ["Get", "Line", "answered", "drawn", "filled", "variables"]

Get: TypeAlias = Callable[..., Awaitable[Any]]
"""`get("query_range", query=...)`: `data` of an answer of Prometheus' API."""
COLUMNS: Final = 24
"""Of Grafana's grid."""
LEGEND: Final = 8
"""Names that a legend has room for."""
NOTE: Final = "Drawn from the dashboard's file by its own queries; this is not Grafana."
STYLE: Final = (
    "<style>.board{display:grid;grid-template-columns:1fr 1fr;gap:.5rem}.board img{width:100%;height:auto}"
    ".wide{grid-column:1/-1}@media(max-width:40rem){.board{grid-template-columns:1fr}}</style>"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel, as its legend names it."""

    name: str
    times: Sequence[float]
    values: Sequence[float]


async def variables(get: Get, board: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a dashboard with all values chosen, as Grafana fills them in."""
    chosen: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert asked, variable["query"]
            found = await get(f"label/{asked[2]}/values", **{"match[]": filled(asked[1], chosen)})
            chosen[variable["name"]] = f"({'|'.join(found)})"
    return chosen


def filled(expression: str, chosen: Mapping[str, str]) -> str:
    """An expression with the variables put in; what is none stays, such as the `$1` of a replacement."""
    return re.sub(r"\$(\w+)", lambda match: chosen.get(match[1], match[0]), expression)


async def answered(get: Get, expression: str, *, legend: str, since: float, until: float) -> list[Line]:
    """All series with a value from `since` to `until` (Unix seconds)."""
    step = max(1, round((until - since) / 600))
    answer = await get("query_range", query=expression, start=since, end=until, step=step)
    lines = []
    for series in answer["result"]:
        points = [(float(at), float(value)) for at, value in series["values"] if not math.isnan(float(value))]
        if points:
            name = re.sub(r"{{(\w+)}}", partial(_label, series["metric"]), legend)
            lines.append(Line(name, [at for at, _ in points], [value for _, value in points]))
    return lines


def _label(labels: Mapping[str, str], match: re.Match[str]) -> str:
    return labels[match[1]]


async def drawn(board: Mapping[str, Any], get: Get, *, since: float, until: float) -> str:
    """The whole dashboard as one HTML page."""
    ask = partial(answered, get, since=since, until=until)
    chosen = await variables(get, board)
    marks = [
        line
        for each in board["annotations"]["list"]
        for line in await ask(filled(each["expr"], chosen), legend=each["textFormat"])
    ]
    figures = []
    for panel in sorted(board["panels"], key=lambda each: (each["gridPos"]["y"], each["gridPos"]["x"])):
        lines = [
            line
            for target in panel["targets"]
            for line in await ask(filled(target["expr"], chosen), legend=target["legendFormat"])
        ]
        wide = panel["gridPos"]["w"] == COLUMNS
        picture = _picture(panel, lines, marks=marks, wide=wide, since=since, until=until)
        told = safe(f"{panel['title']}: {', '.join(line.name for line in lines) or 'no data'}")
        figures.append(f'<img{" class=wide" if wide else ""} alt="{told}" src="data:image/png;base64,{picture}">')
    title = str(board["title"])
    body = [f"<main><h1>{safe(title)}</h1><p>{NOTE}</p>{STYLE}", f'<div class="board">{"".join(figures)}</div></main>']
    return document(title, body)


def _picture(
    panel: Mapping[str, Any], lines: Sequence[Line], *, marks: Sequence[Line], wide: bool, since: float, until: float
) -> str:
    figure = Figure(figsize=(12.6 if wide else 6.3, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(panel["title"], fontsize=10, loc="left")
    if panel["type"] == "state-timeline":
        _bands(axes, lines, since=since)
    else:
        for line in lines:
            scale = 100 if panel["fieldConfig"]["defaults"]["unit"] == "percentunit" else 1
            values = [value * scale for value in line.values]
            axes.plot([at - since for at in line.times], values, label=line.name, linewidth=1.2)
        axes.set_ylim(bottom=0)
        units = {"s": "s", "percentunit": "%", "ops": "1/s"}
        axes.set_ylabel(units.get(panel["fieldConfig"]["defaults"]["unit"], ""), fontsize=8)
        if lines:
            handles, names = axes.get_legend_handles_labels()
            axes.legend(handles[:LEGEND], names[:LEGEND], fontsize=6, loc="upper left", framealpha=0.6)
    for line in marks:
        axes.axvspan(line.times[0] - since, line.times[-1] - since, color="#E69F00", alpha=0.12)
    axes.set_xlim(0, until - since)
    axes.set_xlabel("seconds", fontsize=7)
    axes.tick_params(labelsize=7)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return base64.b64encode(file.getvalue()).decode("ascii")


def _bands(axes: Axes, lines: Sequence[Line], *, since: float) -> None:
    for row, line in enumerate(lines):
        axes.scatter([at - since for at in line.times], [row] * len(line.times), marker="s", s=14)
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.invert_yaxis()
