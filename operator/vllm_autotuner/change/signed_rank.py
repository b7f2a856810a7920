"""A centre and its confidence interval from few numbers of any distribution (Wilcoxon, Hodges-Lehmann).

Pure statistics: no latencies, targets or windows. Chosen over a mean with a t interval and over a bootstrap: each
bound is one of the pairwise means, so it never falls when a number rises (a better candidate is never judged worse),
one outlier moves it little, it needs no random numbers, and with five numbers its level is still exact.
Assumes independent numbers, symmetric around their centre; `benchmarks/verdict.py` measures the effect of correlated
windows on the level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Interval", "interval", "tail_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A centre with its bounds; unbounded if there are too few numbers for the requested level."""

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
    """Return the largest rank sum with at most probability `level` by chance; None if even 0 is more likely."""
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
