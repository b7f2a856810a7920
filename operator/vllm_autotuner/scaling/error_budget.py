"""Whether more first tokens or tokens have been late lately than the objectives allow.

Between bursts the current window shows nothing of them; the remembered windows do, by their means.
Pure. Must not: count windows from before the current number of replicas.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from statistics import NormalDist

from vllm_autotuner.diagnosis.case import Case, by_chance, is_late, over_mean, surely, ttft_reading
from vllm_autotuner.diagnosis.objectives import Target
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import FirstTokens
from vllm_autotuner.observation.reading import Reading
from vllm_autotuner.observation.shape import log_normal
from vllm_autotuner.planning.current_replica import output_tokens

__all__ = ["budget_spent", "late_for"]


def budget_spent(case: Case, *, over: timedelta, since: float | None, beyond_chance: bool) -> bool:
    """Whether more first tokens, or tokens, were late in the time `over` than the objective allows.

    Of earlier windows only means are known: their spread is assumed to be the current one. `since`: Unix seconds before
    which the number of replicas was different. `beyond_chance`: only more than can be late by chance count.
    Worked: p95 within 25 ms, now 27 at a mean of 24: 28 % of the tokens are late. For one minute of ten that is 3 %,
    and for two 6 %. Of 1,000 requests 5 % may be late, and by chance 6.4 %; of 70, 10.2 %.
    """
    seen, targets = case.observation, case.targets
    begin = max(seen.at - over.total_seconds(), -math.inf if since is None else since)
    first = [(one.mean, one.requests) for one in seen.first_tokens if one.time - (one.window or seen.window) >= begin]
    # A step with a draft makes several tokens of a sequence: the objective is about tokens.
    a_step = seen.tokens_per_step
    tokens = [
        (one.itl / a_step, one.tokens)
        for one in seen.steps
        if one.time is not None and one.time - (one.window or seen.window) >= begin
    ]
    # Single tokens spread far more than the means of requests, which the objective is about. Of few requests little of
    # their spread is sure, and of none nothing: then only windows count whose mean is late.
    of_requests = seen.tpot if seen.tpot.buckets else seen.itl
    first_tail = _ratio(ttft_reading(case), seen.ttft.mean)
    tail = _ratio(surely(of_requests, quantile=targets.tpot.quantile), of_requests.mean)
    # Requests differ by chance, and the tokens of one are late together. Where their length is not known, tokens count.
    # All are of at least one: of a tenth of a request all tokens would be late by chance.
    each = max(1.0, output_tokens(seen) or 1.0) / a_step
    return any(
        _late_share(windows, tail=ratio, target=target)
        > 1 - target.quantile + beyond_chance * by_chance(target.quantile, of=requests)
        for windows, ratio, target, requests in (
            (first, first_tail, targets.ttft, sum(count for _, count in first)),
            (tokens, tail, targets.tpot, max(1.0, sum(made for _, made in tokens) / each)),
        )
    )


def late_for(case: Case) -> float:
    """Return the seconds for which first tokens have been late without a break; 0 if they are not, or not measured.

    Of earlier windows only means are known, as in `budget_spent`; those of several engines count by their requests.
    """
    seen, target, reading = case.observation, case.targets.ttft, ttft_reading(case)
    if not is_late(reading, target):
        return 0.0
    windows: dict[float, list[FirstTokens]] = defaultdict(list)
    for one in seen.first_tokens:
        windows[one.time].append(one)
    tail, since = _ratio(reading, seen.ttft.mean), seen.at - seen.window
    for time, parts in sorted(windows.items(), reverse=True):
        mean = sum(one.mean * one.requests for one in parts) / sum(one.requests for one in parts)
        if mean * tail <= target.seconds or time < since:
            break
        since = min(since, time - seen.window)
    return seen.at - since


def _ratio(at_quantile: Reading, mean: Reading) -> float:
    """A latency at a quantile over its mean; 1 where either is not measured.

    Below 1 where a few requests that take far longer than the rest lift the mean above the quantile; within noise of 1
    it is 1, because the lower confidence bound of a narrow spread lies just below its mean.
    """
    ratio = over_mean(at_quantile, mean)
    return ratio if 0 < ratio < 1 - NOISE else max(1.0, ratio)


def _late_share(windows: Sequence[tuple[float, float]], *, tail: float, target: Target) -> float:
    """Return which share (0..1) of windows of (mean, weight) is over the target; 0 without any.

    Each is a log-normal whose quantile is `tail` times its mean: with z standard deviations to that quantile, the
    width w of the logarithm solves ln(tail) = z * w - w^2 / 2. It is the smaller solution where the quantile lies above
    the mean; below it only the larger one is positive. Worked: p95 at 0.5 s and a mean of 2.7 s is a width of 4.1, of
    which 2.4 % is over 2 s.
    """
    everything = sum(weight for _, weight in windows)
    if everything <= 0:
        return 0.0
    z = NormalDist().inv_cdf(target.quantile)
    aside = math.sqrt(max(0.0, z**2 - 2 * math.log(tail)))
    width = z + aside if tail < 1 else z - aside
    over = 0.0
    for mean, weight in windows:
        # Few far slower requests excuse a mean, but not a quantile that is over the target itself.
        late = tail < 1 and mean * tail > target.seconds
        over += weight * (1.0 if late else _over(target.seconds, mean=mean, width=width))
    return over / everything


def _over(seconds: float, *, mean: float, width: float) -> float:
    if width <= 0 or mean <= 0:
        return float(mean > seconds)
    return 1.0 - log_normal(mean, width).below(seconds)
