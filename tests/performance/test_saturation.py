"""The first sign of saturation: TTFT shows a queue, a flat TPOT confirms, and a kink is none."""

import pytest

from vllm_autotuner.performance.saturation import LoadPoint, first_saturation_sign

Row = tuple[float, float, float | None]
"""Load, TPOT and TTFT in milliseconds."""


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([(64, 50, 9000)], None, id="one point"),
        pytest.param([(8, 20, 150), (16, 25, 200), (32, 35, 300), (64, 55, 500)], None, id="TTFT grows slower"),
        pytest.param([(8, 20, 150), (16, 25, 200), (32, 35, 2300), (64, 36, 9000)], 2, id="TTFT jumps"),
        pytest.param([(8, 20, 150), (16, 25, 310)], 1, id="TTFT grows a little faster than the load"),
        pytest.param([(60, 20, 150), (61, 20.1, 160)], None, id="a small step says nothing, however steep"),
        pytest.param([(8, 20, None), (16, 25, None), (32, 35, None), (64, 35.5, None)], 3, id="without TTFT: flat"),
        pytest.param([(8, 20, None), (16, 25, None), (32, 45, None), (64, 56, None)], None, id="a kink is no end"),
        pytest.param([(8, 20, None), (16, 20, None), (32, 20, None)], None, id="flat from the start"),
        pytest.param([(8, 26, 150), (16, 25, 160), (32, 24, 170)], None, id="falling is not flattening"),
    ],
)
def test_the_first_sign(rows: list[Row], index: int | None) -> None:
    points = [
        LoadPoint(load=load, tpot=tpot / 1e3, ttft=None if ttft is None else ttft / 1e3) for load, tpot, ttft in rows
    ]
    sign = first_saturation_sign(points)
    assert (None if sign is None else sign.index) == index


def test_it_says_what_gave_it_away() -> None:
    points = [LoadPoint(load=8, tpot=0.02, ttft=0.1), LoadPoint(load=16, tpot=0.03, ttft=4.0)]
    sign = first_saturation_sign(points)
    assert sign is not None
    assert sign.why == "TTFT grows from 0.1 to 4 s while the load grows from 8 to 16: a queue"
