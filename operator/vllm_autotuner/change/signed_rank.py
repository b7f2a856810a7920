"""A centre and its confidence interval from few numbers, however they are spread (Wilcoxon, Hodges-Lehmann).

Apart from the verdict, because it knows numbers only. Chosen over a mean with a t interval and over a bootstrap: each
bound is one of the pairwise means, so it never falls when a number rises (a better candidate is never judged worse),
one wild window moves it little, it needs no random numbers, and with five numbers its level is still exact.
Must not: know latencies, targets or windows. Assumes numbers that are independent and spread evenly around their
centre; what windows that resemble their neighbours make of the level is measured by `benchmarks/verdict.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Interval", "interval", "tail_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A centre and where it may lie. Unbounded where there are too few numbers for the level asked for."""

    low: float
    estimate: float
    high: float


def interval(values: Sequence[float], *, level: float) -> Interval:
    """Return the Hodges-Lehmann centre of finite `values`; each bound is missed with probability `level` at most.

    Raises ValueError without values. Worked: five numbers at level 1/32 are bounded by their smallest and largest.
    """
    if not values:
        raise ValueError("an interval needs numbers")
    means = sorted((one + other) / 2 for index, one in enumerate(values) for other in values[index:])
    middle = len(means) // 2
    estimate = means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
    cut = tail_ranks(len(values), level=level)
    if cut is None:
        return Interval(low=-math.inf, estimate=estimate, high=math.inf)
    return Interval(low=means[cut], estimate=estimate, high=means[-1 - cut])


@lru_cache
def tail_ranks(count: int, *, level: float) -> int | None:
    """Return the largest rank sum that chance stays at or below with probability `level`; None when 0 is too likely."""
    ways = _ways(count)
    within, rank = level * 2**count, -1
    reached = 0
    while rank + 1 < len(ways) // 2 and reached + ways[rank + 1] <= within:
        rank += 1
        reached += ways[rank]
    return None if rank < 0 else rank


@lru_cache
def _ways(count: int) -> tuple[int, ...]:
    """How many of the 2**count sign patterns give each rank sum."""
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    return tuple(ways)
