"""Decides whether a backlog will drain by itself, so that another replica or a trial would come too late to help.

Separate from scale-out, which looks at the current queue; this predicts its end. A queue from the time in which a
replica was starting says nothing about the current replicas. Stricter than `seems_to_become_fewer` of the diagnosis,
which only postpones a trial: here requests keep waiting if the prediction is wrong.
Must not: use samples from before the newest replica served.
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from vllm_autotuner.observation.engine_window import EngineWindow, Moment
from vllm_autotuner.observation.noise import DEVIATIONS, NOISE
from vllm_autotuner.observation.observation import Observation

__all__ = ["ENDS_WITHIN", "ends_before_a_trial", "ends_by_itself"]

ENDS_WITHIN: Final = 120.0
"""Seconds within which a queue must drain at its current rate to need no replica. About the startup time of an engine
(1 to 4 minutes are reported), for when it is not known: a replica would not be ready earlier. Our choice."""


def ends_by_itself(observation: Observation, *, since: float | None, within: float = ENDS_WITHIN) -> str | None:
    """Say how the backlog drains `within` so many seconds; None if it does not, or if that is not known.

    `since`: Unix seconds from which on the current replicas have served. Worked: 200 waiting requests, 100 fewer every
    30 s, drain in 60 s. If no request waits, there must be clearly fewer requests than at the peak of that time: a
    burst is ending, or a new replica took the backlog. Worked: of 237 requests half a minute ago 109 are left; a
    decrease of 2 * sqrt(237) = 31 would be within chance.
    """
    known = _known(observation, since)
    if not known:
        return None
    waiting, pace = sum(moments[-1].waiting for moments in known), sum(_pace(moments) for moments in known)
    if waiting > 0:
        ends = -waiting / pace if pace < 0 else float("inf")
        return f"the queue of {waiting:.0f} drains in {ends:.0f} s at its current rate" if ends <= within else None
    # Engines are scraped at different times: add up samples of the same age in scrapes.
    there = [
        sum(moments[-back].running + moments[-back].waiting for moments in known)
        for back in range(1, min(map(len, known)) + 1)
    ]
    most, now = max(there), there[0]
    return f"requests are decreasing: {most:.0f} -> {now:.0f}" if _clearly_fewer(now, than=most) else None


def ends_before_a_trial(observation: Observation, *, since: float | None, warm_up: timedelta) -> str:
    """Say how the backlog drains before a trial has its first window; empty if it does not, or if that is not known.

    By then an engine has started and warmed up. A trial whose reason has gone learns nothing and keeps replicas that
    are not needed. A postponed trial is evaluated again in the next tick, so a queue that has just drained counts as
    well, although it may return. A few requests that come and go are not a backlog.
    """
    known = _known(observation, since)
    waited, waiting = (sum(moments[which].waiting for moments in known) for which in (0, -1))
    falls = _clearly_fewer(waiting, than=waited)
    if waiting > 0 and not falls:
        return ""
    why = ends_by_itself(observation, since=since, within=ENDS_WITHIN + warm_up.total_seconds())
    return why or ("the queue has just drained" if falls and not waiting else "")


def _known(observation: Observation, since: float | None) -> Sequence[list[Moment]]:
    """The samples of each engine since then; none if one engine has too few to see its rate: its queue may grow."""
    lately = [_after(engine, since) for engine in observation.engines]
    return lately if all(len(moments) > 1 for moments in lately) else ()


def _clearly_fewer(now: float, *, than: float) -> bool:
    return than - now > max(NOISE * than, DEVIATIONS * math.sqrt(than))


def _after(engine: EngineWindow, since: float | None) -> list[Moment]:
    return [moment for moment in engine.moments if since is None or moment.time > since]


def _pace(moments: list[Moment]) -> float:
    """Requests per second by which the queue grows: since its peak, where it has clearly fallen in several scrapes.

    Since its lowest after that, where it has clearly risen again.
    """
    last, peak = moments[-1], max(range(len(moments)), key=lambda index: moments[index].waiting)
    falls = peak < len(moments) - 2 and _clearly_fewer(last.waiting, than=moments[peak].waiting)
    since = moments[peak:] if falls else moments
    lowest = min(since, key=lambda moment: moment.waiting)
    first = lowest if _clearly_fewer(lowest.waiting, than=last.waiting) else since[0]
    elapsed = last.time - first.time
    return (last.waiting - first.waiting) / elapsed if elapsed > 0 else 0.0
