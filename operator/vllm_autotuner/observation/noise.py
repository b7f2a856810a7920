"""The relative difference below which two figures count as equal.

In the lowest layer, because the diagnosis, planning, scaling and the verdict all use it.
"""

from typing import Final

__all__ = ["DEVIATIONS", "NOISE"]

NOISE: Final = 0.1
"""Differences below 10 % are noise, predicted or measured (G08). Design, planning.md."""

DEVIATIONS: Final = 2.0
"""Times the square root of a count of requests by which another one must differ: by less they differ by chance, where
arrivals are independent (Poisson). Of a fitted slope, its standard errors. The usual choice: 19 of 20."""
