"""The load of now, its highest lately, and what a replica that is asked for now will meet: not what chance does."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import NOW, WINDOW
from tests.scaling.loads import LENGTH, carrying, minutes, queue, served, steps

from vllm_autotuner.observation.observation import FirstTokens
from vllm_autotuner.planning.forecast import LEAST_SEEN
from vllm_autotuner.scaling.request_rate import peak_rate, peak_tokens_per_second, rate_ahead

TEN_MINUTES = timedelta(minutes=10)


def grows(first_tokens: Sequence[FirstTokens], *, within: float = 240.0, since: float | None = None) -> float | None:
    """By which factor the rate of now is foretold to grow."""
    now = carrying([138.0])
    seen = replace(now, first_tokens=tuple(first_tokens))
    ahead = rate_ahead(seen, within=within, over=TEN_MINUTES, since=since)
    return None if ahead is None else ahead / (138.0 / WINDOW)


def test_the_worked_example() -> None:
    assert grows(served(minutes(100, more=4, windows=10))) == pytest.approx(170 / 136)


def test_nothing_is_foreseen_beyond_now_for_the_asking() -> None:
    """The rate at the end of the window is asked for, and its counts are of its middle."""
    assert grows(served(minutes(100, more=2)), within=0.0) == pytest.approx(139 / 138)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([], id="nothing was seen"),
        pytest.param(minutes(100, more=2, windows=5), id="too few windows for a slope with an error"),
        pytest.param(minutes(100, more=0), id="a steady load"),
        pytest.param(minutes(138, more=-2), id="a load that falls"),
        pytest.param([50.0] * 8 + [138.0] * 12, id="one that came at once, and stays"),
        pytest.param(
            [*minutes(20, more=12, windows=10), *minutes(138, more=0, windows=10)], id="one that rose, before"
        ),
        pytest.param([100.0, 104.0] * 10, id="chance: 4 of 100"),
        pytest.param([10.0, 11.0] * 9 + [14.0, 12.0], id="chance: what few requests do"),
        pytest.param([0.0] * 20, id="nobody comes"),
    ],
)
def test_what_is_no_rise(requests: list[float]) -> None:
    assert grows(served(requests)) is None


@pytest.mark.parametrize("rate", [20.0, 100.0, 500.0])
def test_a_steady_load_hardly_ever_looks_as_if_it_rose(rate: float) -> None:
    """Independent arrivals, 400 times ten minutes: three standard errors let one of 700 pass."""
    dice = random.Random(7)
    found = 0
    for _ in range(400):
        requests = [float(_poisson(rate, dice)) for _ in range(20)]
        found += grows(served(requests)) is not None
    assert found <= 4


def test_a_load_that_has_come_at_once_hardly_ever_looks_as_if_it_rose() -> None:
    dice = random.Random(5)
    found = 0
    for _ in range(200):
        requests = [float(_poisson(rate, dice)) for rate in [50.0] * 10 + [138.0] * 10]
        found += grows(served(requests)) is not None
    assert found <= 10


def _poisson(mean: float, dice: random.Random) -> int:
    count, elapsed = 0, dice.expovariate(mean)
    while elapsed < 1.0:
        count, elapsed = count + 1, elapsed + dice.expovariate(mean)
    return count


@pytest.mark.parametrize("rise", [1.0, 2.0, 5.0])
def test_a_steady_rise_is_seen_in_spite_of_chance(rise: float) -> None:
    dice = random.Random(11)
    found = [grows(served([float(_poisson(each, dice)) for each in minutes(200, more=4 * rise)])) for _ in range(100)]
    seen = [each for each in found if each is not None]
    expected = (200 + 4 * rise * (19 + 255 / WINDOW)) / (200 + 4 * rise * 19)
    assert len(seen) >= 60
    assert math.fsum(seen) / len(seen) == pytest.approx(expected, rel=0.05)


def test_a_replica_that_comes_meanwhile_takes_from_the_others_and_hides_no_rise() -> None:
    """Two engines until five minutes ago, then three: each has fewer, and all together as many as would have come."""
    total = minutes(200, more=4)
    old = served([*(each / 2 for each in total[:10]), *(each / 3 for each in total[10:])])
    new = served([each / 3 for each in total[10:]])
    assert grows((*old, *old, *new)) == pytest.approx((276 + 4 * 255 / WINDOW) / 276, rel=0.001)


def test_a_replica_that_took_the_place_of_another_is_no_rise() -> None:
    """What the pod served that is gone is in no metrics of those that are there: half of it all was, until lately."""
    old, new = served([100.0] * 20), served([100.0] * 10)
    assert grows((*old, *new)) is None


@pytest.mark.parametrize("turn", range(1, 10))
def test_a_rollout_that_replaces_every_pod_is_no_rise(turn: int) -> None:
    """Every pod of a service with three began within ten minutes, one after the other."""
    assert grows([each for age in (2, 1, 0) for each in served([100.0] * (turn + 3 * age))]) is None


def test_what_was_before_one_left_does_not_count() -> None:
    """One of two went eight minutes ago, and the other has had all since."""
    requests = [50.0, 50.0, 50.0, *minutes(100, more=2, windows=17)]
    assert grows(served(requests), since=NOW - 17 * WINDOW) == pytest.approx((132 + 2 * 255 / WINDOW) / 132)


def test_what_waits_counts_as_load_that_comes() -> None:
    """Twice as many come as finish: what is foretold starts from those that come."""
    steady = carrying(minutes(100, more=2))
    growing = carrying(minutes(100, more=2), waiting=queue(138.0))
    calm, rising = (rate_ahead(seen, within=240.0, over=TEN_MINUTES, since=None) for seen in (steady, growing))
    assert calm is not None
    assert rising == pytest.approx(2 * calm)


def test_the_peak_is_that_of_all_engines_in_the_same_minutes() -> None:
    """One is busy for the first five minutes and the other for the last: together they are never busier."""
    seen = carrying([150.0] * 10 + [50.0] * 10, [50.0] * 10 + [150.0] * 10)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(200 / WINDOW)


def test_a_peak_of_five_minutes_counts_and_one_window_by_chance_does_not() -> None:
    together, apart = [100.0] * 10 + [150.0] * 10, [150.0, 100.0] * 10
    for load, most in ((together, 150.0), (apart, 125.0), ([100.0] * 19 + [150.0], 105.0)):
        assert peak_rate(carrying(load), over=TEN_MINUTES) == pytest.approx(most / WINDOW)


def test_a_peak_before_the_time_asked_about_does_not_count() -> None:
    seen = carrying([300.0] * 10 + [100.0] * 20)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(100 / WINDOW)
    assert peak_rate(seen, over=timedelta(minutes=15)) == pytest.approx(300 / WINDOW)


@pytest.mark.parametrize(("windows", "known"), [(round(LEAST_SEEN * 20), True), (round(LEAST_SEEN * 20) - 1, False)])
def test_a_peak_is_known_of_what_was_seen_for_most_of_the_time(windows: int, known: bool) -> None:
    seen = carrying([100.0] * windows)
    assert (peak_rate(seen, over=TEN_MINUTES) is not None) is known
    assert (peak_tokens_per_second(seen, over=TEN_MINUTES) is not None) is known


def test_tokens_are_counted_as_they_are_made() -> None:
    seen = replace(carrying([100.0] * 20), steps=steps([30.0] * 20))
    assert peak_tokens_per_second(seen, over=TEN_MINUTES) == pytest.approx(30 / 0.013)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(30 / 0.013 / LENGTH)
