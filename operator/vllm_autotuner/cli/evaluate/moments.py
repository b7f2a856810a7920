"""Which moments are evaluated, and how a moment is written.

A class is named after several evaluations agree, so each moment needs the evaluations before it.
Must not: read a clock; "now" comes from the caller.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.cli.errors import CommandError

__all__ = ["CONFIRM", "MOST_LOOKS", "Schedule", "Span", "moment_of", "recorded", "remote", "rfc3339", "sparse"]

TICK: Final = 5.0
"""Seconds between evaluations of a recording: a sixth of the state window, so that a change is named within two
windows. More often costs time and sees the same samples again."""
WARM_UP: Final = 1800.0
"""Seconds before the moment asked about from which a recording is evaluated: what was named before that is over."""
TYPING_SLACK: Final = 1.0
"""Seconds by which a moment may miss a recording: people type whole seconds, recordings do not end on one."""
PLOTTED: Final = 720
"""Evaluations over a long recording that is plotted: more than a screen has room for gain nothing."""
REMOTE_TICK: Final = 15.0
"""Seconds between evaluations of a Prometheus: the pace of the operator."""
REMOTE_TICKS: Final = 4
"""One more than a change of class and its confirmation need. Each one is a round of queries over the whole fleet."""
MOST_LOOKS: Final = 500
"""Evaluations of a Prometheus over a long time: each is a round of queries over the whole fleet. A week then is
evaluated every 20 minutes."""
CLOSEST: Final = 15.0
"""Seconds: the interval of the operator, and the shortest useful one for a Prometheus."""
SHORTEST_STEP: Final = 1.0
"""Seconds between evaluations of a recording that may be asked for: engines are scraped less often, and an hour in
milliseconds would take days."""
CONFIRM: Final = 15.0
"""Seconds before each evaluation of a sparse replay at which another one confirms it: a class must be seen twice in a
row, and twenty minutes apart the state may have changed."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when a source has samples (Unix seconds)."""

    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every moment to evaluate, ascending; the last one is the answer. `shown` is the timeline, empty for none."""

    ticks: tuple[float, ...]
    shown: frozenset[float] = frozenset()


def recorded(span: Span, *, at: float | None = None, every: float | None = None, everything: bool = False) -> Schedule:
    """Plan the evaluation of a recording: its end, the moment `at`, or every `every` seconds of its length and its end.

    `everything` evaluates all of it where neither is given. Raises CommandError when `at` lies outside of it, and for
    an `every` of which the samples tell nothing.
    """
    if every is not None:
        if every < SHORTEST_STEP:
            raise CommandError(f"--every {every:g}s is too short: no metrics are scraped that often; write at least 1s")
        return _timeline(span, every=every)
    if everything and at is None:
        # Coarser over a long recording, but never coarser than the operator looks.
        pace = min(REMOTE_TICK, max(TICK, (span.last - span.first) / PLOTTED))
        return Schedule(ticks=_timeline(span, every=pace).ticks)
    moment = span.last if at is None else at
    if not span.first - TYPING_SLACK <= moment <= span.last + TYPING_SLACK:
        raise CommandError(
            f"--at {rfc3339(moment)} is outside of the recording, which covers "
            f"{rfc3339(span.first)} to {rfc3339(span.last)} (Unix {span.first:.3f} to {span.last:.3f}, "
            f"+0s to +{span.last - span.first:.0f}s)"
        )
    moment = min(max(moment, span.first), span.last)
    back = math.floor(min(WARM_UP, moment - span.first) / TICK)
    # The first sample alone tells nothing about growth.
    ticks = [moment - TICK * index for index in range(back, -1, -1)]
    return Schedule(ticks=tuple(tick for tick in ticks if tick > span.first) or (moment,))


def _timeline(span: Span, *, every: float) -> Schedule:
    shown = [span.first + every * index for index in range(1, math.ceil((span.last - span.first) / every))]
    shown.append(span.last)
    ticks: list[float] = []
    for start, end in pairwise([span.first, *shown]):
        parts = max(1, math.ceil((end - start) / TICK - 1e-9))
        ticks += [start + (end - start) * part / parts for part in range(1, parts)] + [end]
    return Schedule(ticks=tuple(ticks), shown=frozenset(shown))


def remote(at: float, *, back: float | None = None) -> Schedule:
    """Plan the evaluation of a Prometheus at `at`, from `back` seconds before it (None: as few as needed).

    At the pace of the operator; where that is over `MOST_LOOKS`, as far apart as in `sparse`.
    """
    if back is not None and back > MOST_LOOKS * REMOTE_TICK:
        return Schedule(ticks=sparse(at, back=back, pace=None).ticks)
    looks = REMOTE_TICKS if back is None else max(REMOTE_TICKS, 1 + math.floor(back / REMOTE_TICK))
    return Schedule(ticks=tuple(at - REMOTE_TICK * index for index in range(looks - 1, -1, -1)))


def sparse(now: float, *, back: float, pace: float | None, most: int = MOST_LOOKS) -> Schedule:
    """Evaluations from `back` seconds ago until now; where they are far apart, each has one just before it.

    `pace`: seconds between them; None: as many as `most`.
    """
    step = max(CLOSEST, back / most if pace is None else pace)
    count = max(1, math.floor(back / step))
    shown = [now - step * index for index in range(count - 1, -1, -1)]
    before = [at - CONFIRM for at in shown] if step >= 2 * CONFIRM else []
    return Schedule(ticks=tuple(sorted([*before, *shown])), shown=frozenset(shown))


def moment_of(text: str, *, start: float | None) -> float:
    """Read a moment: Unix seconds, RFC 3339, or `+90s` after `start`. Raises CommandError."""
    if text.startswith("+"):
        if start is None:
            raise CommandError(
                f"--at {text} counts from the start of a recording: for a Prometheus write a time of day"
            )
        try:
            return start + parse_duration(text[1:]).total_seconds()
        except ValueError:
            raise CommandError(f"--at {text}: write a duration after the plus, such as +90s or +2m30s") from None
    try:
        moment = float(text)
    except ValueError:
        moment = _read_rfc3339(text)
    if not math.isfinite(moment) or not 0 <= moment < 1e11:
        raise CommandError(f"--at {text} is not a time in Unix seconds")
    return moment


def _read_rfc3339(text: str) -> float:
    example = "write Unix seconds, a time such as 2026-11-20T21:44:00Z, or +90s from the start of a recording"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"--at {text!r} is not a time; {example}") from None
    if moment.tzinfo is None:
        raise CommandError(f"--at {text!r} has no time zone; {example}")
    return moment.timestamp()


def rfc3339(time: float, *, timespec: str = "milliseconds") -> str:
    """Write Unix seconds as RFC 3339 in UTC, to the millisecond or to what `timespec` of `isoformat` names."""
    try:
        moment = datetime.fromtimestamp(time, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time:g}"
    return moment.isoformat(timespec=timespec).replace(".000", "").replace("+00:00", "Z")
