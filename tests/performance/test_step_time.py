from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import NoFit, StepTime, StepTimeFit, fit_step_time

BATCHES = (2, 5, 9, 14, 20, 31, 40, 52, 64, 70)


def line(base: float, slope: float, *, batches: tuple[float, ...] = BATCHES, noise: float = 0.0) -> list[StepPoint]:
    wobble = np.random.default_rng(7).normal(1.0, noise, len(batches))
    return [
        StepPoint(running=float(batch), itl=(base + slope * batch) * factor, tokens=100.0 * batch)
        for batch, factor in zip(batches, wobble, strict=True)
    ]


def fitted(points: list[StepPoint]) -> StepTime:
    found = fit_step_time(points)
    assert isinstance(found, StepTime), found
    return found


@pytest.mark.parametrize(
    ("noise", "within"),
    [
        pytest.param(0.0, 1e-9, id="without noise exactly"),
        pytest.param(0.02, 0.03, id="2 % of noise, within 3 %"),
        pytest.param(0.10, 0.12, id="10 % of noise, within 12 %"),
    ],
)
def test_recovers_a_planted_line(noise: float, within: float) -> None:
    model = fitted(line(0.008, 0.0002, noise=noise))
    for batch in (2, 20, 70):
        assert model.predict(batch) == pytest.approx(0.008 + 0.0002 * batch, rel=within)


def test_a_few_outliers_do_not_bend_it() -> None:
    points = line(0.008, 0.0002, noise=0.01)
    # A preempted window and a window with one long prompt: far off, with few tokens behind them.
    points += [StepPoint(running=10, itl=0.2, tokens=300), StepPoint(running=50, itl=0.09, tokens=500)]
    model = fitted(points)
    assert model.predict(64) == pytest.approx(0.008 + 0.0002 * 64, rel=0.05)
    assert model.points == len(BATCHES)
    assert model.error < 0.03


def test_windows_count_by_the_tokens_behind_them() -> None:
    points = line(0.008, 0.0002)
    shaken = [StepPoint(running=one.running, itl=1.09 * one.itl, tokens=1e-3) for one in points]
    assert fitted(points + shaken).predict(30) == pytest.approx(0.014, rel=0.005)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        pytest.param([], "0 windows", id="no window"),
        pytest.param(line(0.008, 0.0002, batches=(4, 40)), "2 windows", id="two points always lie on a line"),
        pytest.param(line(0.008, 0.0002, batches=(30, 31, 32, 33)), "only varied between", id="a constant batch"),
        pytest.param(line(0.03, -0.0002, batches=(4, 20, 40)), "does not grow with", id="faster with a larger batch"),
        pytest.param(
            # As an H200 was read: 4 clients, then 164 from the middle of the second window on.
            [
                StepPoint(running=b, itl=i, tokens=t)
                for b, i, t in ((3, 0.0051, 2e3), (106, 0.0184, 2e5), (162, 0.0181, 3e5))
            ],
            "misses the 3 windows with load by 44%",
            id="a window of two batches",
        ),
        pytest.param(
            [StepPoint(running=0.2, itl=0.01, tokens=5) for _ in range(9)],
            "0 windows",
            id="almost no load",
        ),
    ],
)
def test_says_why_there_is_no_model(points: list[StepPoint], says: str) -> None:
    found: StepTimeFit = fit_step_time(points)
    assert isinstance(found, NoFit)
    assert says in found.why


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_equal_latencies_are_a_flat_line_in_any_unit(unit: float) -> None:
    itl = 0.09656974765686732 * unit
    found = fit_step_time([StepPoint(running=batch, itl=itl, tokens=1000) for batch in (1, 6, 1)])
    assert isinstance(found, StepTime)
    assert found.per_sequence == 0.0
    assert found.predict(6) == pytest.approx(itl)


def test_a_negative_base_is_physically_impossible_and_becomes_zero() -> None:
    model = fitted(line(-0.002, 0.001, batches=(4, 8, 16, 32)))
    assert model.base == 0.0
    assert model.predict(16) == pytest.approx(0.014, rel=0.1)


def test_knows_what_it_has_seen() -> None:
    model = fitted(line(0.008, 0.0002))
    assert (model.low, model.high) == (2, 70)
    assert model.covers(2)
    assert model.covers(70)
    assert not model.covers(71)


@given(
    st.floats(1e-4, 0.1),
    st.floats(1e-6, 0.01),
    st.lists(st.floats(1, 512), min_size=3, max_size=20, unique=True).filter(lambda b: max(b) >= 1.5 * min(b)),
)
def test_any_planted_line_is_recovered(base: float, slope: float, batches: list[float]) -> None:
    found = fit_step_time(line(base, slope, batches=tuple(batches)))
    if isinstance(found, StepTime):
        for batch in (min(batches), max(batches)):
            assert found.predict(batch) == pytest.approx(base + slope * batch, rel=0.01)


@given(st.lists(st.builds(StepPoint, *(st.floats(0, 1e4) for _ in range(3))), max_size=30))
def test_whatever_was_measured_gives_a_finite_model_or_a_reason(points: list[StepPoint]) -> None:
    match fit_step_time(points):
        case StepTime() as model:
            assert model.base >= 0
            assert model.per_sequence >= 0
            assert np.isfinite([model.base, model.per_sequence, model.error]).all()
        case NoFit(why):
            assert why


LINE = StepTime(base=0.010, per_sequence=0.0005, low=4, high=40, points=9, error=0.02)
"""20 ms at a batch of 20."""


@pytest.mark.parametrize(
    ("itl", "at_ten"),
    [
        pytest.param(0.0219, 0.015, id="a tenth later is noise"),
        pytest.param(0.030, 0.020, id="10 ms and 1 ms for each"),
        pytest.param(0.012, 0.015, id="sooner than foreseen: windows of before say more than one"),
    ],
)
def test_a_line_goes_through_what_it_cannot_explain(itl: float, at_ten: float) -> None:
    found = LINE.through(20, itl)
    assert found.predict(10) == pytest.approx(at_ten)
    assert found.covers(10) is (found is LINE)


def test_a_line_that_misses_its_own_windows_by_much_explains_more() -> None:
    noisy = replace(LINE, error=0.2)
    assert noisy.through(20, 0.030) is noisy
