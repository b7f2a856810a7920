"""Quantiles of wide buckets: the exact mean says where in the bucket the observations lie."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.reading import Measured

EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.2)
"""The first edges of vLLM's TPOT histogram, in seconds."""


def distribution(values: list[float]) -> Distribution:
    buckets = {edge: float(sum(value <= edge for value in values)) for edge in (*EDGES, math.inf)}
    return Distribution(buckets=buckets, total=sum(values), count=len(values))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        pytest.param([0.030] * 100, 0.030, 0.034, id="all at 30 ms: not 49 ms, as interpolation alone would say"),
        pytest.param([0.045] * 100, 0.045, 0.050, id="all at 45 ms stay in the upper part"),
        pytest.param([0.0017] * 100, 0.0017, 0.0020, id="all far below the first edge"),
        pytest.param([0.030] * 60 + [0.090] * 40, 0.075, 0.100, id="a tail in another bucket is not pulled down"),
    ],
)
def test_the_95th_percentile_lies_where_the_mean_allows(values: list[float], low: float, high: float) -> None:
    found = distribution(values).quantile(0.95)
    assert isinstance(found, Measured)
    assert low <= found.value <= high


@given(st.lists(st.floats(min_value=0.001, max_value=0.19), min_size=5, max_size=200), st.floats(0.05, 0.95))
def test_never_leaves_the_bucket_that_holds_the_quantile(values: list[float], q: float) -> None:
    known = distribution(values)
    refined, plain = known.quantile(q), Distribution(buckets=known.buckets).quantile(q)
    assert isinstance(refined, Measured)
    assert isinstance(plain, Measured)
    upper = min(edge for edge in EDGES if edge >= plain.value - 1e-12)
    lower = max((edge for edge in EDGES if edge < upper), default=0.0)
    assert lower - 1e-9 <= refined.value <= upper + 1e-9


@given(st.floats(min_value=0.011, max_value=0.19), st.integers(20, 200))
def test_equal_observations_are_estimated_within_the_distance_to_the_nearer_edge(value: float, count: int) -> None:
    found = distribution([value] * count).quantile(0.95)
    assert isinstance(found, Measured)
    upper = min(edge for edge in EDGES if edge >= value)
    lower = max((edge for edge in EDGES if edge < value), default=0.0)
    assert abs(found.value - value) <= min(value - lower, upper - value) + 1e-9
