"""By how much two figures must differ before they count as different: one size for every layer that compares any.

Here, at the bottom, because the diagnosis, the plan, the scaling and the verdict all ask it.
"""

from typing import Final

__all__ = ["NOISE"]

NOISE: Final = 0.1
"""Differences below 10 % are noise, predicted or measured (G08). Design, planning.md."""
