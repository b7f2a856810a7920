"""First tokens that were late in bursts are remembered for longer than the bursts last."""

import pytest
from tests.builders import NOT_MEASURED, NOW, WINDOW, latency, observation, targets

from vllm_autotuner.observation.observation import FirstTokens
from vllm_autotuner.scaling.lateness import late_for, ttft_lately

MINUTES = 20


def windows(means: list[float], *, requests: list[float] | None = None) -> tuple[FirstTokens, ...]:
    """Windows of one engine, the last one now."""
    counts = requests or [100.0] * len(means)
    return tuple(
        FirstTokens(mean=mean, requests=count, time=NOW - WINDOW * back)
        for back, (mean, count) in enumerate(zip(reversed(means), reversed(counts), strict=True))
    )


def lately(*engines: tuple[FirstTokens, ...], now: float = 0.2, since: float | None = None) -> float | None:
    seen = observation(ttft=latency(now, count=100.0 if now else 0.0), first_tokens=sum(engines, ()))
    return ttft_lately(seen, targets=targets(ttft=1.0), since=since)


@pytest.mark.parametrize(
    ("means", "requests", "seconds"),
    [
        pytest.param([0.2] * 20, None, 0.2, id="always in time"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 50.0, *[100.0] * 18], 0.2, id="fewer late than may be"),
        pytest.param([0.2, 3.0, *[0.2] * 18], [100.0, 500.0, *[100.0] * 18], 3.0, id="a burst long ago"),
        pytest.param([3.0] * 8 + [0.2] * 12, None, 0.2, id="what had piled up before"),
        pytest.param([3.0] * 20, None, 0.2, id="never yet in time: the present window alone"),
    ],
)
def test_how_late(means: list[float], requests: list[float] | None, seconds: float) -> None:
    assert lately(windows(means, requests=requests)) == pytest.approx(seconds, rel=0.03)


def test_the_tail_of_the_present_window_is_that_of_all() -> None:
    """Means hide that some wait longer: 0.6 s at p95 where the mean is 0.3 makes 3 s of 1.5."""
    seen = observation(ttft=latency(0.3, tail=0.6), first_tokens=windows([0.3, 1.5, 1.5, 0.3, 0.3]))
    assert ttft_lately(seen, targets=targets(ttft=1.0), since=None) == pytest.approx(3.0, rel=0.05)


def test_one_engine_in_time_does_not_end_what_had_piled_up_on_another() -> None:
    fresh, old = windows([0.1] * 4, requests=[5.0] * 4), windows([3.0, 3.0, 0.2, 0.2])
    assert lately(fresh, old) == pytest.approx(0.2, rel=0.03)


def test_what_was_on_fewer_replicas_does_not_count() -> None:
    burst = windows([0.2] * 10 + [3.0] * 4 + [0.2] * 6)
    assert lately(burst) == pytest.approx(3.0, rel=0.03)
    assert lately(burst, since=NOW - 6 * WINDOW) == pytest.approx(0.2, rel=0.03)


def test_nobody_asks_and_nobody_knows() -> None:
    assert lately(windows([0.2] * 3), now=0.0) is None


@pytest.mark.parametrize(
    ("means", "now", "seconds"),
    [
        pytest.param([0.2] * 5, 0.2, 0.0, id="in time"),
        pytest.param([0.2] * 4 + [3.0], 3.0, WINDOW, id="since the present window"),
        pytest.param([0.2, 3.0, 3.0, 3.0], 3.0, 3 * WINDOW, id="for three windows"),
        pytest.param([3.0, 3.0, 0.2, 3.0], 3.0, WINDOW, id="what was late before it was in time is another matter"),
        pytest.param([3.0] * 4, 0.2, 0.0, id="no longer"),
        pytest.param([], 3.0, WINDOW, id="windows that nobody remembers"),
    ],
)
def test_for_how_long_they_have_been_late(means: list[float], now: float, seconds: float) -> None:
    seen = observation(ttft=latency(now), first_tokens=windows(means))
    assert late_for(seen, targets=targets(ttft=1.0)) == pytest.approx(seconds)


def test_a_rest_ends_what_was_late_before_it() -> None:
    """Nobody asked for two windows, so that nobody waited."""
    before, present = windows([3.0, 3.0, 3.0, 3.0, 3.0])[-2:], windows([3.0])
    seen = observation(ttft=latency(3.0), first_tokens=(*before, *present))
    assert late_for(seen, targets=targets(ttft=1.0)) == pytest.approx(WINDOW)


def test_nobody_knows_whether_they_are_late() -> None:
    assert late_for(observation(ttft=NOT_MEASURED), targets=targets(ttft=1.0)) == 0.0
