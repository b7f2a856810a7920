"""The knee of a measured curve, and the batch up to which more sequences still pay."""

import pytest
from tests.performance.measured_sweep import F4, PREEMPTING, model, settings_within, sweep

from benchmarks.measured_curves.batch_curve import BatchCurve, fit_batch_curve
from benchmarks.measured_curves.curve_knee import largest_batch_within, largest_batch_worthwhile
from vllm_autotuner.observation.observation import StepPoint


@pytest.mark.parametrize("column", [2, 3], ids=["p50 TPOT", "p99 TPOT"])
@pytest.mark.parametrize("below", [PREEMPTING, 1000], ids=["without the rows of preemption", "with them"])
def test_the_measured_sweep_itself_gives_both_answers(column: int, below: int) -> None:
    points = [StepPoint(running=row[0], itl=row[column] / 1000, tokens=1.0) for row in F4 if row[0] < below]
    curve = fit_batch_curve(points)
    assert isinstance(curve, BatchCurve)
    assert settings_within(largest_batch_within(curve, target=0.020)) == 64
    assert settings_within(largest_batch_worthwhile(curve)) == 128


def test_without_objective_the_line_gives_128() -> None:
    assert largest_batch_worthwhile(sweep(2)) == 128
    assert largest_batch_worthwhile(sweep(3)) == 128


@pytest.mark.parametrize(
    ("base", "slope", "high", "ceiling", "expected"),
    [
        # 0.008 / 0.0002 * (1 / sqrt(0.005) - 1) = 525.7 inside what was seen, 138.9 with 0.05 beyond it.
        pytest.param(0.008, 0.0002, 1000, 1e6, 525, id="inside what was seen"),
        pytest.param(0.008, 0.0002, 64, 1e6, 138, id="beyond what was seen it must promise more"),
        pytest.param(0.008, 0.0002, 300, 1e6, 300, id="seen further than promised"),
        pytest.param(0.008, 0.0002, 64, 90, 90, id="no further than allowed"),
        pytest.param(0.008, 0.0, 64, 1e6, 64, id="without a slope no more than was seen"),
    ],
)
def test_largest_batch_worthwhile(base: float, slope: float, high: float, ceiling: float, expected: int) -> None:
    assert largest_batch_worthwhile(model(base, slope, high=high), ceiling=ceiling) == expected
