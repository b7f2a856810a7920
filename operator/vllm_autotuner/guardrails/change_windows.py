"""Change windows (spec.tuning.windows): whether one is open, in its time zone, and when the next one opens.

A window opens whenever the local time of its zone matches its schedule, and stays open for its duration in real time.
At the end of daylight saving time, when an hour repeats, it opens twice. At its start, when an hour is skipped, it
opens later by the length of the jump, so a weekly window in that night is not lost.
Windows that cannot be read or never open count as closed.
Must not: read a clock. Time zones come from the system, or else from the package tzdata.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vllm_autotuner.api.cron import Schedule, parse_schedule
from vllm_autotuner.api.spec import Window

__all__ = ["why_closed", "why_never_open"]

_FARTHEST: Final = timedelta(days=9 * 366)
"""Every valid schedule opens within this time: the longest gap is that of 29 February around a year such as 2100."""


class _Misconfigured(Exception):
    """The window can never open. The message says why."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """A parsed window."""

    schedule: Schedule
    zone: ZoneInfo
    duration: timedelta

    def is_open(self, now: datetime) -> bool:
        """Whether it opened less than its duration ago."""
        today = now.astimezone(self.zone).date()
        for back in range(min(self.duration, _FARTHEST).days + 2):
            opened = [moment for moment in self._on(today - timedelta(days=back)) if moment <= now]
            if opened:
                return now - opened[-1] < self.duration
        return False

    def next(self, now: datetime) -> datetime:
        """When it opens next."""
        today = now.astimezone(self.zone).date()
        for ahead in range(_FARTHEST.days):
            for moment in self._on(today + timedelta(days=ahead)):
                if moment > now:
                    return moment
        raise _Misconfigured("the schedule matches no date")

    def _on(self, day: date) -> tuple[datetime, ...]:
        return _moments(self.schedule, self.zone, day) if self.schedule.falls_on(day) else ()


def why_never_open(windows: Sequence[Window]) -> str:
    """Which of the windows can never open, and why; empty if there is none."""
    faults = []
    for index, window in enumerate(windows):
        try:
            _understood(window)
        except _Misconfigured as error:
            faults.append(_fault(index, error))
    return _told(faults)


def _fault(index: int, error: _Misconfigured) -> str:
    return f"windows[{index}] never opens: {error}"


def _told(faults: Sequence[str]) -> str:
    more = [f"and {len(faults) - 1} more"] if len(faults) > 1 else []
    return "; ".join((*faults[:1], *more))


def why_closed(windows: Sequence[Window], *, now: datetime) -> str:
    """Why no window is open, and when the next one opens; empty if one is open or none is configured."""
    coming, faults = [], []
    for index, window in enumerate(windows):
        try:
            opening = _understood(window)
            if opening.is_open(now):
                return ""
            coming.append(opening.next(now))
        except _Misconfigured as error:
            faults.append(_fault(index, error))
    if not windows:
        return ""
    following = f"the next one opens at {min(coming):%Y-%m-%dT%H:%M:%SZ}" if coming else "none of them ever opens"
    told = f"outside the change windows (spec.tuning.windows): {following}"
    return "; ".join(each for each in (told, _told(faults)) if each)


def _understood(window: Window) -> _Opening:
    try:
        schedule = parse_schedule(window.schedule)
    except ValueError as error:
        raise _Misconfigured(f'schedule "{window.schedule}": {error}') from error
    if not schedule.has_a_day:
        raise _Misconfigured(f'schedule "{window.schedule}": the date does not exist')
    return _Opening(schedule, _zone(window.time_zone), window.duration)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # A directory of the database ("Europe") is an OSError, a name that leaves it a ValueError.
        why = f"unknown time zone {name}: check the name, or install tzdata in the operator's image"
        raise _Misconfigured(why) from error


@lru_cache(maxsize=4096)
def _moments(schedule: Schedule, zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """The instants of a day at which the schedule opens, in order."""
    found = set()
    for at in schedule.times:
        wall = datetime.combine(day, at)
        for fold in (0, 1):
            moment = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            # A skipped time is resolved by the offset before the jump (fold 0); with the offset after it, it differs.
            if fold == 0 or moment.astimezone(zone).replace(tzinfo=None) == wall:
                found.add(moment)
    return tuple(sorted(found))
