"""Amounts of engines whose windows differ, added up in the windows of one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.one_grid import on_one_grid

END = 1_700_000_040.0
"""A multiple of 60 and of 120."""


def test_windows_that_are_alike_are_added_by_their_ends() -> None:
    points = [(END + 60.0 * back, amount, own) for back in (0, -1) for amount, own in ((5.0, None), (7.0, 60.0))]
    assert on_one_grid(points, window=60.0) == {END - 60: 12.0, END: 12.0}


def test_a_shorter_window_counts_by_how_much_of_it_lies_in_the_longer_one() -> None:
    points = [(END - 60.0, 6.0, 60.0), (END, 6.0, 60.0), (END, 12.0, 120.0)]
    assert on_one_grid(points, window=120.0) == {END: 24.0}


def test_what_ends_after_the_grid_is_a_window_that_has_just_begun() -> None:
    points = [(END, 120.0, 120.0), (END, 60.0, 60.0), (END - 60.0, 60.0, 60.0), (END + 60.0, 60.0, 60.0)]
    assert on_one_grid(points, window=120.0) == {END: 240.0}


def test_a_window_of_nobody_is_not_there() -> None:
    assert on_one_grid([(END, 1.0, None), (END - 180.0, 1.0, None)], window=60.0) == {END - 180: 1.0, END: 1.0}
    assert on_one_grid([], window=60.0) == {}


@given(st.integers(30, 300), st.integers(30, 300), st.integers(1, 5), st.integers(1, 5))
def test_a_steady_load_is_the_same_in_every_whole_window(one: int, other: int, ones: int, others: int) -> None:
    """Each engine makes a token a second and is asked at multiples of its own window, as a subquery asks."""
    last = 1_700_000_000.0
    windows = [float(one)] * ones + [float(other)] * others
    points = [
        (end, own, own)
        for own in windows
        for end in (own * (last // own - back) for back in range(100))
        if end > last - 3000
    ]
    longest = max(windows)
    found = on_one_grid(points, window=longest)
    # The last window may be one that not all have told to its end.
    whole = list(found.values())[:-1]
    assert whole
    assert whole == pytest.approx([longest * len(windows)] * len(whole), rel=0.02)


def test_the_grid_goes_on_where_the_engine_that_it_is_of_has_nothing_to_do() -> None:
    slow = [(END - 120.0 * back, 240.0, 120.0) for back in range(3, 10)]
    fast = [(END - 60.0 * back, 480.0, 60.0) for back in range(20)]
    found = on_one_grid([*slow, *fast], window=120.0)
    assert list(found)[-1] == END
    assert list(found.values())[-3:] == [960.0, 960.0, 960.0]
    assert set(list(found.values())[:-3]) == {1200.0}


def test_what_is_remembered_begins_with_a_window_that_all_tell() -> None:
    """The windows of 60 s began a minute later: the first of 120 s would be the load of some."""
    slow = [(END - 120.0 * back, 240.0, 120.0) for back in range(5)]
    fast = [(END - 60.0 * back, 120.0, 60.0) for back in range(9)]
    found = on_one_grid([*slow, *fast], window=120.0)
    assert found == dict.fromkeys((END - 360, END - 240, END - 120, END), 480.0)


def test_a_pod_that_came_later_hides_nothing_of_before() -> None:
    slow = [(END - 120.0 * back, 240.0, 120.0) for back in range(5)]
    found = on_one_grid([*slow, (END, 60.0, 60.0)], window=120.0)
    assert list(found.values()) == [240.0] * 4 + [300.0]
