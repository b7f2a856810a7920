"""Parses cron schedules of five fields, as Kubernetes' CronJob does: minute, hour, day of month, month, day of week.

`*`, numbers, lists, ranges, steps (`5/15` counts from 5 to the end of the field), and English names of months and days.
Sunday is 0 and 7. If both day fields are restricted, either of them suffices. Own code, because no dependency parses
cron. Must not: use a time zone or a clock. `guardrails.change_windows` turns the days and times into instants.
"""

import calendar
import re
from dataclasses import dataclass
from datetime import date, time
from functools import lru_cache
from typing import Final

__all__ = ["CRON_MAX_LENGTH", "CRON_MESSAGE", "CRON_PATTERN", "Schedule", "parse_schedule"]

CRON_MAX_LENGTH: Final = 100
CRON_MESSAGE: Final = 'write a cron schedule of five fields, such as "0 2 * * *" for every night at two'

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SUNDAY, _SUNDAY_TOO = 0, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One of the five fields: its range, the pattern of a value, and the names of its values."""

    first: int
    last: int
    value: str
    names: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """The grammar of the whole field."""
        value = f"({self.value}|(?i:{'|'.join(self.names)}))" if self.names else f"({self.value})"
        term = rf"(\*|{value}(-{value})?)(/[1-9][0-9]?)?"
        return f"{term}(,{term})*"

    def number(self, text: str) -> int:
        """The value of a number or a name."""
        return int(text) if text.isdigit() else self.names.index(text.lower()) + self.first


_MINUTE: Final = _Field(first=0, last=59, value="[0-5]?[0-9]")
_HOUR: Final = _Field(first=0, last=23, value="[01]?[0-9]|2[0-3]")
_DAY: Final = _Field(first=1, last=31, value="0?[1-9]|[12][0-9]|3[01]")
_MONTH: Final = _Field(first=1, last=12, value="0?[1-9]|1[0-2]", names=_MONTHS)
_WEEKDAY: Final = _Field(first=_SUNDAY, last=6, value="0?[0-7]", names=_WEEKDAYS)
_FIELDS: Final = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)

CRON_PATTERN: Final = f"^{' '.join(field.pattern for field in _FIELDS)}$"
"""The grammar, in the common subset of RE2 (API server) and Python. It accepts reversed ranges, which are invalid: a
pattern cannot compare numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The days and local times of day of a schedule."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    """The day of the month is unrestricted (`*`), so the day of the week decides alone."""
    any_weekday: bool
    """The day of the week is unrestricted, so the day of the month decides alone."""

    @property
    def times(self) -> tuple[time, ...]:
        """The times of a day, in order."""
        return tuple(time(hour, minute) for hour in self.hours for minute in self.minutes)

    @property
    def has_a_day(self) -> bool:
        """Whether any date matches: 30 February does not exist."""
        if not self.any_weekday:
            return True
        # 2000 is a leap year: 29 February comes, if only every four or eight years.
        return any(calendar.monthrange(2000, month)[1] >= min(self.days) for month in self.months)

    def falls_on(self, day: date) -> bool:
        """Whether the schedule includes this day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.any_day or self.any_weekday else by_day or by_weekday


@lru_cache(maxsize=1024)
def parse_schedule(text: str) -> Schedule:
    """Read a schedule. Worked: `0 22 * * fri-sun` is 22:00 on Friday, Saturday and Sunday.

    Raises ValueError for anything else.
    """
    if len(text) > CRON_MAX_LENGTH or re.fullmatch(CRON_PATTERN, text) is None:
        raise ValueError(CRON_MESSAGE)
    words = text.split(" ")
    minutes, hours, days, months, weekdays = (
        frozenset().union(*(_values(term, field) for term in word.split(",")))
        for word, field in zip(words, _FIELDS, strict=True)
    )
    return Schedule(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=weekdays,
        any_day=_is_open(words[2]),
        any_weekday=_is_open(words[4]),
    )


def _is_open(word: str) -> bool:
    return any(term in ("*", "*/1") for term in word.split(","))


def _values(term: str, field: _Field) -> frozenset[int]:
    span, _, step = term.partition("/")
    start, _, end = span.partition("-")
    if span == "*":
        first, last = field.first, field.last
    else:
        first = field.number(start)
        last = field.number(end) if end else field.last if step else first
    if field is _WEEKDAY and end and last == _SUNDAY < first:
        last = _SUNDAY_TOO
    if first > last:
        # `7/2` begins at the Sunday that ends the week.
        if first == _SUNDAY_TOO and not end:
            return frozenset({_SUNDAY})
        raise ValueError(f"{span} runs backwards: write two ranges separated by a comma")
    values = range(first, last + 1, int(step or 1))
    return frozenset(_SUNDAY if field is _WEEKDAY and value == _SUNDAY_TOO else value for value in values)
