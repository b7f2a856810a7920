"""Latency against batch where it was measured, and the knee that follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_curves.batch_curve import (
    MISS_LEAST,
    BatchCurve,
    fit_batch_curve,
)
from benchmarks.measured_curves.curve_knee import FURTHEST, largest_batch_within, largest_batch_worthwhile
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.consolidation import MISS_UNKNOWN
from vllm_autotuner.performance.step_time import NoFit


def measured(*points: tuple[float, float]) -> BatchCurve:
    """(batch, milliseconds), each a long mean."""
    found = fit_batch_curve([StepPoint(running=batch, itl=itl / 1e3, tokens=1.0) for batch, itl in points])
    assert isinstance(found, BatchCurve), found
    return found


STRAIGHT = ((4.0, 11.2), (8.0, 12.4), (16.0, 14.8), (32.0, 19.6))  # 10 + 0.3 * batch
BENT = ((4.0, 11.2), (8.0, 12.4), (16.0, 14.8), (32.0, 26.0))  # slower than the line from 16 on


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        pytest.param(16, 14.8, id="a point is what it is"),
        pytest.param(24, 20.4, id="between two points: 14.8 + (26 - 14.8) / 2"),
    ],
)
def test_inside_its_range_it_goes_through_the_points(batch: float, expected: float) -> None:
    assert measured(*BENT).predict(batch) * 1e3 == pytest.approx(expected)


def test_beyond_its_range_it_goes_on_like_the_line() -> None:
    curve = measured(*STRAIGHT)
    # 19.6 + 0.3 * 32; one doubling, foreseen so far, so the least margin is planned with.
    assert curve.predict(64) * 1e3 == pytest.approx(29.2)
    assert curve.at_most(64) * 1e3 == pytest.approx(29.2 * (1 + MISS_LEAST))
    assert curve.at_most(32) == curve.predict(32)


def test_a_curve_that_surprised_at_its_last_point_is_trusted_less_beyond_it() -> None:
    # The line of the others foresees 14.8 + 0.3 * 16 = 19.6 at 32; 26 came: 33 % more in one doubling.
    assert measured(*BENT).miss == pytest.approx(26 / 19.6 - 1, rel=0.01)


def test_three_points_foresee_nothing() -> None:
    assert measured(*STRAIGHT[:3]).miss == MISS_UNKNOWN


def test_latency_that_falls_is_noise() -> None:
    curve = measured((4, 11.0), (8, 13.0), (16, 12.0), (32, 20.0))
    assert curve.itls == pytest.approx((0.011, 0.0125, 0.0125, 0.020))


def test_points_of_nearly_the_same_batch_count_by_their_tokens() -> None:
    points = [StepPoint(running=10.0, itl=0.010, tokens=3.0), StepPoint(running=11.0, itl=0.014, tokens=1.0)]
    points += [StepPoint(running=batch, itl=0.01 + batch * 3e-4, tokens=1.0) for batch in (20.0, 40.0, 80.0)]
    curve = fit_batch_curve(points)
    assert isinstance(curve, BatchCurve)
    assert (curve.batches[0], curve.itls[0]) == pytest.approx((10.25, 0.011))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([], id="none"),
        pytest.param([(4, 11.2), (8, 12.4)], id="two"),
        pytest.param([(10, 13), (10.5, 13.1), (11, 13.2)], id="no spread"),
        pytest.param([(4, 20), (16, 15), (64, 10)], id="falling"),
    ],
)
def test_what_carries_no_curve_says_so(points: list[tuple[float, float]]) -> None:
    found = fit_batch_curve([StepPoint(running=batch, itl=itl / 1e3, tokens=1.0) for batch, itl in points])
    assert isinstance(found, NoFit)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(14.8, 16, id="met exactly by a point"),
        pytest.param(20.4, 24, id="between two points"),
        pytest.param(12.3, 7, id="whole sequences only"),
        pytest.param(5.0, None, id="not even one"),
    ],
)
def test_the_largest_batch_within_an_objective_follows_the_points(target: float, expected: int | None) -> None:
    assert largest_batch_within(measured(*BENT), target=target / 1e3) == expected


def test_beyond_the_points_it_keeps_a_margin() -> None:
    # Without margin 10 + 0.3 b <= 25 gives 50. At 48 the margin is 0.05 * log2(48 / 32) = 2.9 %: 24.4 -> 25.1.
    assert largest_batch_within(measured(*STRAIGHT), target=0.025) == 47


@pytest.mark.parametrize(
    ("points", "ceiling", "expected"),
    [
        # Throughput per ms: 0.36, 0.65, 1.08, 1.63: every step pays. On the line until 10 / 0.3 * (1 / sqrt(0.05) - 1).
        pytest.param(STRAIGHT, 1e6, 115, id="beyond what was seen while much is promised"),
        pytest.param(STRAIGHT, 48, 48, id="no further than allowed"),
        pytest.param((*STRAIGHT, (64.0, 45.0)), 1e6, 32, id="not to where throughput falls"),
        pytest.param((*STRAIGHT, (64.0, 40.0), (128.0, 60.0)), 1e6, 128, id="past a step that noise made bad"),
        pytest.param(((8, 100), (16, 199.9), (32, 399.7), (64, 799.5)), 1e6, 8, id="not for next to nothing"),
    ],
)
def test_without_objective_the_batch_ends_where_more_does_not_pay(
    points: tuple[tuple[float, float], ...], ceiling: float, expected: int
) -> None:
    assert largest_batch_worthwhile(measured(*points), ceiling=ceiling) == expected


@given(
    st.lists(st.tuples(st.floats(1, 512), st.floats(2, 500)), min_size=3, max_size=12),
    st.floats(1, 1000),
)
def test_whatever_the_points_the_answer_meets_the_objective_and_one_more_does_not(
    points: list[tuple[float, float]], target: float
) -> None:
    curve = fit_batch_curve([StepPoint(running=batch, itl=itl / 1e3, tokens=1.0) for batch, itl in points])
    if isinstance(curve, NoFit):
        return
    found = largest_batch_within(curve, target=target / 1e3)
    if found is None:
        assert curve.at_most(1) > target / 1e3
    else:
        assert curve.at_most(found) <= target / 1e3 * (1 + 1e-6)
        more = curve.at_most(found + 1) >= target / 1e3 * (1 - 1e-6)
        assert more or found + 1 >= FURTHEST or curve.line.per_sequence < 1e-9


def minutes(*points: tuple[float, float], since: float = 0.0) -> list[StepPoint]:
    """A window a minute; (batch, itl in ms)."""
    return [
        StepPoint(running=batch, itl=itl / 1e3, tokens=batch, time=60.0 * (since + index))
        for index, (batch, itl) in enumerate(points)
    ]


STEADY = minutes(*((batch, 10 + 0.1 * batch) for batch in (48, 50, 52, 49, 51, 50, 48, 400, 420, 410)))


def test_a_minute_in_which_the_batch_drained_is_no_point_of_the_curve() -> None:
    # On average 190 ran, but the tokens came while there were 400: 39.7 ms where the line says 29.
    found = fit_batch_curve([*STEADY, *minutes((190, 39.7), since=10)])
    assert isinstance(found, BatchCurve)
    assert not any(180 < batch < 200 for batch in found.batches)
    assert found.predict(190) == pytest.approx(0.029, rel=0.02)


def test_three_such_minutes_are_a_state_and_count() -> None:
    found = fit_batch_curve([*STEADY, *minutes((190, 39.7), (191, 39.8), (192, 39.9), since=10)])
    assert isinstance(found, BatchCurve)
    assert found.predict(191) == pytest.approx(0.0398, rel=0.02)


def test_a_point_of_no_window_is_a_long_mean_and_counts_alone() -> None:
    alone = [StepPoint(running=190, itl=0.0397, tokens=190.0)]
    found = fit_batch_curve([*STEADY, *alone])
    assert isinstance(found, BatchCurve)
    assert found.predict(190) == pytest.approx(0.0397, rel=0.02)
