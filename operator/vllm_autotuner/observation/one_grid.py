"""Adds up what engines counted in windows that differ in length and end at other moments.

Each engine's window goes by how often it is scraped, and a subquery evaluates at multiples of its step: points of two
windows rarely have a moment in common, and added by their moments they would be the load of some of the engines.
Pure. Must not: fill a window in which nothing was counted.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["on_one_grid"]


def on_one_grid(points: Iterable[tuple[float, float, float | None]], *, window: float) -> dict[float, float]:
    """Return the sums in windows of `window` seconds by their ends, oldest first.

    `points`: (end in Unix seconds, amount, seconds of its window or None for `window`). The grid is that of the engines
    with this window. What was counted in another one lies evenly in it, and is shared out by how much they overlap.
    Worked: 60 s, points (60, 6), (120, 6) beside (120, 12, in 120 s): 12 at 60 and 12 at 120.
    """
    known = [(end, amount, own or window) for end, amount, own in points]
    newest = max((end for end, _, own in known if own == window), default=max((end for end, *_ in known), default=0.0))
    sums: dict[float, float] = defaultdict(float)
    for end, amount, own in known:
        nearest, farthest = math.floor((newest - end) / window), math.ceil((newest - end + own) / window)
        # What ends after the grid does is the beginning of a window that the other engines have not ended yet.
        for back in range(max(0, nearest), farthest):
            edge = newest - back * window
            overlap = min(end, edge) - max(end - own, edge - window)
            if overlap > 0:
                sums[edge] += amount * (overlap / own)
    return dict(sorted(sums.items()))
