"""The plots of a report: one SVG per service, drawn by matplotlib, which is an extra of the package.

Text and lines take the colours of the page (`currentColor`), so that one SVG is readable on dark, light and paper.
Must not: draw a text that comes from metrics. matplotlib reads `$` as mathematics, and escaping is the page's business.
"""

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from vllm_autotuner.cli.evaluate.levels import Levels
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.overview.class_looks import look_of

__all__ = ["NO_PLOT", "bands", "can_plot", "plot"]

NO_PLOT: Final = "no plot: it needs matplotlib; run pip install '.[report]' in the repository"
"""What a reader is told in its place."""

FOREGROUND: Final = "#123456"
"""A colour that no class has: it becomes the page's own."""
WIDE_RANGE: Final = 30.0
"""Largest over smallest value from which latencies are drawn on a logarithmic axis. Our choice."""


@dataclass(frozen=True, slots=True)
class Band:
    """A class, from when to when (Unix seconds) it was named."""

    start: float
    end: float
    named: DiagnosisClass


def can_plot() -> bool:
    """Whether matplotlib is there. Without it everything but the plot is shown, and `NO_PLOT` said."""
    return importlib.util.find_spec("matplotlib") is not None


def bands(levels: Sequence[Levels]) -> Sequence[Band]:
    """Join evaluations of one class. A band reaches back to the evaluation before."""
    found: list[Band] = []
    before = levels[0].time if levels else 0.0
    for one in levels:
        if found and found[-1].named is one.named:
            found[-1] = Band(found[-1].start, one.time, one.named)
        else:
            found.append(Band(before, one.time, one.named))
        before = one.time
    return found


def plot(levels: Sequence[Levels], *, targets: Targets, identity: int) -> str:
    """Draw classes, TTFT, TPOT, KV usage and requests over time. Returns an `<svg>` element.

    `identity` keeps the ids of several SVGs on one page apart.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, object] = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"service-{identity}",
        "font.size": 10,
        "hatch.linewidth": 0.6,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), FOREGROUND),
        "axes.edgecolor": FOREGROUND,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 8.2), layout="constrained")
        FigureCanvasSVG(figure)
        rows = figure.subplots(5, 1, sharex=True, height_ratios=[0.32, 1, 1, 1, 1])
        _draw(list(rows), levels=levels, targets=targets)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _embedded(file.getvalue(), prefix=f"plot-{identity}-")


def _draw(rows: list[Any], *, levels: Sequence[Levels], targets: Targets) -> None:
    times = [datetime.fromtimestamp(one.time, tz=UTC) for one in levels]
    for axes in rows:
        _paint(axes, bands(levels), strong=axes is rows[0])
        axes.spines[["top", "right"]].set_visible(False)
    rows[0].set_yticks([])
    rows[0].set_ylabel("class", rotation=0, ha="right", va="center")
    rows[0].spines[["left", "bottom"]].set_visible(False)
    latencies: tuple[tuple[Any, str, Callable[[Levels], float | None], Any], ...] = (
        (rows[1], "TTFT", lambda one: one.ttft, targets.ttft),
        (rows[2], "TPOT", lambda one: one.tpot, targets.tpot),
    )
    for axes, name, read, target in latencies:
        _line(axes, times, [read(one) for one in levels], label=f"{name} {target.label}")
        _limit(axes, target.seconds, label="objective (default)" if target.defaulted else "objective")
        axes.set_ylabel(f"{name} {target.label}")
        _latency_axis(axes, [value for one in levels if (value := read(one)) is not None], limit=target.seconds)
    _line(rows[3], times, [one.kv_mean for one in levels], label="mean")
    _line(rows[3], times, [one.kv_max for one in levels], label="maximum", style="--")
    rows[3].set_ylim(0, 1.05)
    rows[3].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    rows[3].set_ylabel("KV cache used")
    _line(rows[4], times, [one.running for one in levels], label="running")
    _line(rows[4], times, [one.waiting for one in levels], label="waiting", style="--")
    rows[4].set_ylim(bottom=0)
    rows[4].set_ylabel("requests")
    for axes in rows[1:]:
        axes.legend(loc="upper left", fontsize=8, framealpha=0, ncols=3)
        axes.margins(x=0)
        axes.grid(axis="y", color=FOREGROUND, alpha=0.12, linewidth=0.6)
    _clock_axis(rows[4])


def _clock_axis(axes: Any) -> None:
    from matplotlib import dates

    # The library's types do not cover its constructors.
    library: Any = dates
    locator = library.AutoDateLocator(tz=UTC, minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(library.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("time (UTC)")


def _paint(axes: Any, painted: Sequence[Band], *, strong: bool) -> None:
    total = painted[-1].end - painted[0].start if painted else 0.0
    for band in painted:
        look = look_of(band.named)
        start, end = (datetime.fromtimestamp(edge, tz=UTC) for edge in (band.start, band.end))
        axes.axvspan(start, end, facecolor=look.colour, alpha=0.9 if strong else 0.14, linewidth=0)
        if look.hatch:
            axes.axvspan(start, end, facecolor="none", edgecolor=FOREGROUND, hatch=look.hatch, linewidth=0, alpha=0.35)
        # A name needs about a ninth of the width; narrower bands are told by the legend below the plot.
        if strong and total > 0 and (band.end - band.start) / total > 0.012 * len(band.named.value) + 0.02:
            middle = datetime.fromtimestamp((band.start + band.end) / 2, tz=UTC)
            axes.text(middle, 0.5, band.named.value, ha="center", va="center", fontsize=9, color=_ink(look.colour))


def _ink(colour: str) -> str:
    """Black or white, whichever is readable on the colour (luminance after ITU-R BT.601)."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"


def _line(
    axes: Any, times: Sequence[datetime], values: Sequence[float | None], *, label: str, style: str = "-"
) -> None:
    # A gap stays a gap: matplotlib does not draw through NaN.
    points = [float("nan") if value is None else value for value in values]
    # A single point between two gaps is no line; the dot keeps it visible.
    axes.plot(times, points, style, color=FOREGROUND, linewidth=1.4, marker=".", markersize=2.5, label=label)


def _limit(axes: Any, value: float, *, label: str) -> None:
    axes.axhline(value, color="#D55E00", linewidth=1.3, linestyle=(0, (6, 3)), label=label)


def _latency_axis(axes: Any, values: Sequence[float], *, limit: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    positive = [value for value in (*values, limit) if value > 0]
    if max(positive) / min(positive) > WIDE_RANGE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: _short(value))
        axes.set_ylim(min(positive) / 1.6, max(positive) * 2.2)
    else:
        axes.set_ylim(0, 1.25 * max(positive))


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if 0 < abs(seconds) < 1 else f"{seconds:.3g} s"


def _embedded(document: str, *, prefix: str) -> str:
    """Cut what only a file of its own needs, let the page choose the colour of text and lines, keep ids apart."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1)
    svg = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    return svg.replace(FOREGROUND, "currentColor")
