"""How many requests per second the service has to serve: now, at its highest lately, and when a new replica serves.

Tokens that are made say what is served; the queue and what is turned away say what comes on top. One forecast: a line
through the windows, with its error; where no slope is sure, the rate of now.
Pure. Must not: look at a replica's capacity.
"""

import math
from collections import defaultdict
from datetime import timedelta
from typing import Final

import numpy as np

from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.current_replica import highest_mean, output_tokens, rate_now, tokens_by_window

__all__ = ["LEAST_SEEN", "peak_rate", "peak_tokens_per_second", "rate_ahead"]

LEAST_SEEN: Final = 0.8
"""Share of the stabilization time that must have been observed under load: less is an outage or a restart, not low
load. Our choice, as for `Sustained`."""
FEWEST: Final = 6
"""Windows for a slope: two parameters and four that can contradict. Our choice."""
SURELY: Final = 3.0
"""Standard errors by which the slope must exceed zero: it is asked every 15 s, and two would come by chance."""


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

    `since`: Unix seconds of the last scale-in, before which engines that are gone served a part. Scatter is what the
    line leaves, and that of independent arrivals at least.
    Worked: ten windows of 30 s with 100, 104, ... 136 requests: 0.13/s more each second; in 240 s, 255 s from the
    middle of the last window, 170 in a window where 136 were.
    """
    begin = max(seen.at - over.total_seconds(), -math.inf if since is None else since)
    by_time: dict[float, float] = defaultdict(float)
    for one in seen.first_tokens:
        if one.time - seen.window >= begin:
            by_time[one.time] += one.requests
    now = rate_now(seen)
    if now is None or len(by_time) < FEWEST:
        return None
    times, counts = np.array(list(by_time)), np.array(list(by_time.values()))
    away, level = times - times.mean(), float(counts.mean())
    slope = float(away @ (counts - level)) / float(away @ away)
    left = float(((counts - level - slope * away) ** 2).sum()) / (len(counts) - 2)
    if slope <= SURELY * math.sqrt(max(left, level) / float(away @ away)):
        return None
    # The last window counts what came half a window ago, on average.
    at_end = level + slope * (seen.at - float(times.mean()))
    ahead = at_end + slope * (seen.window / 2 + within)
    return now * max(1.0, ahead / at_end)
