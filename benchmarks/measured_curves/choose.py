"""max-num-seqs chosen from the small loads of a curve, against the best point that was measured.

Apart from the comparison of latencies, because a model may be right on average and wrong where it decides.
What the chooser sees: the points below the first sign of saturation, and what the KV pool is computed to hold where
geometry and GPU are known. Nothing above. The choice is `curve_knee`, on the points themselves; the product has a line
(`performance.knee`). Where nothing is known of the pool it goes no further than one step of production.
Must not: count a configuration past its objective as anything but zero.

Goodput of a point: its output tokens per second when its TPOT is inside the objective, else 0.
Between two points both are read off the straight line (`REPEATABILITY`); beyond the last measured point its own
figures hold.
Objectives: shares of the way from the lowest to the highest TPOT of the curve (`SHARES`), and none.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.measured_curves.batch_curve import BatchCurve, fit_batch_curve
from benchmarks.measured_curves.curve_knee import largest_batch_within, largest_batch_worthwhile
from benchmarks.measured_curves.groups import DEFAULT_SEATS, DEFAULT_UTILIZATION, SetUp, batch_of, usable_points
from benchmarks.measured_curves.read import Curve, Point
from benchmarks.measured_curves.step_sample import StepSample, steady_sample
from benchmarks.measured_curves.structured_law import StructuredLaw
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.kv_capacity import KV_MARGIN, Pool, UnknownPool, first_pool
from vllm_autotuner.performance.step_time import NoFit, StepTime

__all__ = [
    "REPEATABILITY",
    "SHARES",
    "Choice",
    "choices",
    "choices_after",
    "goodput_between",
    "held_by_pool",
    "line_of",
    "seats_held",
]

SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the way from the curve's lowest TPOT to its highest."""
LARGEST_STEP: Final = 2
"""Times the largest batch seen: what one change may do in production (`planning.capped_value`), where the next
bottleneck is not known."""
STEPS: Final = 500
"""Batches that are tried between the first and the last measured one."""
REPEATABILITY: Final = 0.01
"""Relative. A TPOT that is read between two points still counts as inside an objective when it is this much above:
curves that repeat a point (full seats, more load) differ by 0.2-2 % there. The points are taken at their word."""


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
    best_between: float
    """The best goodput between the measured points as well: harder than any that was measured."""
    steps_apart: int
    """On the grid of measured batches, rounded down."""

    @property
    def regret(self) -> float:
        """Goodput lost against the best measured point, 0..1; between two points more than the best counts as none."""
        return max(0.0, 1 - self.goodput / self.best_goodput)

    @property
    def regret_between(self) -> float:
        """Goodput lost against the best batch there is on the straight lines between the points."""
        return max(0.0, 1 - self.goodput / self.best_between)


def choices_after(curve: Curve, points: int, *, law: StructuredLaw | None, held: float | None) -> tuple[Choice, ...]:
    """Return the choices of one who has seen the first `points` only, on the part of the curve within one step."""
    visible = usable_points(curve)[:points]
    if not visible:
        return ()
    reach = LARGEST_STEP * batch_of(curve, visible[-1])
    within = tuple(point for point in curve.points if batch_of(curve, point) <= reach * (1 + 1e-9))
    return choices(
        replace(curve, points=within), law=law, held=reach if held is None else min(held, reach), seen=visible
    )


def held_by_pool(set_up: SetUp, curve: Curve) -> float | None:
    """Return how many sequences of this mix the pool is computed to hold, with the usual margin; None: not known."""
    point = curve.points[-1]
    seats = curve.seats or (round(point.x) if curve.load.is_max_num_seqs else DEFAULT_SEATS)
    wanted = Pool(
        tokens=0,
        tensor_parallel_size=curve.tensor_parallel_size,
        kv_cache_dtype="fp8" if curve.fp8_kv else None,
        gpu_memory_utilization=curve.utilization or DEFAULT_UTILIZATION,
        max_num_seqs=seats,
    )
    forecast = first_pool(wanted, shape=set_up.shape, gpu=set_up.gpu, bytes_per_weight=curve.bytes_per_weight)
    if isinstance(forecast, UnknownPool):
        return None
    return seats_held(
        forecast.tokens,
        prompt_tokens=point.prompt_tokens * curve.mean_share,
        output_tokens=point.output_tokens * curve.mean_share,
    )


