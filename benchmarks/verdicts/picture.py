"""The operating curve as a picture. Needs matplotlib, the extra `report`. Must not: compute a rate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["plotted"]

COLOURS = {"keep": "tab:green", "revert": "tab:red", "inconclusive": "0.6"}


def plotted(figures: Mapping[str, Any], *, folder: Path) -> Path:
    """Draw one panel a question and return the file. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure  # an extra: figures are no need of a measurement

    curves = figures["curves"]
    figure = Figure(figsize=(5 * len(curves), 4.2), layout="constrained")
    for column, (name, curve) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(1, len(curves), column)
        effects = [100 * one["effect"] for one in curve]
        for judgement, colour in COLOURS.items():
            axes.plot(effects, [100 * one[judgement] for one in curve], color=colour, marker=".", label=judgement)
        axes.axvline(0, color="0.8", zorder=0)
        latency = "TTFT" if name == "ttft" else "TPOT"
        axes.set(title=figures["questions"][name], xlabel=f"true effect on {latency}, %", ylabel="verdicts, %")
        axes.set_ylim(-2, 102)
        axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdict.png"
    figure.savefig(path, dpi=80)
    return path
