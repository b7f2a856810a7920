"""Bounds of a difference against tables, brute force, and what must hold for any numbers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.change.rank_sum import difference

GROUP = st.lists(st.floats(-5, 5), min_size=1, max_size=8)
LEVELS = st.sampled_from([1 / 32, 1 / 64, 0.005])


def cut(ours: int, theirs: int, *, level: float) -> int:
    """Which of the ordered differences the lower bound is, counted from 0: told apart by numbers without ties."""
    groups = [float(2**index) for index in range(ours)], [-float(3**index) / 1e3 for index in range(theirs)]
    apart = sorted(one - other for one in groups[0] for other in groups[1])
    return apart.index(difference(*groups, level=level).low)


@pytest.mark.parametrize(
    ("ours", "theirs", "level", "expected"),
    [
        # Critical values of U, one-sided: the largest U that chance keeps to with this probability.
        pytest.param(5, 5, 0.025, 2, id="table: 5 and 5 at 2.5 %"),
        pytest.param(7, 7, 0.025, 8, id="table: 7 and 7 at 2.5 %"),
        pytest.param(10, 10, 0.025, 23, id="table: 10 and 10 at 2.5 %"),
        pytest.param(10, 5, 0.01, 6, id="table: 10 and 5 at 1 %"),
        pytest.param(10, 1, 1 / 32, 0, id="one number: the outermost differences, whatever the level"),
    ],
)
def test_critical_values(ours: int, theirs: int, level: float, expected: int) -> None:
    assert cut(ours, theirs, level=level) == expected


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (5, 4), (2, 6)])
def test_levels_are_what_all_orders_say(ours: int, theirs: int) -> None:
    """U of every way to mix the groups: ours before theirs counts."""
    orders = list(itertools.combinations(range(ours + theirs), ours))
    sums = [sum(place - index for index, place in enumerate(order)) for order in orders]
    for level in (0.3, 1 / 8, 1 / 20):
        expected = max(
            (u for u in range(ours * theirs // 2) if sum(s <= u for s in sums) <= level * len(sums)), default=0
        )
        assert cut(ours, theirs, level=level) == expected


def test_no_numbers() -> None:
    with pytest.raises(ValueError, match="both sides"):
        difference([], [1.0], level=0.5)


@given(GROUP, GROUP, LEVELS)
def test_swapped_groups_have_mirrored_bounds(ours: list[float], theirs: list[float], level: float) -> None:
    one, other = difference(ours, theirs, level=level), difference(theirs, ours, level=level)
    assert (one.low, one.high) == (-other.high, -other.low)
    assert one.estimate == pytest.approx(-other.estimate)
    assert one.low <= one.estimate <= one.high


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 5)), min_size=1, max_size=8), GROUP, LEVELS)
def test_no_bound_falls_when_numbers_rise(ours: list[tuple[float, float]], theirs: list[float], level: float) -> None:
    before = difference([value for value, _ in ours], theirs, level=level)
    after = difference([value + more for value, more in ours], theirs, level=level)
    assert before.low <= after.low
    assert before.high <= after.high
