"""Cron schedules: valid and invalid texts, and that each day and time matches the fields."""

import re
from contextlib import suppress
from datetime import date, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.cron import CRON_MAX_LENGTH, CRON_PATTERN, parse_schedule

MONDAY = date(2026, 11, 16)
WEEK = [MONDAY + timedelta(days=day) for day in range(7)]
YEARS = [date(2026, 1, 1) + timedelta(days=day) for day in range(3 * 365)]


def terms(first: int, last: int) -> st.SearchStrategy[str]:
    number = st.integers(first, last)
    span = st.one_of(
        st.just("*"),
        number.map(str),
        st.tuples(number, number).map(sorted).map(lambda ends: f"{ends[0]}-{ends[1]}"),
    )
    return st.tuples(span, st.one_of(st.just(""), st.integers(1, 70).map(lambda step: f"/{step}"))).map("".join)


def words(first: int, last: int) -> st.SearchStrategy[str]:
    return st.lists(terms(first, last), min_size=1, max_size=3).map(",".join)


FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
"""Sunday as 7 stands in the table below."""
SCHEDULES = st.tuples(*(words(*field) for field in FIELDS)).map(" ".join).filter(lambda s: len(s) <= CRON_MAX_LENGTH)


def named(word: str, value: int, *, first: int, last: int) -> bool:
    """The field's meaning once more, term by term, as a person reads it."""
    for term in word.split(","):
        span, _, step = term.partition("/")
        low, _, high = span.partition("-")
        begin, end = (first, last) if span == "*" else (int(low), int(high or (last if step else low)))
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False


@given(SCHEDULES, st.times(), st.sampled_from(YEARS))
def test_a_schedule_names_what_its_fields_name(text: str, at: time, day: date) -> None:
    schedule = parse_schedule(text)
    minute, hour, days, month, weekdays = text.split(" ")
    at = at.replace(second=0, microsecond=0)
    expected = named(minute, at.minute, first=0, last=59) and named(hour, at.hour, first=0, last=23)
    assert (at in schedule.times) == expected
    by_day = named(days, day.day, first=1, last=31)
    by_weekday = named(weekdays, day.isoweekday() % 7, first=0, last=6)
    opened = {"*", "*/1"}
    both = bool(opened & set(days.split(","))) or bool(opened & set(weekdays.split(",")))
    expected = named(month, day.month, first=1, last=12) and (
        (by_day and by_weekday) if both else (by_day or by_weekday)
    )
    assert schedule.falls_on(day) == expected


@given(SCHEDULES)
def test_a_schedule_that_has_a_day_falls_on_one_within_eight_years_and_no_other_does(text: str) -> None:
    schedule = parse_schedule(text)
    falls = any(schedule.falls_on(date(2024, 1, 1) + timedelta(days=day)) for day in range(8 * 366))
    assert schedule.has_a_day == falls


@pytest.mark.parametrize(
    ("text", "weekdays"),
    [
        ("0 2 * * 0", "Sun"),
        ("0 2 * * 7", "Sun"),
        ("0 2 * * SUN", "Sun"),
        ("0 2 * * fri-sun", "Fri Sat Sun"),
        ("0 2 * * 5-7", "Fri Sat Sun"),
        ("0 2 * * Mon-Fri", "Mon Tue Wed Thu Fri"),
        ("0 2 * * mon,3", "Mon Wed"),
        ("0 2 * * 1/2", "Mon Wed Fri"),
        ("0 2 * * 7/2", "Sun"),
        ("0 2 17 * *", "Tue"),
        ("0 2 17 * 3", "Tue Wed"),
        ("0 2 */1 * 3", "Wed"),
        ("0 2 * nov *", "Mon Tue Wed Thu Fri Sat Sun"),
        ("0 2 * dec *", ""),
    ],
)
def test_days(text: str, weekdays: str) -> None:
    schedule = parse_schedule(text)
    assert " ".join(f"{day:%a}" for day in WEEK if schedule.falls_on(day)) == weekdays


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("0 2 * * *", "02:00"),
        ("*/20 2,4 * * *", "02:00 02:20 02:40 04:00 04:20 04:40"),
        ("50/5 0 * * *", "00:50 00:55"),
        ("05 20-23/3 * * *", "20:05 23:05"),
    ],
)
def test_times(text: str, times: str) -> None:
    assert " ".join(f"{at:%H:%M}" for at in parse_schedule(text).times) == times


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 2 * *",
        "0 2 * * * *",
        "@daily",
        "60 2 * * *",
        "0 24 * * *",
        "0 2 0 * *",
        "0 2 32 * *",
        "0 2 * 13 *",
        "0 2 * * 8",
        "0 2 * * mo",
        "0 2 * * monday",
        "0 2 * * mon#1",
        "0 2 L * *",
        "0 2 ? * *",
        "*/0 2 * * *",
        "-5 2 * * *",
        "1, 2 * * *",
        "0  2 * * *",
        "0 2 * * *\n",
        " 0 2 * * *",
    ],
)
def test_what_is_no_schedule(text: str) -> None:
    assert re.fullmatch(CRON_PATTERN, text) is None
    with pytest.raises(ValueError, match="write a cron schedule of five fields"):
        parse_schedule(text)


@pytest.mark.parametrize("text", ["0 22-2 * * *", "0 2 * * sat-mon", "0 2 * nov-feb *"])
def test_a_range_that_runs_backwards(text: str) -> None:
    with pytest.raises(ValueError, match="runs backwards"):
        parse_schedule(text)


@given(st.text(alphabet="0123456789*,/- aMonfebSU", max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(ValueError):
        assert parse_schedule(text).times


@pytest.mark.parametrize(("text", "exists"), [("0 0 29 2 *", True), ("0 0 30 2 *", False), ("0 0 31 4,6 *", False)])
def test_days_that_do_not_exist(text: str, *, exists: bool) -> None:
    assert parse_schedule(text).has_a_day is exists
