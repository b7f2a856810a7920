"""Whether what has piled up is being worked off: then a replica, or a trial, would come when nobody needs it any more.

Apart from scale-out, because that asks whether requests wait, and this whether they will. A queue from the time in
which a replica was starting says nothing about the replicas that there are now. Surer than `seems_to_become_fewer` of
the diagnosis has to be, which only puts a trial off: here requests wait for it if it is wrong.
Must not: look at samples from before the newest replica served.
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
"""Seconds in which a queue must be gone at its present pace to be left alone. About what an engine takes to start
(peers report 1 to 4 minutes), where nobody knows what it takes: a replica would not come before. Our choice."""


def ends_by_itself(observation: Observation, *, since: float | None, within: float = ENDS_WITHIN) -> str | None:
    """Say how what has piled up ends `within` so many seconds; None when it does not, or when that is not known.

    `since`: Unix seconds from which on the present replicas have served. Worked: 200 waiting, 100 fewer every 30 s, are
    gone in 60 s. Where nothing waits any more, clearly fewer requests must be there than at the most in that time: a
    burst is on its way out, or a fresh replica took what had piled up. Worked: of 237 half a minute ago 109 are left;
    2 * sqrt(237) = 31 fewer would have been chance.
    """
    known = _known(observation, since)
    if not known:
        return None
    waiting, pace = sum(moments[-1].waiting for moments in known), sum(_pace(moments) for moments in known)
    if waiting > 0:
        ends = -waiting / pace if pace < 0 else float("inf")
        return f"the queue of {waiting:.0f} ends in {ends:.0f} s at its present pace" if ends <= within else None
    # Engines are scraped at their own moments: those that are as many scrapes old are added up.
    there = [
        sum(moments[-back].running + moments[-back].waiting for moments in known)
        for back in range(1, min(map(len, known)) + 1)
    ]
    most, now = max(there), there[0]
    return f"requests become fewer: {most:.0f} -> {now:.0f}" if _clearly_fewer(now, than=most) else None


def ends_before_a_trial(observation: Observation, *, since: float | None, warm_up: timedelta) -> str:
    """Say how what has piled up ends before a trial has its first window; empty when it does not, or nobody knows.

    By then an engine has started and warmed up. A trial that finds its reason gone learns nothing in all its windows,
    and keeps replicas that nobody needs. One that is put off is asked for again in the next tick: so a queue that is
    just over counts as well, although it may come back. A few requests that come and go are no pile.
    """
    known = _known(observation, since)
    waited, waiting = (sum(moments[which].waiting for moments in known) for which in (0, -1))
    falls = _clearly_fewer(waiting, than=waited)
    if waiting > 0 and not falls:
        return ""
    why = ends_by_itself(observation, since=since, within=ENDS_WITHIN + warm_up.total_seconds())
    return why or ("the queue has just ended" if falls and not waiting else "")


def _known(observation: Observation, since: float | None) -> Sequence[list[Moment]]:
    """What is seen of each engine since then; nothing where one of them tells no pace: its queue may grow."""
    lately = [_after(engine, since) for engine in observation.engines]
    return lately if all(len(moments) > 1 for moments in lately) else ()


def _clearly_fewer(now: float, *, than: float) -> bool:
    return than - now > max(NOISE * than, DEVIATIONS * math.sqrt(than))


def _after(engine: EngineWindow, since: float | None) -> list[Moment]:
    return [moment for moment in engine.moments if since is None or moment.time > since]


def _pace(moments: list[Moment]) -> float:
    """Requests per second by which the queue grows."""
    elapsed = moments[-1].time - moments[0].time
    return (moments[-1].waiting - moments[0].waiting) / elapsed if elapsed > 0 else 0.0
