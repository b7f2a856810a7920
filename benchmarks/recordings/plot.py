"""The replay as a picture: one column a recording, one row a quantity, real and simulated over time.

Must not: compute a figure. matplotlib is an extra and is imported when a plot is asked for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.recordings.compare import longest_queue
from benchmarks.recordings.read import Recorded
from benchmarks.recordings.study import Outcome

__all__ = ["NoPlot", "draw"]

_ROWS: Final = (
    ("running", "running", "sequences"),
    ("waiting", "waiting", "requests"),
    ("kv_usage", "KV usage", "part of the pool"),
    ("preemptions", "preemptions", "so far"),
)
_REAL, _SIMULATED, _LAW_ONLY = "#222222", "#d95f02", "#7570b3"


class NoPlot(Exception):
    """The picture cannot be drawn; the message says what is missing."""


def draw(replays: Mapping[str, tuple[Recorded, tuple[Outcome, ...]]], *, path: Path) -> None:
    """Write the picture. Raises NoPlot without matplotlib, or where it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlot("a plot needs matplotlib, which is not installed: pip install '.[report]'") from error
    figure = Figure(figsize=(5.2 * len(replays), 9.5), layout="constrained")
    axes = figure.subplots(len(_ROWS), len(replays), sharex="col", squeeze=False)
    for column, (name, (recorded, outcomes)) in enumerate(replays.items()):
        queue = longest_queue(recorded)
        for row, (quantity, title, unit) in enumerate(_ROWS):
            panel = axes[row][column]
            if queue is not None:
                panel.axvspan(recorded.times[queue[0]], recorded.times[queue[1]], color="#eeeeee", zorder=0)
            panel.plot(recorded.times, getattr(recorded, quantity), color=_REAL, linewidth=1.6, label="real engine")
            for outcome, colour, style in zip(outcomes, (_SIMULATED, _LAW_ONLY), ("-", ":"), strict=False):
                simulated = outcome.simulated[0]
                panel.plot(
                    simulated.times,
                    getattr(simulated, quantity),
                    color=colour,
                    linestyle=style,
                    linewidth=1.1,
                    label=f"simulated, {outcome.way.name}",
                )
            # An axis that is all zero would be scaled to nothing.
            highest = max(float(getattr(one, quantity).max()) for one in (recorded, *outcomes[0].simulated))
            panel.set_ylim(bottom=0, top=None if highest else 1)
            panel.grid(alpha=0.25)
            if column == 0:
                panel.set_ylabel(f"{title}\n({unit})")
        axes[0][column].set_title(name)
        axes[-1][column].set_xlabel("seconds after the first scrape")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle("Recordings of a real vLLM 0.32 engine and their replay (grey: the longest queue)", fontsize=11)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise NoPlot(f"{path} cannot be written: {error}") from error
