"""A list of limits that remembers who bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.planning.capped_value import Limit, limited


@pytest.mark.parametrize(
    ("limits", "value", "limited_by"),
    [
        pytest.param((), 50, None, id="no limit moves nothing"),
        pytest.param((Limit(name="pool", high=80),), 50, None, id="a limit that does not bind is not named"),
        pytest.param((Limit(name="pool", high=40),), 40, "pool", id="a limit that binds is named"),
        pytest.param(
            (Limit(name="a", high=40), Limit(name="b", high=30)), 30, "b", id="the last that moved it is named"
        ),
        pytest.param(
            (Limit(name="a", high=30), Limit(name="b", high=40)), 30, "a", id="a wider one behind changes nothing"
        ),
        pytest.param((Limit(name="a", high=30), Limit(name="b", low=45)), 45, "b", id="what comes last wins"),
        pytest.param((Limit(name="empty", low=60, high=20),), 20, "empty", id="an empty range gives its upper end"),
    ],
)
def test_limits_in_order(limits: tuple[Limit, ...], value: int, limited_by: str | None) -> None:
    found = limited(50, limits=limits)
    assert (found.value, found.limited_by) == (value, limited_by)


@given(
    st.integers(),
    st.lists(st.builds(Limit, name=st.just("x"), low=st.none() | st.integers(), high=st.none() | st.integers())),
)
def test_the_last_limit_always_holds(wanted: int, limits: list[Limit]) -> None:
    found = limited(wanted, limits=limits)
    if limits and limits[-1].high is not None:
        assert found.value <= limits[-1].high
    assert (found.limited_by is None) <= (found.value == wanted)
