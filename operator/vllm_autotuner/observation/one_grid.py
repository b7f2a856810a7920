"""Adds up what engines counted in windows that differ in length and end at other moments.

Each engine's window goes by how often it is scraped, and a subquery evaluates at multiples of its step: points of two
windows rarely have a moment in common, and added by their moments they would be the load of some of the engines.
Pure. Must not: fill a window in which nothing was counted.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

__all__ = ["on_one_grid"]


def on_one_grid(points: Sequence[tuple[float, float, float | None]], *, window: float) -> dict[float, float]:
    """Return the sums in windows of `window` seconds by their ends, oldest first.

    `points`: (end in Unix seconds, amount, seconds of its window or None for `window`). The grid is that of the engines
    with this window. What was counted in another one lies evenly in it, and is shared out by how much they overlap.
    Only windows that have ended are told, and of different windows none in which the shorter ones were not yet there.
    Worked: 60 s, points (60, 6), (120, 6) beside (120, 12, in 120 s): 12 at 60 and 12 at 120.
    """
    sums: dict[float, float] = defaultdict(float)
    # Each decision asks. Alike windows end together: a subquery is asked at multiples of its step.
    for end, amount, own in points:
        if own and own != window:
            break
        sums[end] += amount
    else:
        return dict(sorted(sums.items()))
    known = [(end, amount, own or window) for end, amount, own in points]
    sums.clear()
    last = max(end for end, *_ in known)
    newest = max((end for end, _, own in known if own == window), default=last)
    # An engine in which nothing runs has no points: the others go on.
    newest += window * math.floor((last - newest) / window)
    begins: dict[float, float] = {}
    for end, _, own in known:
        begins[own] = min(end - own, begins.get(own, math.inf))
    # Those of a pod that came later begin within what is looked back on, and not about its beginning.
    first = max(begin for begin in begins.values() if begin < min(begins.values()) + window)
    for end, amount, own in known:
        nearest, farthest = math.floor((newest - end) / window), math.ceil((newest - end + own) / window)
        for back in range(max(0, nearest), farthest):
            edge = newest - back * window
            overlap = min(end, edge) - max(end - own, edge - window)
            # At Unix times, close is within two seconds.
            if overlap > 0 and (edge - window > first or math.isclose(edge - window, first)):
                sums[edge] += amount * (overlap / own)
    return dict(sorted(sums.items()))
