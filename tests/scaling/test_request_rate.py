"""The highest load lately: not what chance does."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import WINDOW
from tests.scaling.loads import LENGTH, carrying, steps

from vllm_autotuner.planning.forecast import LEAST_SEEN
from vllm_autotuner.scaling.request_rate import (
    busiest_with_prompts,
    peak_rate,
    peak_tokens_per_second,
    tokens_per_second_lately,
)

TEN_MINUTES = timedelta(minutes=10)


def test_the_peak_is_that_of_all_engines_in_the_same_minutes() -> None:
    """One is busy for the first five minutes and the other for the last: together they are never busier."""
    seen = carrying([150.0] * 10 + [50.0] * 10, [50.0] * 10 + [150.0] * 10)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(200 / WINDOW)


def test_a_peak_of_five_minutes_counts_and_one_window_by_chance_does_not() -> None:
    together, apart = [100.0] * 10 + [150.0] * 10, [150.0, 100.0] * 10
    for load, most in ((together, 150.0), (apart, 125.0), ([100.0] * 19 + [150.0], 105.0)):
        assert peak_rate(carrying(load), over=TEN_MINUTES) == pytest.approx(most / WINDOW)


@pytest.mark.parametrize(
    ("newest", "remembered"),
    [
        pytest.param([140.0] * 2, 140.0, id="it has risen a minute ago"),
        pytest.param([140.0], 32.0, id="one burst: the mean of five minutes"),
        pytest.param([10.0] * 2, 18.0, id="it has fallen"),
    ],
)
def test_the_load_of_a_failed_scale_in_is_that_of_now_after_a_step(newest: list[float], remembered: float) -> None:
    seen = carrying([20.0] * (20 - len(newest)) + newest)
    assert tokens_per_second_lately(seen) == pytest.approx(remembered * (LENGTH + 1) / WINDOW, rel=0.02)


def test_the_load_of_a_service_without_requests_is_none_and_no_error() -> None:
    seen = carrying([100.0] * 20)
    silent = replace(
        seen, steps=(), first_tokens=(), quiet=tuple((seen.at - WINDOW * index, WINDOW) for index in range(20))
    )
    assert tokens_per_second_lately(silent) == 0.0


def test_a_few_requests_do_not_tell_what_prompts_take() -> None:
    seen = carrying([100.0] * 20)
    longer = tuple(replace(one, prompts=3000.0 if index < 10 else 0.5) for index, one in enumerate(seen.steps))
    engines = tuple(replace(one, prefill_seconds=0.01 * one.sampled) for one in seen.engines)
    busy = replace(seen, engines=engines, steps=longer)
    assert busiest_with_prompts(busy, over=TEN_MINUTES) == 1.0, "all of the time, and not sixty times"
    few = replace(busy, engines=tuple(replace(one, finished=2.0) for one in engines))
    assert busiest_with_prompts(few, over=TEN_MINUTES) == 0.0


def test_a_peak_before_the_time_asked_about_does_not_count() -> None:
    seen = carrying([300.0] * 10 + [100.0] * 20)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(100 / WINDOW)
    assert peak_rate(seen, over=timedelta(minutes=15)) == pytest.approx(300 / WINDOW)


@pytest.mark.parametrize(("windows", "known"), [(round(LEAST_SEEN * 20), True), (round(LEAST_SEEN * 20) - 1, False)])
def test_a_peak_is_known_of_what_was_seen_for_most_of_the_time(windows: int, known: bool) -> None:
    seen = carrying([100.0] * windows)
    assert (peak_rate(seen, over=TEN_MINUTES) is not None) is known
    assert (peak_tokens_per_second(seen, over=TEN_MINUTES) is not None) is known


def test_of_an_engine_whose_scrapes_are_lost_in_the_peak_its_share_counts() -> None:
    """Two were busy for five minutes, and one of them was too busy to answer Prometheus."""
    load = [50.0] * 10 + [150.0] * 10
    seen = carrying(load, engines=2)
    lost = seen.steps[:10] + seen.steps[20:]
    assert len(lost) == 30
    firsts = seen.first_tokens[:10] + seen.first_tokens[20:]
    of_one = replace(seen, steps=lost, first_tokens=firsts)
    assert peak_rate(of_one, over=TEN_MINUTES) == pytest.approx(300 / WINDOW, rel=0.01)
    between_scrapes = replace(seen, steps=seen.steps[20:], first_tokens=seen.first_tokens)
    assert peak_rate(between_scrapes, over=TEN_MINUTES) == pytest.approx(150 / WINDOW, rel=0.01), "it tells of so few"
    one, other = carrying(load, engines=1), carrying(load, engines=1)
    slower = tuple(replace(each, window=2 * WINDOW, tokens=2 * each.tokens) for each in other.steps[1::2])
    of_both = replace(seen, steps=one.steps + slower, first_tokens=())
    assert peak_rate(of_both, over=TEN_MINUTES) == pytest.approx(300 * LENGTH / (LENGTH + 1) / WINDOW, rel=0.06)


def test_windows_without_tokens_were_seen_as_well() -> None:
    """One request a minute: between two of them nothing runs, and nothing is unknown."""
    seen = carrying([100.0] * 20)
    every_fifth = replace(seen, steps=seen.steps[::5], first_tokens=seen.first_tokens[::5])
    assert peak_rate(every_fifth, over=TEN_MINUTES) is None
    rest = tuple((one.time, None) for number, one in enumerate(seen.steps) if number % 5 and one.time is not None)
    assert peak_rate(replace(every_fifth, quiet=rest), over=TEN_MINUTES) == pytest.approx(100 / 5 / WINDOW)


def test_tokens_are_counted_as_they_are_made() -> None:
    seen = replace(carrying([100.0] * 20), steps=steps([30.0] * 20), first_tokens=())
    assert peak_tokens_per_second(seen, over=TEN_MINUTES) == pytest.approx(30 / 0.013)
    assert peak_rate(seen, over=TEN_MINUTES) == pytest.approx(30 / 0.013 / (LENGTH + 1))
