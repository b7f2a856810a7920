"""Least squares for laws of the parts of a step's time, none of which can be negative.

Separate from the fits, which share it. Pure; numpy only.
Must not: know what the parts are.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BETTER", "non_negative"]

BETTER: Final = 1e-9
"""Part of the squares by which one law must be better than another: less is rounding, and a matter of units."""

FloatArray: TypeAlias = NDArray[np.float64]


def non_negative(rows: FloatArray, right: FloatArray) -> FloatArray:
    """Return the parameters, or those of the best part of the law in which none is negative."""
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1.0
    best, least = np.zeros(len(size)), np.inf
    for columns in _parts(len(size)):
        part = np.linalg.lstsq(rows[:, columns] / size[columns], right, rcond=None)[0] / size[columns]
        error = float(np.sum((rows[:, columns] @ part - right) ** 2))
        if (part >= 0).all() and error < least - BETTER * float(right @ right):
            best, least = np.zeros(len(size)), error
            best[columns] = part
    return best


def _parts(size: int) -> Iterable[Sequence[int]]:
    """The parts of a law, the largest first. Of three, those that a step can consist of."""
    if size == 3:
        return ([0, 1, 2], [0, 2], [0, 1], [1, 2], [0])
    return (list(part) for many in range(size, 0, -1) for part in combinations(range(size), many))
