"""How late TTFT and TPOT have been over the remembered windows, so that short bursts are not forgotten.

Separate from `scale_in`, which checks whether a load fits. Between bursts it does: the current window does not show
them, and neither does the highest load, because tokens per second over a minute hide a peak of ten seconds.
Pure. Must not: count windows from before the current number of replicas.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from statistics import NormalDist

from vllm_autotuner.diagnosis.case import Case, is_late, tail_of, tpot_mean, tpot_reading, tpot_surely, ttft_reading
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import FirstTokens, Observation
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.observation.shape import log_normal

__all__ = [
    "begin_of",
    "first_tokens_since",
    "late_for",
    "missed_clearly",
    "missed_lately",
    "ttft_lately",
]


def ttft_lately(observation: Observation, *, targets: Targets, since: float | None) -> float | None:
    """Return TTFT at its quantile (seconds) over the remembered windows that began after `since` (Unix seconds).

    Windows before the first one in time had a backlog from fewer replicas and do not count. The quantile of each window
    is estimated as its mean times the current ratio of quantile to mean; the latest windows with the share of requests
    that may be late determine the result. None if TTFT is not measured.
    Worked: 95 requests at 0.2 s on average and 5 at 2 s, the present tail 1.5 times the mean: 0.3 s at p95; with 6 at
    2 s it is 3 s.
    """
    quantile, target = targets.ttft.quantile, targets.ttft.seconds
    now, mean = observation.ttft.quantile(quantile), observation.ttft.mean
    if not isinstance(now, Measured):
        return None
    tail = tail_of(now, mean)
    windows = first_tokens_since(since, observation)
    timely = _first_in_time(windows, mean=target / tail)
    late = _at_quantile([one for one in windows if one.time >= timely], quantile)
    return now.value if late is None else max(now.value, late * tail)


def late_for(observation: Observation, *, targets: Targets) -> float:
    """Return the seconds for which TTFT has been late without a break; 0 if it is not late, or not measured.

    Of earlier windows only means are known: whether they were late is estimated as in `ttft_lately`.
    """
    now, mean = observation.ttft.quantile(targets.ttft.quantile), observation.ttft.mean
    if not isinstance(now, Measured) or now.value <= targets.ttft.seconds:
        return 0.0
    since = observation.at - observation.window
    for time, level in sorted(_means(list(observation.first_tokens)).items(), reverse=True):
        if level * tail_of(now, mean) <= targets.ttft.seconds or time < since:
            break
        since = min(since, time - observation.window)
    return observation.at - since


def missed_clearly(case: Case) -> bool:
    """Whether TTFT or TPOT is over its objective by more than noise."""
    against = ((ttft_reading(case), case.targets.ttft), (tpot_reading(case), case.targets.tpot))
    return any(is_late(reading, replace(target, seconds=target.seconds * (1 + NOISE))) for reading, target in against)


def missed_lately(case: Case, *, over: timedelta, since: float | None) -> bool:
    """Whether the share of late first tokens, or of late tokens, in the time `over` exceeds the error budget.

    Of earlier windows only means are known: their spread is assumed to be the current one. `since`: Unix seconds before
    which the number of replicas was different.
    Worked: p95 within 25 ms, now 27 at a mean of 24: a third of the tokens is late. For one minute of ten that is 3 %,
    and for two 7 %.
    """
    observation, targets = case.observation, case.targets
    begin = begin_of(observation, over=over, since=since)
    first = [(one.mean, one.requests) for one in first_tokens_since(begin, observation)]
    tokens = [
        (one.itl, one.tokens)
        for one in observation.steps
        if one.time is not None and one.time - observation.window >= begin
    ]
    first_tail, tail = tail_of(ttft_reading(case), observation.ttft.mean), tail_of(tpot_surely(case), tpot_mean(case))
    return any(
        _late_share(windows, tail=tail, target=target) > 1 - target.quantile
        for windows, tail, target in ((first, first_tail, targets.ttft), (tokens, tail, targets.tpot))
    )


def _late_share(windows: Sequence[tuple[float, float]], *, tail: float, target: Target) -> float:
    """Return which share (0..1) of windows of (mean, weight) is over the target; 0 without any.

    Each is a log-normal whose quantile is `tail` times its mean: with z standard deviations to that quantile, the
    width w of the logarithm solves ln(tail) = z * w - w^2 / 2.
    """
    everything = sum(weight for _, weight in windows)
    if everything <= 0:
        return 0.0
    z = NormalDist().inv_cdf(target.quantile)
    width = z - math.sqrt(max(0.0, z**2 - 2 * math.log(tail)))
    return sum(weight * _over(target.seconds, mean=mean, width=width) for mean, weight in windows) / everything


def _over(seconds: float, *, mean: float, width: float) -> float:
    if width <= 0 or mean <= 0:
        return float(mean > seconds)
    return 1.0 - log_normal(mean, width).below(seconds)


def begin_of(observation: Observation, *, over: timedelta, since: float | None) -> float:
    """Return the Unix seconds from which on the time `over` is looked at, and not before `since`."""
    return max(observation.at - over.total_seconds(), -math.inf if since is None else since)


def first_tokens_since(moment: float | None, observation: Observation) -> list[FirstTokens]:
    """Return the remembered windows that began at `moment` (Unix seconds) or later; all where there is none."""
    return [one for one in observation.first_tokens if moment is None or one.time - observation.window >= moment]


def _first_in_time(windows: list[FirstTokens], *, mean: float) -> float:
    """When the first window ended whose first tokens took at most `mean` seconds on average; infinity without one."""
    return min((time for time, found in _means(windows).items() if found <= mean), default=math.inf)


def _means(windows: list[FirstTokens]) -> dict[float, float]:
    """Mean TTFT of all engines together, by the end of the window."""
    seconds: dict[float, float] = defaultdict(float)
    requests: dict[float, float] = defaultdict(float)
    for one in windows:
        seconds[one.time] += one.mean * one.requests
        requests[one.time] += one.requests
    return {time: seconds[time] / count for time, count in requests.items()}


def _at_quantile(windows: list[FirstTokens], quantile: float) -> float | None:
    """Return the mean at or below which windows hold that share of the requests; None without windows."""
    below, everything = 0.0, sum(one.requests for one in windows)
    for one in sorted(windows, key=lambda one: one.mean):
        below += one.requests
        if below >= quantile * everything:
            return one.mean
    return None
