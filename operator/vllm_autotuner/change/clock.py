"""Shifts the timestamps of a change after the clock was set back; otherwise it would wait until they come again.

Separate from the state machine, which may assume that its timestamps lie in the past. A clock set forward needs no
handling: the analysis already excludes time without a leader.
Must not: change what is only displayed (`started_at`), or cooldowns and retry times, which only grow by the jump.
"""

from datetime import datetime, timedelta
from typing import Final, TypeVar

from vllm_autotuner.api.change_records import ActiveChange, Analysis

__all__ = ["SET_BACK", "followed_clock"]

_Windows = TypeVar("_Windows", bound=Analysis)

SET_BACK: Final = timedelta(minutes=1)
"""Smaller differences are ignored: the clocks of two leaders differ by about a second. Delays a window by at most this.
Our choice, unmeasured."""


def followed_clock(change: ActiveChange, *, now: datetime) -> ActiveChange:
    """Return the change with its times moved back by as much as the newest of them is ahead of `now` (T33)."""
    times = (change.state_since, change.clock_stopped_at, *_times(change.analysis), *_times(change.bake))
    jump = max((time for time in times if time is not None), default=now) - now
    if jump < SET_BACK:
        return change

    def back(time: datetime | None) -> datetime | None:
        return None if time is None else time - jump

    return change.updated(
        state_since=back(change.state_since),
        deadline=back(change.deadline),
        clock_stopped_at=back(change.clock_stopped_at),
        analysis=_moved(change.analysis, by=jump),
        bake=_moved(change.bake, by=jump),
    )


def _times(analysis: Analysis | None) -> tuple[datetime | None, ...]:
    return () if analysis is None else (analysis.started_at, *(each.at for each in analysis.last))


def _moved(analysis: _Windows | None, *, by: timedelta) -> _Windows | None:
    if analysis is None:
        return None
    return analysis.updated(
        started_at=analysis.started_at - by if analysis.started_at is not None else None,
        last=tuple(each.updated(at=each.at - by) for each in analysis.last),
        reference=tuple(each.updated(at=each.at - by) for each in analysis.reference),
    )
