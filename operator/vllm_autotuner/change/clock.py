"""A clock that was set back under a change: its times move along, or nothing would be judged until they come again.

Apart from the machine, which may then believe that its own times lie in the past. A clock set forward needs nothing:
time in which nobody looked is already no part of the time for a verdict.
Must not: touch what is only told (`started_at`), or times of other changes: cooldowns and rests only grow by the jump.
"""

from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.change_records import ActiveChange, Analysis

__all__ = ["SET_BACK", "followed_clock"]

SET_BACK: Final = timedelta(minutes=1)
"""Less is no jump: the clocks of two leaders disagree by a second. Our choice, unmeasured;
at most so much later a window is looked at."""


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


def _moved(analysis: Analysis | None, *, by: timedelta) -> Analysis | None:
    if analysis is None:
        return None
    return analysis.updated(
        started_at=analysis.started_at - by if analysis.started_at is not None else None,
        last=tuple(each.updated(at=each.at - by) for each in analysis.last),
        reference=tuple(each.updated(at=each.at - by) for each in analysis.reference),
    )
