"""A plot of the fitted step time of one service: observed points, the line, the objective and the knee.

Apart from the report's plots, which show time; this shows the model that a proposal rests on. matplotlib is an extra.
Must not: draw a text that comes from metrics: matplotlib reads `$` as mathematics.
"""

from pathlib import Path
from typing import Final

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport
from vllm_autotuner.diagnosis.case import Case, mean_batch, tpot_tail
from vllm_autotuner.performance.knee import largest_batch_within
from vllm_autotuner.performance.step_time import NoFit, StepTime, at_quantile, fit_step_time

__all__ = ["FORMATS", "plot_curve"]

FORMATS: Final = (".png", ".svg", ".pdf")
BEYOND: Final = 2
"""Times the largest batch seen to which the line is drawn: as far as one change may go."""
PIECES: Final = 100
"""Straight ones of which a curve is drawn."""


def _drawn(curve: StepTime, first: float, last: float) -> tuple[list[float], list[float]]:
    """Batches, and milliseconds at each. Two points would do for a line, but not for a mixture of experts."""
    batches = [first + (last - first) * part / PIECES for part in range(PIECES + 1)]
    return batches, [curve.predict(batch) * 1e3 for batch in batches]


def plot_curve(path: Path, report: ServiceReport, *, case: Case) -> None:
    """Draw the curve of one service. Raises CommandError when there is no fit, or the file cannot be written."""
    model = fit_step_time(report.observation.steps)
    if isinstance(model, NoFit):
        raise CommandError(f"--plot: there is no step-time model to draw: {model.why}")
    from matplotlib.figure import Figure

    objective, furthest = report.targets.tpot, BEYOND * model.high
    # The line of the quantile that the objective is about: the plan finds the knee on the same one.
    late = at_quantile(model, tail=tpot_tail(case), seen_at=mean_batch(case))
    knee = largest_batch_within(late, target=objective.seconds)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    points = [point for point in report.observation.steps if point.running >= 1 and point.tokens > 0]
    axes.scatter([p.running for p in points], [p.itl * 1e3 for p in points], label="observed windows", color="#0072B2")
    axes.plot(*_drawn(model, 1.0, model.high), color="#009E73", label="fitted step time, mean")
    axes.plot(*_drawn(model, model.high, furthest), color="#009E73", linestyle=":", label="extrapolated")
    axes.plot(*_drawn(late, 1.0, furthest), color="#E69F00", linestyle="-.", label=f"the same at {objective.label}")
    axes.axhline(objective.seconds * 1e3, color="#D55E00", linestyle="--", label="TPOT objective")
    if knee is not None and knee <= furthest:
        axes.axvline(knee, color="#CC79A7", label=f"knee: {knee} sequences")
    axes.set(xlabel="running sequences", ylabel="time between tokens, ms", ylim=(0, None))
    axes.set_title(f"fitted on {model.points} windows, mean error {model.error:.1%}")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
