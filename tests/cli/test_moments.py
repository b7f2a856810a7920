from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.moments import (
    MOST_LOOKS,
    REMOTE_TICKS,
    SHORTEST_STEP,
    TICK,
    WARM_UP,
    Span,
    moment_of,
    recorded,
    remote,
    rfc3339,
)
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.diagnosis.diagnose import CONFIRMATIONS


@pytest.mark.parametrize(
    ("span", "at", "ticks"),
    [
        pytest.param(Span(100, 112), None, (102, 107, 112), id="back from the end to the start"),
        pytest.param(Span(100, 112), 109.0, (104, 109), id="back from the moment"),
        pytest.param(Span(100, 112), 100.0, (100,), id="the first sample alone"),
        pytest.param(Span(100, 100), None, (100,), id="a single scrape"),
        pytest.param(Span(100, 112), 112.9, (102, 107, 112), id="a moment typed in whole seconds"),
    ],
)
def test_a_moment_of_a_recording_warms_up(span: Span, at: float | None, ticks: tuple[float, ...]) -> None:
    assert recorded(span, at=at).ticks == ticks


def test_a_long_recording_is_not_evaluated_from_its_beginning_for_one_moment() -> None:
    ticks = recorded(Span(0, 86_400)).ticks
    assert ticks[-1] - ticks[0] == WARM_UP


@given(st.floats(0, 1e9), st.floats(0.1, 5_000), st.floats(SHORTEST_STEP, 10_000))
def test_a_timeline_shows_every_step_and_the_end(first: float, length: float, every: float) -> None:
    span = Span(first, first + length)
    if length / every > 2_000:
        return
    schedule = recorded(span, every=every)
    shown = sorted(schedule.shown)
    assert shown[-1] == span.last
    steps = [later - earlier for earlier, later in pairwise(shown[:-1])]
    assert steps == pytest.approx([every] * len(steps), abs=1e-5)
    assert set(schedule.ticks) >= schedule.shown
    assert list(schedule.ticks) == sorted(schedule.ticks)
    gaps = [later - earlier for earlier, later in zip(schedule.ticks, schedule.ticks[1:], strict=False)]
    assert all(gap <= TICK + 1e-5 for gap in gaps)


def test_a_prometheus_is_asked_often_enough_to_confirm_a_change() -> None:
    ticks = remote(1000.0).ticks
    assert ticks[-1] == 1000.0
    assert len(ticks) == REMOTE_TICKS > CONFIRMATIONS + 1


def test_a_prometheus_is_asked_a_bounded_number_of_times() -> None:
    """Each look is a round of queries: a year at the pace of the operator would be two million."""
    hour, year = remote(1e9, back=3600.0).ticks, remote(1e9, back=31_536_000.0).ticks
    assert len(hour) == 241
    assert len(year) <= 2 * MOST_LOOKS
    assert year[-1] == 1e9
    assert year[0] < 1e9 - 31_000_000


def test_a_step_shorter_than_any_scrape_is_refused() -> None:
    with pytest.raises(CommandError, match="write at least 1s"):
        recorded(Span(first=0.0, last=3600.0), every=0.001)


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        pytest.param("+90s", 1000.0, 1090.0, id="an offset"),
        pytest.param("+1m30s", 1000.0, 1090.0, id="an offset in minutes"),
        pytest.param("1795211087", None, 1795211087.0, id="Unix seconds"),
        pytest.param("2026-11-20T21:44:47Z", None, 1795211087.0, id="RFC 3339"),
        pytest.param("2026-11-20 21:44:47.500+00:00", None, 1795211087.5, id="RFC 3339 with a space"),
    ],
)
def test_reads_a_moment(text: str, start: float | None, expected: float) -> None:
    assert moment_of(text, start=start) == expected


@pytest.mark.parametrize("text", ["", "+", "+90", "now", "-5", "inf", "1e300", "2026-11-20", "2026-13-20T00:00:00Z"])
def test_refuses_what_is_no_moment(text: str) -> None:
    with pytest.raises(CommandError, match="--at"):
        moment_of(text, start=1000.0)


def test_writes_times_to_the_millisecond() -> None:
    assert rfc3339(1795211087) == "2026-11-20T21:44:47Z"
    assert rfc3339(1795211087.25) == "2026-11-20T21:44:47.250Z"


@pytest.mark.parametrize(
    ("text", "hours"), [("7d", 168), ("1d12h", 36), ("0d30m", 0.5), ("6h", 6), ("1h30m", 1.5), ("30d", 720)]
)
def test_a_period_may_be_in_days(text: str, hours: float) -> None:
    assert duration_of("--since", text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["d", "-1d", "1dd", "1.5d", "99999d", "0d", "7 d", "٣d", "7days"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"--since"):
        duration_of("--since", text)
