"""Which windows a fit leaves out: those that lie far further from it than the others do.

Apart from the fits, because each of them asks this, and must mean the same by it.
Must not: fit anything, or know what a residual is of.
"""

from typing import Final

__all__ = ["outlying"]

LEAST: Final = 0.1
"""Relative residual up to which no window is an outlier, however well the others fit. Our choice: the size of noise."""
TIMES: Final = 3.0
"""Times the typical residual from which a window is one. Our choice."""


def outlying(typical: float) -> float:
    """Return the relative residual above which a window is an outlier, where `typical` is that of the others."""
    return max(LEAST, TIMES * typical)
