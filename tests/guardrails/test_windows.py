"""Change windows over days, time zones and both daylight-saving shifts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guardrails.test_chain import context, proposal

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Window
from vllm_autotuner.guardrails.chain import Allow, in_window, objections
from vllm_autotuner.guardrails.change_windows import why_closed, why_never_open

NIGHT = {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin", "duration": "2h"}


def window(schedule: str = "0 2 * * *", time_zone: str = "UTC", duration: str = "2h") -> Window:
    return Window.model_validate({"schedule": schedule, "timeZone": time_zone, "duration": duration})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def opened(*windows: Window, since: str, until: str) -> list[str]:
    """When it opens and closes, minute by minute, in UTC: `opening-closing`."""
    now, end, found, start = at(since), at(until), [], None
    while now <= end:
        is_open = not why_closed(windows, now=now)
        if is_open and start is None:
            start = now
        if not is_open and start is not None:
            found.append(f"{start:%dT%H:%M}-{now:%dT%H:%M}")
            start = None
        now += timedelta(minutes=1)
    assert start is None, "still open at the end"
    return found


def test_without_windows_it_is_always_open() -> None:
    assert why_closed((), now=at("2026-11-21T12:00")) == ""


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-11-21T01:59:59", False),
        ("2026-11-21T02:00:00", True),
        ("2026-11-21T03:59:59.999999", True),
        ("2026-11-21T04:00:00", False),
    ],
)
def test_the_opening_belongs_to_the_window_and_its_end_does_not(now: str, is_open: bool) -> None:
    assert (why_closed((window(),), now=at(now)) == "") is is_open


def test_the_next_opening_is_named() -> None:
    said = why_closed((window(time_zone="Europe/Berlin"),), now=at("2026-11-21T12:00"))
    assert said == "outside the change windows (spec.tuning.windows): the next one opens at 2026-11-22T01:00:00Z"


def test_of_several_the_next_one_is_named_and_any_open_one_suffices() -> None:
    both = (window("0 2 * * *"), window("0 20 * * 6"))
    assert "2026-11-21T20:00:00Z" in why_closed(both, now=at("2026-11-21T12:00"))
    assert why_closed(both, now=at("2026-11-21T21:00")) == ""
    assert why_closed(both, now=at("2026-11-22T03:00")) == ""


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param([window(duration="90m")], ["20T02:00-20T03:30", "21T02:00-21T03:30"], id="a night in UTC"),
        pytest.param(
            [window("0 22 * * 5", duration="6h")], ["20T22:00-21T04:00"], id="over midnight, from Friday into Saturday"
        ),
        pytest.param(
            [window("0 2 * * *", duration="2h"), window("0 3 * * *", duration="2h")],
            ["20T02:00-20T05:00", "21T02:00-21T05:00"],
            id="two that overlap",
        ),
        pytest.param([window("*/30 4-5 20 * *", duration="30m")], ["20T04:00-20T06:00"], id="one after the other"),
        pytest.param([window("0 1 19 * *", duration="30h")], ["20T00:00-20T07:00"], id="longer than a day"),
        pytest.param(
            [window(time_zone="America/New_York")], ["20T07:00-20T09:00", "21T07:00-21T09:00"], id="west of Greenwich"
        ),
        pytest.param([window("0 2 * * 6", "Asia/Tokyo")], ["20T17:00-20T19:00"], id="the day there, not here"),
    ],
)
def test_open_from_the_schedule_for_the_duration(windows: list[Window], expected: list[str]) -> None:
    assert opened(*windows, since="2026-11-20T00:00", until="2026-11-21T23:00") == expected


@pytest.mark.parametrize(
    ("schedule", "duration", "expected"),
    [
        pytest.param("30 1 * * *", "1h", ["29T00:30-29T01:30"], id="before the jump: real time counts"),
        pytest.param("0 2 * * *", "1h", ["29T01:00-29T02:00"], id="at the jump: as the clock shows 03:00"),
        pytest.param("30 2 * * 0", "1h", ["29T01:30-29T02:30"], id="a skipped time opens an hour later by the wall"),
        pytest.param("0 3 * * *", "1h", ["29T01:00-29T02:00"], id="after the jump"),
    ],
)
def test_spring_leaves_out_an_hour(schedule: str, duration: str, expected: list[str]) -> None:
    """In Berlin 02:00 to 03:00 does not exist on 29 March 2026; the clock jumps at 01:00Z."""
    night = window(schedule, "Europe/Berlin", duration)
    assert opened(night, since="2026-03-29T00:00", until="2026-03-29T12:00") == expected


@pytest.mark.parametrize(
    ("schedule", "duration", "expected"),
    [
        pytest.param("30 1 * * *", "1h", ["24T23:30-25T00:30"], id="before"),
        pytest.param("30 2 * * 0", "15m", ["25T00:30-25T00:45", "25T01:30-25T01:45"], id="shown twice, opens twice"),
        pytest.param("0 2 * * *", "1h", ["25T00:00-25T02:00"], id="while the wall shows two"),
        pytest.param("0 3 * * *", "1h", ["25T02:00-25T03:00"], id="after"),
    ],
)
def test_autumn_shows_an_hour_twice(schedule: str, duration: str, expected: list[str]) -> None:
    """In Berlin 02:00 to 03:00 is shown twice on 25 October 2026: from 00:00Z and from 01:00Z."""
    night = window(schedule, "Europe/Berlin", duration)
    assert opened(night, since="2026-10-24T22:00", until="2026-10-25T12:00") == expected


def test_half_an_hour_of_summer_time() -> None:
    """Lord Howe Island moves its clock by half an hour: 02:00 to 02:30 does not exist on 4 October 2026."""
    found = opened(
        window("15 2 * * *", "Australia/Lord_Howe", "30m"), since="2026-10-03T12:00", until="2026-10-04T12:00"
    )
    assert found == ["03T15:45-03T16:15"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (window(time_zone="Europe/Berln"), "unknown time zone Europe/Berln"),
        (window(time_zone="Europe"), "unknown time zone Europe:"),
        (window("0 2 30 2 *"), "the date does not exist"),
        (window("0 22-2 * * *"), "22-2 runs backwards"),
    ],
)
def test_what_is_misconfigured_is_closed_and_says_why(broken: Window, says: str) -> None:
    now = at("2026-11-21T12:00")
    said = why_closed((broken,), now=now)
    assert "none of them ever opens" in said
    assert "windows[0] never opens: " in said
    assert says in said
    beside = why_closed((window(), broken), now=now)
    assert "the next one opens at 2026-11-22T02:00:00Z" in beside
    assert "windows[1] never opens" in beside
    assert why_closed((broken, window()), now=at("2026-11-21T03:00")) == ""
    told = why_never_open((window(), broken))
    assert "windows[1] never opens: " in told
    assert says in told
    assert why_never_open((window(),)) == ""


def test_the_message_stays_short_however_many_are_misconfigured() -> None:
    said = why_closed([window(time_zone="Europe/Berln")] * 16, now=at("2026-11-21T12:00"))
    assert said.endswith("; and 15 more")
    assert len(said) < 400


def test_a_day_that_comes_every_four_years_is_waited_for() -> None:
    leap = window("0 2 29 2 *")
    assert "2028-02-29T02:00:00Z" in why_closed((leap,), now=at("2026-11-21T12:00"))
    assert why_closed((leap,), now=at("2028-02-29T03:00")) == ""


def test_the_longest_duration_is_read() -> None:
    assert why_closed((window("0 2 1 1 *", duration="8760h"),), now=at("2026-11-21T12:00")) == ""


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo")
TIMES = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2028, 12, 31))  # noqa: DTZ001


@given(
    minute=st.sampled_from(["0", "30", "*/20"]),
    hour=st.sampled_from(["*", "2", "1-3", "23"]),
    weekday=st.sampled_from(["*", "0", "1-5"]),
    zone=st.sampled_from(ZONES),
    hours=st.integers(1, 60),
    moment=TIMES,
)
def test_it_is_open_at_the_time_it_names_and_closed_right_before(
    minute: str, hour: str, weekday: str, zone: str, hours: int, moment: datetime
) -> None:
    made = window(f"{minute} {hour} * * {weekday}", zone, f"{hours}h")
    said = why_closed((made,), now=moment.replace(tzinfo=UTC))
    if not said:
        return
    named = datetime.fromisoformat(said.rsplit(" ", 1)[1].removesuffix("Z")).replace(tzinfo=UTC)
    assert named > moment.replace(tzinfo=UTC)
    assert why_closed((made,), now=named) == ""
    assert why_closed((made,), now=named + timedelta(hours=hours) - timedelta(seconds=1)) == ""
    before = why_closed((made,), now=named - timedelta(seconds=1))
    assert said == before, "nothing opens between now and what is named"


def with_windows(*windows: dict[str, Any], now: str) -> Any:
    return context({"tuning.windows": list(windows)}, now=at(now))


def test_only_the_start_of_an_engine_change_needs_a_window() -> None:
    closed = with_windows(NIGHT, now="2026-11-21T12:00")
    assert in_window(proposal(), closed) != Allow()
    assert in_window(proposal(knob=Knob.REPLICAS), closed) == Allow()
    assert in_window(proposal(), with_windows(NIGHT, now="2026-11-21T02:00")) == Allow()
    assert [found.reason for found in objections(proposal(), closed) if found.reason == "OutsideWindow"]
