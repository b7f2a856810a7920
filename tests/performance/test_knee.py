import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.performance.measured_sweep import F4, PREEMPTING, Row, model, settings_within, sweep

from vllm_autotuner.performance.knee import largest_batch_at_quantile, largest_batch_within
from vllm_autotuner.performance.step_time import StepTime, at_quantile


@pytest.mark.parametrize(
    ("base", "slope", "target", "expected"),
    [
        # (20 - 8) / 0.2 = 60
        pytest.param(0.008, 0.0002, 0.020, 60, id="the last batch inside the objective"),
        pytest.param(0.008, 0.0002, 0.0201, 60, id="whole sequences only"),
        pytest.param(0.008, 0.0002, 0.0082, 1, id="exactly one"),
        pytest.param(0.008, 0.0002, 0.008, None, id="not even one: the step itself is too slow"),
        pytest.param(0.020, 0.0, 0.050, 128, id="without a slope no more than was seen"),
        pytest.param(0.060, 0.0, 0.050, None, id="too slow without a slope"),
    ],
)
def test_largest_batch_within(base: float, slope: float, target: float, expected: int | None) -> None:
    assert largest_batch_within(model(base, slope), target=target) == expected


@given(st.floats(1e-4, 0.1), st.floats(1e-6, 0.01), st.floats(1e-3, 1.0))
def test_the_answer_meets_the_objective_and_one_more_does_not(base: float, slope: float, target: float) -> None:
    found = largest_batch_within(model(base, slope), target=target)
    if found is not None:
        assert model(base, slope).predict(found) <= target * (1 + 1e-6)
        assert model(base, slope).predict(found + 1) > target * (1 - 1e-6)


@pytest.mark.parametrize("column", [2, 3], ids=["p50 TPOT", "p99 TPOT"])
@pytest.mark.parametrize("row", [row for row in F4 if row[0] < PREEMPTING], ids=lambda row: f"F4 {row[0]} sequences")
def test_the_line_describes_the_rows_before_preemption(row: Row, column: int) -> None:
    # The smallest batch is bandwidth-bound and flat: the line is 21 % below its p50, the others are within 6 %.
    assert sweep(column).predict(row[0]) * 1000 == pytest.approx(row[column], rel=0.22 if row[0] == 8 else 0.06)


def test_with_a_p99_objective_of_20_ms_the_answer_is_64() -> None:
    assert settings_within(largest_batch_within(sweep(3), target=0.020)) == 64


def test_without_a_limit_that_binds_the_answer_is_where_throughput_peaks() -> None:
    fastest = max(F4, key=lambda row: row[1])
    assert fastest[0] == 128
    assert settings_within(largest_batch_within(sweep(3), target=fastest[3] / 1000)) == 128


@pytest.mark.parametrize("row", [row for row in F4 if row[0] >= PREEMPTING], ids=lambda row: f"F4 {row[0]} sequences")
def test_preemption_is_slower_than_the_line_of_the_other_rows(row: Row) -> None:
    assert row[2] > 1.05 * sweep(2).predict(row[0]) * 1000
    assert row[3] > 1.15 * sweep(3).predict(row[0]) * 1000


QUEUE = StepTime(base=0.010, per_sequence=0.0001, low=1, high=200, points=10, error=0.01)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        # The batch adds 30 ms to the quantile at 100 sequences, and may add 15.
        pytest.param(2.0, 50, id="a tail is of what the batch adds"),
        pytest.param(1.0, 150, id="no tail: the mean decides"),
        # 90 ms: even a tail of 5 leaves a batch, as a single sequence has none.
        pytest.param(5.0, 16, id="a long tail leaves a small batch"),
    ],
)
def test_the_tail_of_a_batch_shrinks_with_the_batch(tail: float, expected: int) -> None:
    assert largest_batch_at_quantile(QUEUE, target=0.025, tail=tail, seen_at=100) == expected


def test_the_line_of_a_quantile_meets_the_mean_at_no_batch_and_the_tail_where_it_was_seen() -> None:
    late = at_quantile(QUEUE, tail=2.0, seen_at=100)
    assert (late.predict(0), late.predict(50), late.predict(100)) == pytest.approx((0.010, 0.025, 0.040))


@pytest.mark.parametrize(("tail", "seen_at"), [(1.0, 100.0), (0.9, 100.0), (2.0, 0.0)])
def test_without_a_tail_or_a_batch_the_quantile_is_in_proportion_to_the_mean(tail: float, seen_at: float) -> None:
    late = at_quantile(QUEUE, tail=tail, seen_at=seen_at)
    assert late.predict(60) == pytest.approx(max(1.0, tail) * QUEUE.predict(60))


def test_a_step_that_is_too_slow_alone_has_no_batch_at_any_tail() -> None:
    assert largest_batch_at_quantile(QUEUE, target=0.009, tail=2.0, seen_at=100) is None
