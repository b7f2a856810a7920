"""The outliers that a fit leaves out: windows far further from the fit than the others.

Separate from the fits, which share this definition.
Must not: fit anything, or depend on the meaning of a residual.
"""

from typing import Final

from vllm_autotuner.observation.noise import NOISE

__all__ = ["outlying"]

TIMES: Final = 3.0
"""Times the typical residual from which a window is one. Our choice."""


def outlying(typical: float) -> float:
    """Return the relative residual above which a window is an outlier, where `typical` is that of the others.

    What is noise is none, however well the others fit.
    """
    return max(NOISE, TIMES * typical)
