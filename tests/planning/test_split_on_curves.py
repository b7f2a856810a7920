"""TP or replicas for the same GPUs, chosen from one measured degree and judged by both: third-party curves.

The chooser sees the points of one degree below saturation and predicts the other; what both serve is measured. Regret
is the goodput lost against the better split of the same GPUs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from tests.benchmarks.measured import measured_data

from benchmarks.measured_curves.groups import SetUp, sample_at, set_ups, usable_points
from benchmarks.measured_curves.read import Curve, read_curves
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.batch_curve import BatchCurve, fit_batch_curve
from vllm_autotuner.performance.tensor_parallel import curve_at_degree
from vllm_autotuner.planning.parallelism import best_split, goodput_within

SHARES = (0.25, 0.5, 0.75)
"""Objectives: of the way from the lowest to the highest TPOT of the slower degree."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    where: str
    chosen: int
    regret: float


def measured_goodput(curve: Curve, objective: float, *, held: float) -> float:
    """Tokens per second at the largest batch inside the objective, between points on a straight line."""
    points = usable_points(curve)
    batches = np.array([sample_at(curve, point).batch for point in points])
    tpots = np.maximum.accumulate([point.tpot for point in points])
    if tpots[0] > objective:
        return 0.0
    batch = min(float(np.interp(objective, tpots, batches)), held)
    return batch / float(np.interp(batch, batches, tpots))


def curve_of(curve: Curve) -> BatchCurve:
    points = [
        StepPoint(running=sample_at(curve, point).batch, itl=point.tpot, tokens=1.0) for point in usable_points(curve)
    ]
    found = fit_batch_curve(points)
    assert isinstance(found, BatchCurve)
    return found


def outcomes(one: SetUp, other: SetUp) -> Iterator[Outcome]:
    """Every mix and objective at which both degrees were measured, chosen from `one`."""
    degrees = one.first.tensor_parallel_size, other.first.tensor_parallel_size
    gpus = max(degrees)
    for curve in one.curves:
        twin = next((each for each in other.curves if each.mix == curve.mix), None)
        if twin is None:
            continue
        own = curve_of(curve)
        point = curve.points[0]
        predicted = curve_at_degree(
            own,
            degree=degrees[0],
            wanted=degrees[1],
            shape=one.shape,
            gpu=one.gpu,
            bytes_per_weight=curve.bytes_per_weight,
            context=(point.prompt_tokens + point.output_tokens / 2) * curve.mean_share,
        )
        assert isinstance(predicted, BatchCurve)
        # As far as both were measured: beyond, nobody knows which is better.
        held = min(sample_at(each, usable_points(each)[-1]).batch for each in (curve, twin))
        tpots = [each.tpot for each in curve.points]
        for share in SHARES:
            objective = min(tpots) + share * (max(tpots) - min(tpots))
            said = {
                degrees[0]: goodput_within(own, tpot=objective, held=held),
                degrees[1]: goodput_within(predicted, tpot=objective, held=held),
            }
            truth = {
                degrees[0]: measured_goodput(curve, objective, held=held) * (gpus // degrees[0]),
                degrees[1]: measured_goodput(twin, objective, held=held) * (gpus // degrees[1]),
            }
            chosen = best_split(said, gpus=gpus, current=degrees[0])
            yield Outcome(
                where=f"{one.first.model} {one.first.gpu} {degrees[0]}->{degrees[1]} {curve.mix} {objective:.4f}",
                chosen=chosen,
                regret=1 - truth[chosen] / max(truth.values()),
            )


def pairs(found: Sequence[SetUp]) -> Iterator[tuple[SetUp, SetUp]]:
    for one, other in permutations(found, 2):
        same = (one.first.model, one.first.gpu) == (other.first.model, other.first.gpu)
        if same and one.first.tensor_parallel_size != other.first.tensor_parallel_size:
            yield one, other


def test_the_chosen_split_is_the_best_or_within_5_percent() -> None:
    found = [each for pair in pairs(set_ups(read_curves(measured_data("curves")))) for each in outcomes(*pair)]
    if not found:
        pytest.skip("no model was measured at two degrees on one GPU")
    worst = max(found, key=lambda each: each.regret)
    assert worst.regret <= 0.05, worst
