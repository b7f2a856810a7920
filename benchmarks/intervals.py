"""The 95 % interval of a share that was counted. Must not: know what was counted."""

import math
from typing import Final

__all__ = ["wilson_interval"]

Z: Final = 1.96
"""Standard deviations: 2.5 % of a normal distribution lie beyond on each side."""


def wilson_interval(share: float, *, of: float) -> tuple[float, float]:
    """Return both ends of the interval by Wilson's score, for a share of `of` independent ones; 0 to 1 without any."""
    if of <= 0:
        return 0.0, 1.0
    spread = Z * math.sqrt(share * (1 - share) / of + Z * Z / (4 * of * of))
    centre, scale = share + Z * Z / (2 * of), 1 + Z * Z / of
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
