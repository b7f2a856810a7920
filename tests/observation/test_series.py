import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.series import Series, extrapolated_increase, plain_increase, since


def counter(*points: tuple[float, float]) -> Series:
    return Series(labels={"__name__": "c"}, times=[time for time, _ in points], values=[value for _, value in points])


@pytest.mark.fault("T15")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([], None, id="no sample says nothing"),
        pytest.param([7], None, id="one sample says nothing about growth"),
        pytest.param([7, 7], 0, id="a counter that stands still grew by zero"),
        pytest.param([7, 9, 12], 5, id="from the first to the last"),
        pytest.param([7, 9, 2, 4], 6, id="a fall is a restart from zero: 2 before it, 4 after"),
        pytest.param([5, 1, 3, 0, 2], 5, id="two restarts: 0 + 1, then 2, then 2"),
        pytest.param([5, 0], 0, id="a restart at once"),
    ],
)
def test_plain_increase(values: list[float], expected: float | None) -> None:
    assert plain_increase(values) == expected


@pytest.mark.parametrize(
    ("points", "start", "end", "expected"),
    [
        # Grew 30 in 30 s; both edges are 5 s away, nearer than 1.1 spacings, so all 40 s count: 30 * 40 / 30.
        pytest.param([(5, 100), (15, 110), (25, 120), (35, 130)], 0, 40, 40.0, id="extended to both near edges"),
        # The counter was zero 0 s before its first sample, so nothing is added there: 30 * (30 + 0 + 5) / 30.
        pytest.param([(5, 0), (15, 10), (25, 20), (35, 30)], 0, 40, 35.0, id="never before the counter was zero"),
        # Zero 2 s before the first sample (2 of 30 in 30 s): 30 * (30 + 2 + 5) / 30.
        pytest.param([(5, 2), (15, 12), (25, 22), (35, 32)], 0, 40, 37.0, id="back to zero and no further"),
        # 25 s to the start is far (spacing 5), so half a spacing: 10 * (10 + 2.5 + 5) / 10.
        pytest.param([(25, 100), (30, 105), (35, 110)], 0, 40, 17.5, id="half a spacing where the start is far"),
        # 1.1 spacings of 10 s divide near from far: 10.9 s count in full, of 11.2 s only 5.
        pytest.param([(10.9, 100), (20.9, 110), (30.9, 120)], 0, 30.9, 20 * 30.9 / 20, id="just near enough"),
        pytest.param([(11.2, 100), (21.2, 110), (31.2, 120)], 0, 31.2, 20 * 25 / 20, id="just too far"),
        # 25 s to the end is far, so half a spacing: 10 * (10 + 5 + 2.5) / 10.
        pytest.param([(5, 100), (10, 105), (15, 110)], 0, 40, 17.5, id="half a spacing where the end is far"),
        # 10 before the restart and 6 after it in 30 s: 16 * 40 / 30.
        pytest.param([(5, 100), (15, 110), (25, 0), (35, 6)], 0, 40, 16 * 40 / 30, id="over a restart"),
        # The first sample lies on the start, which the window leaves out: 20 * (20 + 10 + 10) / 20.
        pytest.param([(0, 0), (10, 50), (20, 60), (30, 70)], 0, 40, 40.0, id="the start is outside of the window"),
        pytest.param([(10, 50), (20, 60), (40, 80)], 0, 40, 30 * (30 + 10 + 0) / 30, id="the end is inside"),
        pytest.param([(5, 7), (15, 7), (25, 7)], 0, 30, 0.0, id="standing still is zero"),
        pytest.param([(5, 7)], 0, 30, None, id="one sample is no growth"),
        pytest.param([], 0, 30, None, id="no sample is no growth"),
        pytest.param([(5, 1), (5, 2)], 0, 30, None, id="two samples of one moment are no growth"),
    ],
)
def test_extrapolated_increase_is_that_of_promql(
    points: list[tuple[float, float]], start: float, end: float, expected: float | None
) -> None:
    found = extrapolated_increase(counter(*points), start=start, end=end)
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_window_is_open_at_its_start_and_closed_at_its_end() -> None:
    window = since(counter((0, 1), (10, 2), (20, 3), (30, 4)), start=10, end=30)
    assert (window.times, window.values) == ([20, 30], [3, 4])


@given(st.lists(st.floats(min_value=0, max_value=1e9), min_size=2, max_size=30))
def test_growth_is_never_negative(values: list[float]) -> None:
    found = plain_increase(values)
    assert found is not None
    assert found >= 0


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=2, max_size=20), st.integers(1, 18))
def test_growth_over_a_whole_is_the_sum_of_its_parts(values: list[float], at: int) -> None:
    cut = min(at, len(values) - 1)
    parts = [plain_increase(values[: cut + 1]), plain_increase(values[cut:])]
    assert plain_increase(values) == pytest.approx(sum(part for part in parts if part is not None))
