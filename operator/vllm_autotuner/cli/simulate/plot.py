"""Plots of simulations: one service over time, and the knee of a sweep. matplotlib is loaded only here, on demand.

Must not: compute a figure that the tables lack, or open a window.
"""

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.simulate.run_figures import Figures, latencies
from vllm_autotuner.cli.simulate.simulated_service import Run
from vllm_autotuner.cli.simulate.sweep import SweepResult
from vllm_autotuner.diagnosis.objectives import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_plot", "plot_run", "plot_sweep"]

FORMATS: Final = (".png", ".svg", ".pdf")
BUCKETS: Final = 60
"""Points of a latency curve: few enough that each holds requests, many enough to see when it turned. Our choice."""
WIDTH: Final = 110
"""Characters of a title that fit the width of a picture."""
BLUE, ORANGE, GREEN, GREY = "#2c6fbb", "#d9730d", "#3a8f5c", "#777777"


def check_plot(path: Path) -> None:
    """Raise CommandError for a plot that could never be written, before anything is simulated."""
    if path.suffix.lower() not in FORMATS:
        raise CommandError(f"--plot {path}: write a file name that ends in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"--plot {path}: folder {path.absolute().parent} does not exist")


def _figure(rows: int) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    # Not pyplot: a figure of its own needs no display and leaves nothing behind.
    figure = Figure(figsize=(10, 2.9 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise CommandError(f"--plot {path}: {error.strerror or error}") from None


def _title(figure: "Figure", *lines: str) -> None:
    figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, WIDTH)), fontsize=10)


def plot_run(run: Run, figures: Figures, path: Path) -> None:
    """Draw queues, KV cache and latencies over time. Raises CommandError."""
    figure, (queues, kv, ttft, tpot) = _figure(4)
    minutes = [each.time / 60 for each in run.gauges]
    slots = run.config.max_num_seqs * run.scenario.replicas
    most = max(max(each.running, each.waiting) for each in run.gauges)
    queues.plot(minutes, [each.running for each in run.gauges], color=BLUE, label="running")
    queues.plot(minutes, [each.waiting for each in run.gauges], color=ORANGE, label="waiting")
    if slots <= 2 * most:
        queues.axhline(slots, color=GREY, linestyle="--", linewidth=1, label=f"max-num-seqs: {slots}")
    queues.set_ylabel("requests")
    kv.fill_between(minutes, [100 * each.kv_most for each in run.gauges], color=GREEN, alpha=0.25, label="fullest pod")
    kv.plot(minutes, [100 * each.kv_mean for each in run.gauges], color=GREEN, label="mean")
    kv.set_ylim(0, 105)
    kv.set_ylabel("KV cache, %")
    targets = run.scenario.subject.targets
    _latency_over_time(ttft, run, kind="ttft", target=targets.ttft, scale=1.0, label="TTFT, s")
    _latency_over_time(tpot, run, kind="tpot", target=targets.tpot, scale=1000.0, label="TPOT, ms")
    tpot.set_xlabel("virtual minutes")
    for axes in (queues, kv, ttft, tpot):
        if run.scenario.warm_up:
            axes.axvspan(
                0, run.scenario.warm_up / 60, color=GREY, alpha=0.12, label="warm-up" if axes is queues else ""
            )
        axes.set_xlim(0, minutes[-1])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", fontsize=8)
    longest, share = run.classes[0]
    outcome = f"goodput {figures.goodput:.3g} requests/s, {longest.value} {share:.0%} of the time"
    _title(figure, _service(run), run.scenario.load.words, outcome)
    _save(figure, path)


def _service(run: Run) -> str:
    config = run.config
    return (
        f"{run.scenario.replicas} x {run.scenario.profile.name}, max-num-seqs {config.max_num_seqs}, "
        f"max-model-len {config.max_model_len}, KV cache {config.kv_cache_dtype}, TP {config.tensor_parallel_size}"
    )


