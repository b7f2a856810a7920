"""How many requests per second the service has to serve: now, at its highest lately, and when a new replica serves.

Tokens that are made say what is served; the queue and what is turned away say what comes on top. One forecast: a line
through the windows, with its error; where no slope is sure, the rate of now.
Pure. Must not: look at a replica's capacity.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean
from typing import Final

from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.current_replica import highest_mean, output_tokens, rate_now, tokens_by_window
from vllm_autotuner.planning.forecast import LEAST_SEEN

__all__ = ["peak_rate", "peak_tokens_per_second", "rate_ahead"]

FEWEST: Final = 6
"""Windows for a slope: two parameters and four that can contradict. Our choice."""
SURELY: Final = 3.0
"""Standard errors by which the slope must exceed zero: it is asked every 15 s, and two would come by chance."""
LASTING: Final = 0.5
"""Share of the whole slope that the later half must have: a steady rise has all of it, a step to a new level none. Our
choice."""


def peak_rate(seen: Observation, *, over: timedelta) -> float | None:
    """The most requests per second that were served in any five minutes of `over`; None if too little was seen."""
    tokens, output = peak_tokens_per_second(seen, over=over), output_tokens(seen)
    return None if tokens is None or not output else tokens / output


def peak_tokens_per_second(seen: Observation, *, over: timedelta) -> float | None:
    """The most output tokens per second of all engines in any five minutes of `over`; None if too little was seen."""
    made = tokens_by_window(seen, over=over.total_seconds())
    if len(made) * seen.window < LEAST_SEEN * over.total_seconds():
        return None
    return highest_mean(made, window=seen.window) / seen.window


def rate_ahead(seen: Observation, *, within: float, over: timedelta, since: float | None) -> float | None:
    """Requests per second that will come in so many seconds, if the rate of the time `over` surely rises; else None.

    `since`: Unix seconds of the last scale-in, before which engines that are gone served a part. So did those whose
    place new ones took: only windows in which as many served are compared with each other. Scatter is what the line
    leaves, and that of independent arrivals at least.
    Worked: ten windows of 30 s with 100, 104, ... 136 requests: 0.13/s more each second; in 240 s, 255 s from the
    middle of the last window, 170 in a window where 136 were.
    """
    now, windows = rate_now(seen), _windows(seen, since=max(seen.at - over.total_seconds(), since or -math.inf))
    whole, later = _rise(windows), _rise(windows[len(windows) // 2 :])
    if now is None or len(windows) < FEWEST or whole is None or later is None:
        return None
    slope, error = whole
    if slope <= SURELY * error or later[0] < LASTING * slope:
        return None
    alike = [each for each in windows if each.engines == windows[-1].engines]
    # The last window counts what came half a window ago, on average.
    at_end = fmean(each.requests for each in alike) + slope * (seen.at - fmean(each.time for each in alike))
    return now * (1 + slope * (seen.window / 2 + within) / at_end)


@dataclass(frozen=True, slots=True)
class _Window:
    time: float
    engines: int
    requests: float


def _windows(seen: Observation, *, since: float) -> list[_Window]:
    """Requests of all engines in each window that began after `since`, oldest first."""
    parts: dict[float, list[float]] = defaultdict(list)
    for one in seen.first_tokens:
        if one.time - seen.window >= since:
            parts[one.time].append(one.requests)
    return [_Window(time, len(counts), sum(counts)) for time, counts in sorted(parts.items())]


def _rise(windows: Sequence[_Window]) -> tuple[float, float] | None:
    """More requests in a window each second, and the standard error of that; None where too few can be compared."""
    groups: dict[int, list[_Window]] = defaultdict(list)
    for window in windows:
        groups[window.engines].append(window)
    away, more = [], []
    for alike in groups.values():
        middle, level = fmean(each.time for each in alike), fmean(each.requests for each in alike)
        away += [each.time - middle for each in alike]
        more += [each.requests - level for each in alike]
    spread, free = sum(time * time for time in away), len(windows) - len(groups) - 1
    if spread <= 0 or free < 1:
        return None
    slope = sum(time * each for time, each in zip(away, more, strict=True)) / spread
    left = sum((each - slope * time) ** 2 for time, each in zip(away, more, strict=True)) / free
    return slope, math.sqrt(max(left, fmean(window.requests for window in windows)) / spread)
