import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.distribution import Distribution, merged
from vllm_autotuner.observation.reading import Absence, Measured, NoData

INF = math.inf


def test_zeros_are_taken_out_as_far_as_the_first_bucket_has_them() -> None:
    counted = Distribution(buckets={0.01: 100.0, 0.05: 400.0, INF: 400.0}, total=12.0, count=400.0)
    assert counted.without_zeros(0.25).mean == Measured(12.0 / 300)
    assert counted.without_zeros(0.25).buckets == {0.01: 0.0, 0.05: 300.0, INF: 300.0}
    assert counted.without_zeros(0.9) == counted.without_zeros(0.25)
    assert counted.without_zeros(0.0).buckets == counted.buckets
    assert Distribution().without_zeros(0.5) == Distribution()


@pytest.mark.parametrize(
    ("buckets", "q", "expected"),
    [
        # 50 of 100 are below 1, so the median is its upper edge.
        pytest.param({1.0: 50, 2.0: 100, INF: 100}, 0.5, 1.0, id="on an edge"),
        # Rank 75 lies halfway into the second bucket.
        pytest.param({1.0: 50, 2.0: 100, INF: 100}, 0.75, 1.5, id="linear inside a bucket"),
        pytest.param({1.0: 100, INF: 100}, 0.5, 0.5, id="the first bucket begins at zero"),
        pytest.param({1.0: 50, 2.0: 60, INF: 100}, 0.99, 2.0, id="above the last finite edge that edge is all we know"),
        pytest.param({1.0: 0, 2.0: 0, 4.0: 10, INF: 10}, 0.5, 3.0, id="empty buckets before it"),
        # 60 then 59.9: extrapolation rounds neighbours apart, the fall is no data.
        pytest.param({1.0: 60, 2.0: 59.9, 4.0: 100, INF: 100}, 0.8, 3.0, id="a tiny fall between buckets is rounding"),
    ],
)
def test_quantile(buckets: dict[float, float], q: float, expected: float) -> None:
    found = Distribution(buckets=buckets).quantile(q)
    assert isinstance(found, Measured)
    assert found.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("distribution", "absence"),
    [
        pytest.param(Distribution(), Absence.NOT_EXPORTED, id="no such family is not exported"),
        pytest.param(Distribution(buckets={1.0: 0, INF: 0}), Absence.NO_TRAFFIC, id="nothing counted is no traffic"),
        pytest.param(Distribution(buckets={INF: math.nan}), Absence.NO_TRAFFIC, id="NaN is 0/0: no traffic"),
        pytest.param(
            Distribution(buckets={INF: 100}, total=800.0, count=100), Absence.NOT_EXPORTED, id="no finite edge is left"
        ),
    ],
)
def test_a_missing_quantile_says_why_and_is_never_zero(distribution: Distribution, absence: Absence) -> None:
    found = distribution.quantile(0.95)
    assert isinstance(found, NoData)
    assert found.absence is absence


def test_above_the_last_edge_at_least_the_mean_is_known() -> None:
    """Edges above 1 s are dropped, and requests take 8 s: an objective of 2 s is not met."""
    assert Distribution(buckets={1.0: 5, INF: 100}, total=800.0, count=100).quantile(0.95) == Measured(8.0)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        pytest.param(Distribution(total=6.0, count=4), 1.5, id="sum over count"),
        pytest.param(Distribution(total=0.0, count=4), 0.0, id="a measured zero is a zero"),
        pytest.param(Distribution(total=0.0, count=0), None, id="0/0 is no data"),
        pytest.param(Distribution(count=4), None, id="no sum is no mean"),
    ],
)
def test_mean(distribution: Distribution, expected: float | None) -> None:
    found = distribution.mean
    assert (found.value if isinstance(found, Measured) else None) == expected


def test_engines_add_up() -> None:
    one = Distribution(buckets={1.0: 10, INF: 20}, total=30, count=20)
    other = Distribution(buckets={1.0: 5, INF: 5}, total=2, count=5)
    assert merged([one, other]) == Distribution(buckets={1.0: 15, INF: 25}, total=32, count=25)


def test_an_engine_that_exports_nothing_is_left_out_and_not_counted_as_zero() -> None:
    one = Distribution(buckets={1.0: 10, INF: 20}, total=30, count=20)
    assert merged([one, Distribution(missing="TTFT is not exported")]) == one


def test_engines_of_two_versions_share_only_the_edges_that_both_have() -> None:
    old = Distribution(buckets={0.5: 4, 1.0: 10, INF: 20}, total=1, count=20)
    new = Distribution(buckets={1.0: 10, 2.0: 15, INF: 20}, total=1, count=20)
    assert merged([old, new]).buckets == {1.0: 20, INF: 40}


def test_when_no_engine_exports_it_the_reason_stays() -> None:
    assert merged([Distribution(missing="TTFT is not exported")]).missing == "TTFT is not exported"
    assert isinstance(merged([]).quantile(0.5), NoData)


@given(
    st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=8),
    st.floats(min_value=0.01, max_value=0.99),
    st.floats(min_value=0.01, max_value=0.99),
)
def test_a_higher_quantile_is_never_lower(growths: list[float], low: float, high: float) -> None:
    cumulative, buckets = 0.0, {}
    for edge, growth in enumerate(growths, start=1):
        cumulative += growth
        buckets[float(edge)] = cumulative
    buckets[INF] = cumulative
    lower, upper = (Distribution(buckets=buckets).quantile(q) for q in sorted((low, high)))
    if isinstance(lower, Measured) and isinstance(upper, Measured):
        assert lower.value <= upper.value + 1e-9
