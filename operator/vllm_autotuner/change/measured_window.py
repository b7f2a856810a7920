"""Reads numbers from a measured window (`Measurement`): levels, means, requests. Shared by both comparisons.

Must not: judge. A number that is missing, not finite or not above zero is unknown, never zero.
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ChangeTarget, Measurement

__all__ = [
    "LATENCIES",
    "collected",
    "is_complete",
    "is_queue",
    "level_of",
    "mean_of",
    "mean_queue",
    "most_tell",
    "requests_in",
    "stood_still",
    "window_length",
]

KEPT_FOR: Final = timedelta(minutes=15)
"""How long a window says what the service is like: load moves within the hour. Our choice, unmeasured."""
LATENCIES: Final = (ChangeTarget.TTFT, ChangeTarget.TPOT)
"""The hard objectives."""


def collected(
    windows: Sequence[Measurement], found: Measurement, *, length: timedelta, keep: timedelta = KEPT_FOR
) -> tuple[Measurement, ...]:
    """`windows` and the one `found` now, if it is complete and overlaps with none; without those that are too old."""
    recent = tuple(window for window in windows if found.at - window.at < keep)
    overlaps = any(found.at - window.at < length for window in recent)
    return recent if overlaps or not is_complete(found) else (*recent, found)[-MEASUREMENTS_LENGTH:]


def level_of(window: Measurement, objective: ChangeTarget) -> float | None:
    """Seconds, or tokens per second; None when unknown, and for GPUs, which no window measures."""
    match objective:
        case ChangeTarget.TTFT:
            level = window.ttft_seconds
        case ChangeTarget.TPOT:
            level = window.tpot_seconds
        case ChangeTarget.THROUGHPUT:
            level = window.tokens_per_second
        case ChangeTarget.GPUS | ChangeTarget.START:
            level = None
    return _positive(level)


def mean_of(window: Measurement, objective: ChangeTarget) -> float | None:
    """The mean of the latency; for throughput the same as `level_of`."""
    match objective:
        case ChangeTarget.TTFT:
            return _positive(window.ttft_mean_seconds)
        case ChangeTarget.TPOT:
            return _positive(window.tpot_mean_seconds)
        case ChangeTarget.THROUGHPUT | ChangeTarget.GPUS | ChangeTarget.START:
            return level_of(window, objective)


def _positive(level: float | None) -> float | None:
    return level if level is not None and 0 < level < math.inf else None


def is_complete(window: Measurement) -> bool:
    """Whether the window can be used as evidence: both latencies are known."""
    return all(level_of(window, objective) is not None for objective in LATENCIES)


def most_tell(known: Sequence[object], windows: Sequence[object]) -> bool:
    """Whether a number that so many of the windows have is known on the whole: one lost scrape takes no other away."""
    return 2 * len(known) > len(windows)


def stood_still(windows: Sequence[Measurement]) -> bool:
    """Whether an engine made no token in one of the windows: a zero that was measured is not unknown."""
    return any(window.tokens_per_second == 0 for window in windows)


def is_queue(windows: Sequence[Measurement]) -> bool:
    """Whether requests usually waited."""
    waiting = [window.waiting for window in windows if window.waiting is not None]
    return bool(waiting) and median(waiting) >= 1


def mean_queue(windows: Sequence[Measurement]) -> float:
    """Requests that waited on average; 0 if unknown. A burst that is not usual delays many requests all the same."""
    waiting = [window.waiting for window in windows if window.waiting is not None]
    return fmean(waiting) if waiting else 0.0


def window_length(windows: Sequence[Measurement]) -> timedelta | None:
    """The length of a window: the smallest step between window ends, as they never overlap. None for fewer than two."""
    ends = sorted(window.at for window in windows)
    return min((later - earlier for earlier, later in pairwise(ends) if later > earlier), default=None)


def requests_in(windows: Sequence[Measurement], *, length: timedelta | None) -> float | None:
    """Finished requests in the windows that have the rate: at least as many. None if none has it, or without a length.

    One lost scrape, for which a window lacks it, does not make the other windows unknown.
    """
    rates = [rate for window in windows if (rate := window.requests_per_second) is not None and 0 <= rate < math.inf]
    return None if length is None or not rates else sum(rates) * length.total_seconds()
