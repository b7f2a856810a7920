"""Each half of a sweep foretold from the other, and the knee that each fit chooses against the whole sweep.

Halves are every other number of clients: the first, third, fifth ... are odd, the others even.
Three laws: the product's (`performance.step_time`), weighted by tokens as its windows are, a line or of a mixture of
experts a curve; the structured law of the measured curves with its priors; and the measured points themselves, joined
by straight lines (`batch_curve`).
Must not: leave a point out for its error, or say what lies beyond the last measured point.

The knee is the product's: the largest batch whose foretold mean latency is inside the objective.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from benchmarks.measured_curves.batch_curve import BatchCurve, fit_batch_curve
from benchmarks.measured_curves.choose import goodput_between, line_of
from benchmarks.measured_curves.curve_knee import largest_batch_within
from benchmarks.measured_curves.groups import SetUp, batch_of, sample_at
from benchmarks.measured_curves.read import Curve, Point
from benchmarks.measured_curves.structured_law import fit_structured_law
from vllm_autotuner.engine.geometry import geometry_named
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import NoFit, StepTime, fit_step_time

__all__ = ["HALVES", "LAWS", "OBJECTIVES", "Fit", "Knee", "LeftOut", "fits_of", "measured_knee"]

OBJECTIVES: Final = (0.015, 0.020, 0.030, 0.050)
"""TPOT in seconds."""
Model: TypeAlias = StepTime | BatchCurve
HALVES: Final = {"odd": slice(0, None, 2), "even": slice(1, None, 2), "all": slice(None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One point that a law was asked for; seconds."""

    clients: float
    measured: float
    foretold: float
    beyond: bool
    """Outside the batches that the law was fitted on."""

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.foretold / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """One objective; seconds, sequences and shares."""

    objective: float
    measured: float | None
    """On the straight lines between the points. None: even the last point is inside; 0: not even the first."""
    chosen: int | None
    """None: not even one sequence meets it, says the law."""
    tpot: float | None
    """Of the sweep at the chosen batch; None beyond its last point."""
    lost: float | None
    """Goodput against the best of the sweep, 0..1; None where choice and objective lie beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One law on one half. Points are those left out; of `all` they are its own."""

    law: str
    half: str
    model: Model | NoFit
    points: tuple[LeftOut, ...]
    knees: tuple[Knee, ...]


def _windows(curve: Curve, points: Sequence[Point]) -> list[StepPoint]:
    experts = geometry_named(curve.model).experts
    return [
        StepPoint(running=batch_of(curve, each), itl=each.tpot, tokens=each.throughput or 1.0, experts=experts)
        for each in points
    ]


def _structured(curve: Curve, points: Sequence[Point], set_up: SetUp) -> StepTime | NoFit:
    law = fit_structured_law([sample_at(curve, each) for each in points], priors=set_up.priors)
    return law if isinstance(law, NoFit) else line_of(law, curve, points)


LAWS: Final[Mapping[str, Callable[[Curve, Sequence[Point], SetUp], Model | NoFit]]] = {
    "line": lambda curve, points, _: fit_step_time(_windows(curve, points)),
    "structured": _structured,
    "points": lambda curve, points, _: fit_batch_curve(_windows(curve, points)),
}


def fits_of(curve: Curve, set_up: SetUp) -> tuple[Fit, ...]:
    """Return every law on every half of a curve."""
    return tuple(_fit(curve, set_up, name, half) for name in LAWS for half in HALVES)


def _fit(curve: Curve, set_up: SetUp, name: str, half: str) -> Fit:
    seen = curve.points[HALVES[half]]
    model = LAWS[name](curve, seen, set_up)
    if isinstance(model, NoFit):
        return Fit(law=name, half=half, model=model, points=(), knees=())
    asked = [point for point in curve.points if half == "all" or point not in seen]
    low, high = batch_of(curve, seen[0]), batch_of(curve, seen[-1])
    return Fit(
        law=name,
        half=half,
        model=model,
        points=tuple(
            LeftOut(
                clients=point.x,
                measured=point.tpot,
                foretold=model.predict(batch_of(curve, point)),
                beyond=not low <= batch_of(curve, point) <= high,
            )
            for point in asked
        ),
        knees=tuple(_knee(curve, model, objective) for objective in OBJECTIVES),
    )


def measured_knee(curve: Curve, objective: float) -> float | None:
    """Return the largest batch inside the objective on the straight lines between the points; see `Knee.measured`."""
    batches, tpots = [batch_of(curve, each) for each in curve.points], [each.tpot for each in curve.points]
    inside = [index for index, tpot in enumerate(tpots) if tpot <= objective]
    if not inside:
        return 0.0
    last = inside[-1]
    if last == len(tpots) - 1:
        return None
    return float(np.interp(objective, tpots[last : last + 2], batches[last : last + 2]))


def _knee(curve: Curve, model: Model, objective: float) -> Knee:
    grid = [(batch_of(curve, point), point) for point in curve.points]
    batches = [batch for batch, _ in grid]
    knee, chosen = measured_knee(curve, objective), largest_batch_within(model, target=objective)
    best = max(goodput_between(grid, curve, batch, objective) for batch in (*batches, knee or 0.0))
    seen = chosen is not None and chosen <= batches[-1]
    lost = None
    if best > 0 and (seen or knee is not None):
        # Past the last point the latency is still higher than at it.
        lost = max(0.0, 1 - goodput_between(grid, curve, min(chosen or 0, batches[-1]), objective) / best)
    tpot = float(np.interp(chosen, batches, [each.tpot for each in curve.points])) if chosen and seen else None
    return Knee(objective=objective, measured=knee, chosen=chosen, tpot=tpot, lost=lost)