def _latency_over_time(axes: "Axes", run: Run, *, kind: str, target: Target, scale: float, label: str) -> None:
    """Median and the objective's quantile of what ended in each bucket; a bucket without answers is a gap."""
    end = run.gauges[-1].time
    edges = np.linspace(0, end, BUCKETS + 1)
    middles, quantiles = (edges[:-1] + edges[1:]) / 120, ((0.5, BLUE), (target.quantile, ORANGE))
    curves: dict[float, list[float]] = {q: [] for q, _ in quantiles}
    for start, stop in pairwise(edges.tolist()):
        ttft, tpot = latencies(run.ledger.between(start, stop))
        values = ttft if kind == "ttft" else tpot
        for q, curve in curves.items():
            curve.append(float(np.quantile(values, q)) * scale if len(values) else float("nan"))
    for q, colour in quantiles:
        axes.plot(middles, curves[q], color=colour, label=f"p{q * 100:g}", marker=".", markersize=3)
    axes.axhline(target.seconds * scale, color=GREY, linestyle="--", linewidth=1, label="objective")
    axes.set_ylabel(label)


def plot_sweep(result: SweepResult, path: Path) -> None:
    """Draw goodput and latencies over the values: the knee as a picture. Raises CommandError."""
    rows = [(row.value, row.run, row.figures) for row in result.rows if row.run is not None and row.figures is not None]
    if not rows:
        raise CommandError("--plot: nothing to draw, the engine does not start with any of these values")
    figure, (goodput, ttft, tpot) = _figure(3)
    targets = rows[0][1].scenario.subject.targets
    numeric = all(isinstance(value, int) for value, _, _ in rows)
    places: list[Any] = [value if numeric else str(value) for value, _, _ in rows]
    found = [figures for _, _, figures in rows]
    # Between two dtypes there is nothing: no line.
    line, dots = ("-", ":") if numeric else ("", "")
    within = [each.goodput for each in found]
    goodput.plot(places, within, color=GREEN, marker="o", linestyle=line, label="within both objectives")
    goodput.plot(places, [each.answered for each in found], color=GREY, marker=".", linestyle=dots, label="answered")
    goodput.set_ylabel("requests/s")
    ttfts, tpots = [each.ttft_at_objective for each in found], [each.tpot_at_objective for each in found]
    _latency_over_values(ttft, places, ttfts, targets.ttft, scale=1, label="TTFT, s", line=line)
    _latency_over_values(tpot, places, tpots, targets.tpot, scale=1000, label="TPOT, ms", line=line)
    values = [each for each in ttfts if each]
    if values and max(values) > 20 * min(values):
        ttft.set_yscale("log")
        ttft.yaxis.set_major_formatter("{x:g}")
        ttft.yaxis.set_minor_formatter("{x:g}")
        ttft.tick_params(axis="y", which="minor", labelsize=7)
    else:
        ttft.set_ylim(bottom=0)
    for axes in (goodput, tpot):
        axes.set_ylim(bottom=0)
    for axes in (goodput, ttft, tpot):
        if numeric:
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [str(place) for place in places])
            axes.minorticks_off()
        else:
            axes.margins(x=0.4)
        if result.sweep.knob is Knob.MAX_NUM_SEQS and result.knee is not None:
            axes.axvline(result.knee, color=BLUE, linestyle="--", linewidth=1, label=f"knee at {result.knee}")
        if result.best is not None:
            axes.axvline(places[[value for value, _, _ in rows].index(result.best.value)], color=GREEN, alpha=0.2, lw=8)
        axes.grid(alpha=0.25)
        axes.legend(loc="best", fontsize=8)
    tpot.set_xlabel(result.sweep.knob.value)
    scenario = rows[0][1].scenario
    _title(figure, f"{scenario.replicas} x {scenario.profile.name}", scenario.load.words)
    _save(figure, path)


def _latency_over_values(
    axes: "Axes",
    places: Sequence[Any],
    values: Sequence[float | None],
    target: Target,
    *,
    scale: float,
    label: str,
    line: str,
) -> None:
    drawn = [float("nan") if value is None else value * scale for value in values]
    axes.plot(places, drawn, color=ORANGE, marker="o", linestyle=line, label=target.label)
    axes.axhline(target.seconds * scale, color=GREY, linestyle="--", linewidth=1, label="objective")
    axes.set_ylabel(label)