def seats_held(tokens: float, *, prompt_tokens: float, output_tokens: float, margin: float = KV_MARGIN) -> float:
    """Return how many sequences of these mean lengths a pool holds in steady state: each has half of its output.

    Worked: 282,496 tokens, 4096 + 1024: 0.9 * 282,496 / 4,608 = 55; without margin 61, where the measured curve of
    that model saturates at 64.
    """
    return tokens * (1 - margin) / (prompt_tokens + output_tokens / 2)


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
    objectives = [low + share * (high - low) for share in SHARES]
    return tuple(_choice(curve, visible, model, held, objective) for objective in [*objectives, None])


def _model(curve: Curve, visible: Sequence[Point], law: StructuredLaw | None) -> StepTime | BatchCurve | None:
    points = [StepPoint(running=batch_of(curve, point), itl=point.tpot, tokens=1.0) for point in visible]
    fitted = fit_batch_curve(points)
    if not isinstance(fitted, NoFit):
        return fitted
    return None if law is None or not visible else line_of(law, curve, visible)


def line_of(law: StructuredLaw, curve: Curve, points: Sequence[Point]) -> StepTime:
    """Return the line that the law is at the mix of these points: two batches give it."""
    one, two = (law.predict(_at(curve, points[0], batch)) for batch in (1, 2))
    return StepTime(
        base=2 * one - two,
        per_sequence=two - one,
        low=batch_of(curve, points[0]),
        high=batch_of(curve, points[-1]),
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
    # What ran without a queue was held, whatever the arithmetic says.
    ran = batch_of(curve, visible[-1])
    ceiling = LARGEST_STEP * ran if held is None else max(held, ran)
    if objective is None:
        chosen = largest_batch_worthwhile(model, ceiling=ceiling)
    else:
        # Not even one sequence meets it, says the model: the smallest engine is what is left to try.
        chosen = max(1, math.floor(min(largest_batch_within(model, target=objective) or 1, ceiling)))
    grid = sorted((batch_of(curve, point), point) for point in curve.points)
    batches = [batch for batch, _ in grid]
    values = [0.0 if objective is not None and point.tpot > objective else _tokens(curve, point) for _, point in grid]
    best = int(np.argmax(values))
    return Choice(
        objective=objective,
        seen=len(visible),
        chosen=chosen,
        goodput=goodput_between(grid, curve, chosen, objective),
        best=batches[best],
        best_goodput=values[best],
        best_between=max(
            goodput_between(grid, curve, batch, objective) for batch in np.linspace(batches[0], batches[-1], STEPS)
        ),
        steps_apart=abs(max(0, bisect_right(batches, chosen * (1 + 1e-9)) - 1) - best),
    )


def goodput_between(grid: Sequence[tuple[float, Point]], curve: Curve, batch: float, objective: float | None) -> float:
    """Return the goodput of a batch on the straight lines between the points of `grid`, by rising batch."""
    batches = [0.0, *(each for each, _ in grid)]
    tokens = [0.0, *(_tokens(curve, point) for _, point in grid)]
    tpots = [grid[0][1].tpot, *(point.tpot for _, point in grid)]
    if objective is not None and float(np.interp(batch, batches, tpots)) > objective * (1 + REPEATABILITY):
        return 0.0
    return float(np.interp(batch, batches, tokens))


def _tokens(curve: Curve, point: Point) -> float:
    """Return output tokens per second: as measured, else what the batch gives at this TPOT."""
    return point.throughput if point.throughput is not None else batch_of(curve, point) / point.tpot
