"""By how much two figures must differ before they count as different: one size for every layer that compares any.

Here, at the bottom, because the diagnosis, the plan, the scaling and the verdict all ask it.
"""

from typing import Final

__all__ = ["DEVIATIONS", "NOISE"]

NOISE: Final = 0.1
"""Differences below 10 % are noise, predicted or measured (G08). Design, planning.md."""

DEVIATIONS: Final = 2.0
"""Times the square root of a count of requests by which another one must differ: by less they differ by chance, where
arrivals are independent (Poisson). The usual choice: 19 of 20."""
