"""Finds the batch size at which an engine carries a load, from its measured curve.

Shared by the checks for scale-in and for a rising load.
Pure. Must not: extrapolate beyond the range for which the curve's margin was measured.
"""

import itertools
from collections.abc import Callable
from typing import Final

from vllm_autotuner.performance.batch_curve import BatchCurve
from vllm_autotuner.planning.capped_value import LARGEST_STEP

__all__ = ["batch_for"]

FARTHEST: Final = LARGEST_STEP**2
"""Multiple of the largest observed batch up to which the curve is used: with half the engines each needs more than
twice the batch. The curve's margin is measured for one doubling; using it for the second is our choice."""
PRECISION: Final = 1e-3
"""Relative to the largest observed batch: far below the noise of the measurements."""


def batch_for(tokens_per_second: float, curve: BatchCurve, *, itl: Callable[[float], float]) -> float | None:
    """The smallest batch at which one engine yields that many tokens; None if none is within the curve's range.

    `itl`: of the curve, the upper bound (`at_most`) or the prediction (`predict`).

    By the upper bound a larger batch may yield fewer tokens where the curve misses its own last point. So each stretch
    is checked in turn, over the measured points and from there in doublings, and the first that suffices is used.
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
