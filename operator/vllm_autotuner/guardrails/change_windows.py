"""When the change windows of a service are open, in their time zones.

A window opens whenever the clock on the wall of its zone shows a time of its schedule, and stays open for its duration
of real time. In autumn, when an hour is shown twice, it opens twice. In spring, when an hour is left out, it opens as
much later as the clock jumped: a weekly window in the night of the change is not lost.
Apart from the chain, because time zones are a subject of their own. What cannot be read or never opens is closed.
Must not: read a clock. The time zones come from the system, else from the package tzdata.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vllm_autotuner.api.cron import Schedule, parse_schedule
from vllm_autotuner.api.spec import Window

__all__ = ["why_closed"]

_FARTHEST: Final = timedelta(days=9 * 366)
"""A schedule that ever opens does so within this: the longest gap is that of 29 February around a year such as 2100."""


class _Misconfigured(Exception):
    """The window can never open. The message says why."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """A window that was understood."""

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
        raise _Misconfigured("it never opens")

    def _on(self, day: date) -> tuple[datetime, ...]:
        return _moments(self.schedule, self.zone, day) if self.schedule.falls_on(day) else ()


def why_closed(windows: Sequence[Window], *, now: datetime) -> str:
    """Why no window is open, and when the next one opens; empty when one is open, or when there are none."""
    coming, faults = [], []
    for index, window in enumerate(windows):
        try:
            opening = _understood(window)
            if opening.is_open(now):
                return ""
            coming.append(opening.next(now))
        except _Misconfigured as error:
            faults.append(f"windows[{index}] never opens: {error}")
    if not windows:
        return ""
    following = f"the next one opens at {min(coming):%Y-%m-%dT%H:%M:%SZ}" if coming else "none will open"
    more = [f"and {len(faults) - 1} more"] if len(faults) > 1 else []
    return "; ".join((f"outside the change windows (spec.tuning.windows): {following}", *faults[:1], *more))


def _understood(window: Window) -> _Opening:
    try:
        schedule = parse_schedule(window.schedule)
    except ValueError as error:
        raise _Misconfigured(f'schedule "{window.schedule}": {error}') from error
    if not schedule.has_a_day:
        raise _Misconfigured(f'schedule "{window.schedule}": there is no such day')
    return _Opening(schedule, _zone(window.time_zone), window.duration)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # A directory of the database ("Europe") is an OSError, a name that leaves it a ValueError.
        why = f"the time zone {name} is not known here: check its name; an image without time zones needs tzdata"
        raise _Misconfigured(why) from error


@lru_cache(maxsize=4096)
def _moments(schedule: Schedule, zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """The instants of a day at which the schedule opens, in order."""
    found = set()
    for at in schedule.times:
        wall = datetime.combine(day, at)
        for fold in (0, 1):
            moment = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            # A skipped time is taken by the clock before the jump (fold 0); by the clock after it, it is no such time.
            if fold == 0 or moment.astimezone(zone).replace(tzinfo=None) == wall:
                found.add(moment)
    return tuple(sorted(found))
