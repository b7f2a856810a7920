"""The lengths of requests change, and with them the pace of tokens: the line is that of the newest windows."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.measured_curves.batch_curve import BatchCurve, fit_batch_curve
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import NoFit, StepTime, fit_step_time, windows_of_newest_mix

MINUTE = 60.0


def windows(
    *batches: float, base: float, slope: float, since: float = 0.0, noise: float = 0.0, seed: int = 3
) -> list[StepPoint]:
    """One window a minute from minute `since` on."""
    wobble = np.random.default_rng(seed).normal(1.0, noise, len(batches))
    return [
        StepPoint(
            running=batch, itl=(base + slope * batch) * factor, tokens=100.0 * batch, time=MINUTE * (since + index)
        )
        for index, (batch, factor) in enumerate(zip(batches, wobble, strict=True))
    ]


LONG_AGO = (17.8, 18.0, 15.2, 17.8, 16.2, 13.2, 14.8, 13.5, 18.8, 16.2, 19.8, 18.0, 17.5, 13.5, 17.8)
LATELY = (12.5, 8.2, 9.2, 6.5, 9.8, 8.2, 12.5, 13.8)


@pytest.mark.parametrize("noise", [pytest.param(0.0, id="without noise"), pytest.param(0.03, id="3 % of noise")])
@pytest.mark.parametrize(
    ("batches", "base", "slope"),
    [
        pytest.param(LATELY, 0.014, 0.0006, id="longer prompts on smaller batches: together they look as if falling"),
        pytest.param((14, 17, 12, 19, 16, 13, 20, 15), 0.014, 0.0006, id="longer prompts, the same batches"),
        pytest.param((30, 35, 28, 44, 25, 38, 50, 41), 0.010, 0.00005, id="shorter prompts"),
    ],
)
def test_follows_a_change_of_the_lengths(batches: tuple[float, ...], base: float, slope: float, noise: float) -> None:
    before = windows(*LONG_AGO, base=0.010, slope=0.0003, noise=noise)
    after = windows(*batches, base=base, slope=slope, since=len(before), noise=noise, seed=4)
    found = fit_step_time(before + after)
    assert isinstance(found, StepTime), found
    for batch in (min(batches), max(batches)):
        assert found.predict(batch) == pytest.approx(base + slope * batch, rel=0.02 if noise == 0 else 0.08)


def test_longer_prompts_on_larger_batches_are_seen_within_ten_minutes() -> None:
    """One line almost goes through both mixes, so that five minutes do not tell."""
    before = windows(*LONG_AGO, base=0.010, slope=0.0003)
    after = windows(30, 35, 28, 44, 25, 38, 50, 41, 31, 26, base=0.014, slope=0.0006, since=len(before))
    found = fit_step_time(before + after)
    assert isinstance(found, StepTime)
    assert found.predict(25) == pytest.approx(0.014 + 0.0006 * 25, rel=0.02)


def test_keeps_all_windows_of_one_mix() -> None:
    points = windows(*LONG_AGO, *LATELY, 40, 35, 31, 20, base=0.010, slope=0.0003, noise=0.03)
    assert windows_of_newest_mix(points) == points
    found = fit_step_time(points)
    assert isinstance(found, StepTime)
    assert (found.points, found.low, found.high) == (len(points), 6.5, 40)


def test_a_slow_minute_or_two_are_no_change() -> None:
    points = windows(*LONG_AGO, *LATELY, base=0.010, slope=0.0003, noise=0.01)
    points += windows(10, 14, base=0.020, slope=0.0006, since=len(points))
    assert windows_of_newest_mix(points) == points


def test_a_model_of_before_beats_none_while_the_new_batches_lie_too_close() -> None:
    before = windows(*LONG_AGO, base=0.010, slope=0.0003)
    after = windows(9.0, 9.1, 9.2, 9.1, 9.0, base=0.014, slope=0.0003, since=len(before))
    assert windows_of_newest_mix(before + after) == before + after


def test_a_flat_line_that_noise_tilts_down_stays_without_a_model() -> None:
    points = windows(4, 40, 9, 30, 5, 38, 11, 22, base=0.020, slope=-0.00001)
    found = fit_step_time(points)
    assert isinstance(found, NoFit)
    assert "does not grow with" in found.why


def test_the_curve_is_of_the_same_windows() -> None:
    before = windows(*LONG_AGO, base=0.010, slope=0.0003)
    after = windows(*LATELY, base=0.014, slope=0.0006, since=len(before))
    curve = fit_batch_curve(before + after)
    assert isinstance(curve, BatchCurve)
    assert curve.high <= 14
    assert curve.predict(12.5) == pytest.approx(0.014 + 0.0006 * 12.5, rel=0.02)


SHARES = st.lists(st.floats(-0.04, 0.04), min_size=30, max_size=30)


@given(st.lists(st.floats(2, 200), min_size=6, max_size=30), st.floats(0.004, 0.05), st.floats(1e-5, 2e-3), SHARES)
def test_order_and_units_do_not_matter(batches: list[float], base: float, slope: float, noise: list[float]) -> None:
    points = [
        StepPoint(running=one.running, itl=one.itl * (1 + off), tokens=one.tokens, time=one.time)
        for one, off in zip(windows(*batches, base=base, slope=slope), noise, strict=False)
    ]
    found, backwards = fit_step_time(points), fit_step_time(points[::-1])
    later = fit_step_time(
        [StepPoint(running=p.running, itl=p.itl, tokens=p.tokens, time=(p.time or 0.0) + 1e6) for p in points]
    )
    assume(isinstance(found, StepTime))
    assert isinstance(found, StepTime)
    assert isinstance(backwards, StepTime)
    assert isinstance(later, StepTime)
    for other in (backwards, later):
        assert other.points == found.points
        assert other.predict(found.high) == pytest.approx(found.predict(found.high), rel=1e-6)


def test_windows_without_a_time_have_no_newest() -> None:
    points = [
        StepPoint(running=p.running, itl=p.itl, tokens=p.tokens)
        for p in windows(*LONG_AGO, base=0.010, slope=0.0003) + windows(*LATELY, base=0.014, slope=0.0006)
    ]
    assert windows_of_newest_mix(points) == points


@pytest.mark.parametrize("seed", range(8))
def test_noise_on_small_batches_is_no_change(seed: int) -> None:
    """A service that was scaled out: its windows lie at small batches and scatter, on the line of before."""
    before = windows(60, 120, 128, 126, 64, 30, base=0.012, slope=0.002)
    after = windows(
        *(4, 3, 6, 2, 5, 8, 4, 12, 3, 7, 10, 5, 2, 6), base=0.012, slope=0.002, since=6, noise=0.08, seed=seed
    )
    found = fit_step_time(before + after)
    assert isinstance(found, StepTime)
    assert found.high == 128
    assert found.predict(100) == pytest.approx(0.212, rel=0.1)
