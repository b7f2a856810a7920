"""The interval of a counted share, against worked values."""

import pytest

from benchmarks.intervals import wilson_interval


@pytest.mark.parametrize(
    ("share", "of", "low", "high"),
    [
        pytest.param(0.0, 20, 0.0, 0.161, id="none of 20"),
        pytest.param(1.0, 20, 0.839, 1.0, id="all of 20"),
        pytest.param(0.5, 10, 0.237, 0.763, id="half of 10"),
        pytest.param(0.1, 1000, 0.083, 0.120, id="a tenth of 1,000"),
        pytest.param(0.5, 0, 0.0, 1.0, id="of nothing"),
    ],
)
def test_an_interval_holds_the_share_and_narrows_with_the_count(share: float, of: int, low: float, high: float) -> None:
    assert wilson_interval(share, of=of) == pytest.approx((low, high), abs=0.001)
