"""Centre and bounds against tables, brute force, and what must hold for any numbers."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.change.signed_rank import interval, tail_ranks

NUMBERS = st.lists(st.floats(-5, 5), min_size=1, max_size=12)
LEVELS = st.sampled_from([1 / 32, 1 / 64, 0.005])


@pytest.mark.parametrize(
    ("count", "level", "rank"),
    [
        pytest.param(4, 1 / 32, None, id="four numbers: all on one side happens in 1 of 16"),
        pytest.param(5, 1 / 32, 0, id="five: 1 of 32"),
        pytest.param(5, 1 / 33, None, id="and no rarer"),
        # Critical values of the signed-rank test, one-sided, as in every table (minus nothing: P(T <= value) <= level).
        pytest.param(7, 0.025, 2, id="table: 7 at 2.5 %"),
        pytest.param(8, 0.025, 3, id="table: 8 at 2.5 %"),
        pytest.param(10, 0.025, 8, id="table: 10 at 2.5 %"),
        pytest.param(10, 0.01, 5, id="table: 10 at 1 %"),
        pytest.param(20, 0.05, 60, id="table: 20 at 5 %"),
        pytest.param(30, 0.005, 109, id="table: 30 at 0.5 %"),
    ],
)
def test_critical_values(count: int, level: float, rank: int | None) -> None:
    assert tail_ranks(count, level=level) == rank


@pytest.mark.parametrize("count", range(1, 11))
def test_levels_are_what_all_sign_patterns_say(count: int) -> None:
    sums = [sum(r for r, up in enumerate(signs, 1) if up) for signs in itertools.product((0, 1), repeat=count)]
    for level in (0.3, 1 / 8, 1 / 32, 1 / 64, 0.01):
        rank = tail_ranks(count, level=level)
        reached = -1 if rank is None else rank
        assert sum(total <= reached for total in sums) <= level * 2**count
        assert sum(total <= reached + 1 for total in sums) > level * 2**count


def test_worked() -> None:
    found = interval([3.0, 1.0, 2.0, 5.0, 4.0], level=1 / 32)
    assert (found.low, found.estimate, found.high) == (1.0, 3.0, 5.0)


def test_too_few_numbers_have_a_centre_and_no_bounds() -> None:
    found = interval([1.0, 3.0], level=1 / 32)
    assert (found.low, found.estimate, found.high) == (-math.inf, 2.0, math.inf)


def test_no_numbers() -> None:
    with pytest.raises(ValueError, match="needs numbers"):
        interval([], level=0.5)


@given(NUMBERS, LEVELS)
def test_mirrored_numbers_have_mirrored_bounds(values: list[float], level: float) -> None:
    one, other = interval(values, level=level), interval([-value for value in values], level=level)
    assert (one.low, one.estimate, one.high) == (-other.high, -other.estimate, -other.low)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 5)), min_size=1, max_size=12), LEVELS)
def test_no_bound_falls_when_numbers_rise(values: list[tuple[float, float]], level: float) -> None:
    before = interval([value for value, _ in values], level=level)
    after = interval([value + more for value, more in values], level=level)
    assert before.low <= after.low
    assert before.estimate <= after.estimate
    assert before.high <= after.high


@given(NUMBERS, LEVELS)
def test_bounds_hold_the_centre(values: list[float], level: float) -> None:
    found = interval(values, level=level)
    assert found.low <= found.estimate <= found.high
    assert min(values) <= found.estimate <= max(values)
