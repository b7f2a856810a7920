"""The difference between two groups of numbers with bounds, for any distribution (Mann-Whitney, Hodges-Lehmann).

For numbers without pairs; `signed_rank` needs pairs. As there, each bound is one of the differences, so it is monotone
in the numbers. Pure statistics: no latencies, no windows. Assumes independent numbers and groups of equal spread.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import comb
from statistics import median

from vllm_autotuner.change.signed_rank import Interval

__all__ = ["difference"]


def difference(ours: Sequence[float], theirs: Sequence[float], *, level: float) -> Interval:
    """Return the centre of all differences ours - theirs; each bound is missed with probability `level` at most.

    With too few numbers for that level, the bounds are the smallest and largest difference: with one number against n,
    each is missed with probability 1 / (n + 1). Raises ValueError for an empty group.
    """
    if not ours or not theirs:
        raise ValueError("a difference needs numbers on both sides")
    apart = sorted(one - other for one in ours for other in theirs)
    cut = _tail(len(ours), len(theirs), level=level)
    return Interval(low=apart[cut], estimate=median(apart), high=apart[-1 - cut])


@lru_cache
def _tail(ours: int, theirs: int, *, level: float) -> int:
    """The largest count of differences below zero that has at most probability `level` by chance; at least 0."""
    ways = _ways(ours, theirs)
    within, reached, cut = level * comb(ours + theirs, ours), ways[0], 0
    while cut + 1 < len(ways) // 2 and reached + ways[cut + 1] <= within:
        cut += 1
        reached += ways[cut]
    return cut


@lru_cache
def _ways(ours: int, theirs: int) -> tuple[int, ...]:
    """For each number of inverted pairs, how many orderings of both groups have it."""
    if ours == 0 or theirs == 0:
        return (1,)
    # The largest number is one of ours (then it is above all of theirs) or one of theirs.
    with_ours, with_theirs = _ways(ours - 1, theirs), _ways(ours, theirs - 1)
    ways = [0] * (ours * theirs + 1)
    for count, number in enumerate(with_ours):
        ways[count + theirs] += number
    for count, number in enumerate(with_theirs):
        ways[count] += number
    return tuple(ways)
