"""The first sign of saturation: TTFT shows a queue, a flat TPOT confirms, and a kink is none."""

import pytest

from benchmarks.measured_curves.saturation import LoadPoint, first_saturation_sign

Row = tuple[float, float, float | None]
"""Load, TPOT and TTFT in milliseconds."""


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([(64, 50, 9000)], None, id="one point"),
        pytest.param([(8, 20, 150), (16, 25, 200), (32, 35, 300), (64, 55, 500)], None, id="TTFT grows slower"),
        pytest.param([(8, 20, 150), (16, 25, 200), (32, 35, 2300), (64, 36, 9000)], 2, id="TTFT jumps"),
        pytest.param([(8, 20, 150), (16, 25, 310)], None, id="TTFT grows a little faster than the load: noise"),
        pytest.param([(8, 20, 150), (16, 25, 310), (32, 35, 640)], None, id="and again: still noise"),
        pytest.param([(8, 20, 150), (16, 25, 310), (32, 35, 2000)], 1, id="a little faster, and then much"),
        pytest.param([(8, 20, 150), (16, 25, 350)], 1, id="TTFT grows clearly faster than the load"),
        pytest.param([(1, 20, 9), (2, 20.6, 9), (4, 20.61, 9), (8, 22, 9)], None, id="flat after next to nothing"),
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


@pytest.mark.parametrize(("waiting", "index"), [(None, 1), (0.0, None), (0.9, None), (40.0, 1)])
def test_a_jump_of_ttft_is_no_queue_where_nothing_was_seen_to_wait(waiting: float | None, index: int | None) -> None:
    before = LoadPoint(load=4, tpot=0.0063, ttft=0.027, waiting=waiting)
    sign = first_saturation_sign([before, LoadPoint(load=8, tpot=0.0106, ttft=0.092, waiting=waiting)])
    assert (None if sign is None else sign.index) == index


def test_throughput_that_falls_under_more_load_is_a_sign() -> None:
    # F4: the tokens per second of its sweep, with its p50 TPOT; preemption from 256 on.
    rows = ((8, 6.2, 1280), (32, 8.4, 3780), (64, 13.7, 4650), (128, 24.9, 5120), (256, 52.3, 4890), (512, 159.8, 3200))
    points = [LoadPoint(load=load, tpot=tpot / 1e3, throughput=tokens) for load, tpot, tokens in rows]
    sign = first_saturation_sign(points)
    assert sign is not None
    assert (points[sign.index].load, sign.why) == (256, "throughput falls to 4890 tokens/s while the load grows to 256")
    assert first_saturation_sign(points[:4]) is None


def test_it_says_what_gave_it_away() -> None:
    points = [LoadPoint(load=8, tpot=0.02, ttft=0.1), LoadPoint(load=16, tpot=0.03, ttft=4.0)]
    sign = first_saturation_sign(points)
    assert sign is not None
    assert sign.why == "TTFT grows from 0.1 to 4 s while the load grows from 8 to 16: a queue"
