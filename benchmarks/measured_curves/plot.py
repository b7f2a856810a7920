"""Measured and played curves as a picture: one panel a set-up, one colour a length mix.

Must not: compute a figure. matplotlib is an extra and is imported when a plot is asked for.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.measured_curves.compare import ComparedCurve

__all__ = ["NoPlot", "draw"]

COLUMNS = 3


class NoPlot(Exception):
    """The picture cannot be drawn; the message says what is missing."""


def draw(compared: Sequence[ComparedCurve], *, path: Path) -> None:
    """Write the picture. Raises NoPlot without matplotlib, without curves, or for a kind of file it cannot write."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlot("a plot needs matplotlib, which is not installed: pip install '.[report]'") from error
    panels: dict[str, list[ComparedCurve]] = {}
    for each in compared:
        title = f"{each.curve.model.rsplit('/', 1)[-1]}, {each.curve.gpu}, TP {each.curve.tensor_parallel_size}"
        panels.setdefault(title, []).append(each)
    if not panels:
        raise NoPlot("no curve was fitted, so there is nothing to draw")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.6 * columns, 4.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        for number, each in enumerate(curves):
            _draw_curve(panel, each, colour=f"C{number % 10}")
        panel.set(title=title, xlabel="load (clients, or requests in the system)", ylabel="TPOT, ms")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.tick_params(axis="y", which="minor", labelsize=7)
        panel.grid(visible=True, which="both", alpha=0.2)
        panel.legend(fontsize=8)
    figure.suptitle(
        "Dots: measured (hollow: KV cache or seats full). Lines: simulator. Dotted: law of the other mixes."
    )
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise NoPlot(f"{path}: {error}") from error


def _draw_curve(panel: object, compared: ComparedCurve, *, colour: str) -> None:
    x = [each.point.x for each in compared.points]
    below = [each for each in compared.points if not each.saturated]
    above = [each for each in compared.points if each.saturated]
    plot = panel.plot  # type: ignore[attr-defined]
    plot(x, [each.played.tpot * 1e3 for each in compared.points], color=colour, label=compared.curve.mix)
    unseen = [(each.point.x, each.unseen.tpot * 1e3) for each in compared.points if each.unseen is not None]
    if unseen:
        plot(*zip(*unseen, strict=True), color=colour, linestyle=":")
    for points, fill in ((below, colour), (above, "none")):
        tpots = [each.point.tpot * 1e3 for each in points]
        plot([each.point.x for each in points], tpots, "o", color=colour, markerfacecolor=fill)
