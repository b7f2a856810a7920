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
from vllm_autotuner.performance.step_time import NoFit, at_quantile, fit_step_time

__all__ = ["FORMATS", "plot_curve"]

FORMATS: Final = (".png", ".svg", ".pdf")
BEYOND: Final = 2
"""Times the largest batch seen to which the line is drawn: as far as one change may go."""


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
    axes.plot([1, model.high], [model.predict(1) * 1e3, model.predict(model.high) * 1e3], color="#009E73",
              label="fitted step time, mean")  # fmt: skip
    axes.plot([model.high, furthest], [model.predict(model.high) * 1e3, model.predict(furthest) * 1e3],
              color="#009E73", linestyle=":", label="extrapolated")  # fmt: skip
    axes.plot([1, furthest], [late.predict(1) * 1e3, late.predict(furthest) * 1e3], color="#E69F00", linestyle="-.",
              label=f"the same at {objective.label}")  # fmt: skip
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
