"""max-num-seqs chosen from the small loads of a curve, against the best point that was measured.

Apart from the comparison of latencies, because a model may be right on average and wrong where it decides.
What the chooser sees: the points below the first sign of saturation, and what the KV pool is computed to hold where
geometry and GPU are known. Nothing above. The choice is the product's own (`performance.knee`), at most twice the
largest batch seen, as in production.
Must not: count a configuration past its objective as anything but zero.

Goodput of a point: its output tokens per second when its TPOT is inside the objective (`REPEATABILITY`), else 0.
Between two points both are read off the straight line; beyond the last measured point its own figures hold.
Objectives: shares of the way from the lowest to the highest TPOT of the curve (`SHARES`), and none.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.measured_curves.groups import usable_points
from benchmarks.measured_curves.read import Curve, Point
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.batch_curve import BatchCurve, fit_batch_curve
from vllm_autotuner.performance.knee import largest_batch_within, largest_batch_worthwhile
from vllm_autotuner.performance.step_sample import StepSample, steady_sample
from vllm_autotuner.performance.step_time import NoFit, StepTime
from vllm_autotuner.performance.structured_law import StructuredLaw

__all__ = ["REPEATABILITY", "SHARES", "Choice", "batch_of", "choices"]

SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the way from the curve's lowest TPOT to its highest."""
LARGEST_STEP: Final = 2
"""Times the largest batch seen: what one change may do in production (`planning.limits`)."""
REPEATABILITY: Final = 0.01
"""Relative. A measured TPOT this much above an objective still counts as inside it, for the choice and for the best
point alike: curves that repeat a point (full seats, more load) differ by 0.2-2 % there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision and what it is worth."""

    objective: float | None
    """TPOT in seconds; None: throughput alone."""
    seen: int
    """Points that the chooser saw."""
    chosen: int
    goodput: float
    best: float
    """Sequences of the best measured point."""
    best_goodput: float
    steps_apart: int
    """On the grid of measured batches, rounded down."""

    @property
    def regret(self) -> float:
        """Goodput lost against the best measured point, 0..1; between two points more than the best counts as none."""
        return max(0.0, 1 - self.goodput / self.best_goodput)


def choices(
    curve: Curve, *, law: StructuredLaw | None, held: float | None, seen: Sequence[Point] | None = None
) -> tuple[Choice, ...]:
    """Return a choice for each objective; `held` is how many sequences the pool holds, None when not known.

    `law` helps where the curve has too few points of its own. `seen` narrows what the chooser sees.
    """
    visible = usable_points(curve) if seen is None else tuple(seen)
    model = _model(curve, visible, law)
    if model is None:
        return ()
    tpots = [point.tpot for point in curve.points]
    low, high = min(tpots), max(tpots)
    objectives = [low + share * (high - low) for share in SHARES] if high > low else []
    return tuple(_choice(curve, visible, model, held, objective) for objective in [*objectives, None])


def _model(curve: Curve, visible: Sequence[Point], law: StructuredLaw | None) -> StepTime | BatchCurve | None:
    points = [StepPoint(running=batch_of(curve, point), itl=point.tpot, tokens=1.0) for point in visible]
    fitted = fit_batch_curve(points)
    if not isinstance(fitted, NoFit):
        return fitted
    if law is None or not visible:
        return None
    # At one mix the law is a line: two batches give it.
    one, two = (law.predict(_at(curve, visible[0], batch)) for batch in (1, 2))
    return StepTime(
        base=2 * one - two,
        per_sequence=two - one,
        low=points[0].running,
        high=points[-1].running,
        points=len(points),
        error=law.error,
    )


def _at(curve: Curve, point: Point, batch: int) -> StepSample:
    share = curve.mean_share
    return steady_sample(
        batch=batch, prompt_tokens=point.prompt_tokens * share, output_tokens=point.output_tokens * share
    )


def _choice(
    curve: Curve,
    visible: Sequence[Point],
    model: StepTime | BatchCurve,
    held: float | None,
    objective: float | None,
) -> Choice:
    ceiling = min(LARGEST_STEP * batch_of(curve, visible[-1]), math.inf if held is None else held)
    if objective is None:
        chosen = largest_batch_worthwhile(model, ceiling=ceiling)
    else:
        # Not even one sequence meets it, says the model: the smallest engine is what is left to try.
        chosen = max(1, math.floor(min(largest_batch_within(model, target=objective) or 1, ceiling)))
    grid = sorted((batch_of(curve, point), point) for point in curve.points)
    batches = [batch for batch, _ in grid]
    values = [0.0 if _misses(point.tpot, objective) else _tokens(curve, point) for _, point in grid]
    best = int(np.argmax(values))
    return Choice(
        objective=objective,
        seen=len(visible),
        chosen=chosen,
        goodput=_goodput_between(grid, curve, chosen, objective),
        best=batches[best],
        best_goodput=values[best],
        steps_apart=abs(max(0, bisect_right(batches, chosen * (1 + 1e-9)) - 1) - best),
    )


def _goodput_between(grid: Sequence[tuple[float, Point]], curve: Curve, batch: float, objective: float | None) -> float:
    batches = [0.0, *(each for each, _ in grid)]
    tokens = [0.0, *(_tokens(curve, point) for _, point in grid)]
    tpots = [grid[0][1].tpot, *(point.tpot for _, point in grid)]
    if _misses(float(np.interp(batch, batches, tpots)), objective):
        return 0.0
    return float(np.interp(batch, batches, tokens))


def _misses(tpot: float, objective: float | None) -> bool:
    return objective is not None and tpot > objective * (1 + REPEATABILITY)


def batch_of(curve: Curve, point: Point) -> float:
    """Return the sequences that run together at a point; in a closed loop, the seats that so many clients fill.

    Never less than one: whatever the mean over time, a token is made in the company of its own sequence.
    """
    return max(1.0, point.x if curve.load.closed else (point.throughput or 0.0) * point.tpot)


def _tokens(curve: Curve, point: Point) -> float:
    """Return output tokens per second: as measured, else what the batch gives at this TPOT."""
    return point.throughput if point.throughput is not None else point.x / point.tpot
