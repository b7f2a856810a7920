"""At which batch an engine carries a load, by what was measured of it.

Apart from who asks: whether fewer replicas do, and whether those that there are will.
Pure. Must not: answer beyond what the curve's margin was measured for.
"""

import itertools
from collections.abc import Callable
from typing import Final

from vllm_autotuner.performance.batch_curve import BatchCurve
from vllm_autotuner.planning.capped_value import LARGEST_STEP

__all__ = ["batch_for"]

FARTHEST: Final = LARGEST_STEP**2
"""Times the largest batch seen up to which the curve is asked: half the engines need more than twice the batch each.
The curve's margin is measured for one doubling; our choice to carry it on to the second."""
PRECISION: Final = 1e-3
"""Of the largest batch seen: far below the noise of what was measured."""


def batch_for(tokens_per_second: float, curve: BatchCurve, *, itl: Callable[[float], float]) -> float | None:
    """The smallest batch at which one engine makes that many tokens; None when none is near enough to know.

    `itl`: of the curve, what is sure (`at_most`) or what is likely (`predict`).

    Larger batches do not surely make more: where the curve misses its own last point, what is sure beyond it falls. So
    each stretch is asked in turn, up to what was measured and from there in doublings: the first whose end does it.
    """
    doublings = itertools.takewhile(lambda beyond: beyond <= FARTHEST, (1 << n for n in itertools.count(1)))
    low = 0.0
    for high in (*curve.batches, *(curve.high * beyond for beyond in doublings)):
        if high >= tokens_per_second * itl(high):
            break
        low = high
    else:
        return None
    while high - low > PRECISION * curve.high:
        middle = (low + high) / 2
        if middle < tokens_per_second * itl(middle):
            low = middle
        else:
            high = middle
    return high
