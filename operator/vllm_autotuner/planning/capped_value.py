"""A wanted number, cut down by a list of limits that remembers which one bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.observation.noise import NOISE

__all__ = ["HEADROOM", "LARGEST_STEP", "Limit", "Limited", "limited"]

LARGEST_STEP: Final = 2
"""At most this factor in one step, up or down (G10): a wrong model costs one halving or doubling, and demand rarely
rises more than 1.5 x in 10 minutes. Design, planning.md; research, measured facts 3."""
HEADROOM: Final = NOISE
"""Share of the TPOT objective that a proposal leaves unused: a batch that meets it exactly misses it every other
minute. Our choice: the size of the noise that a verdict ignores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A range with a name. None: open on that side."""

    name: str
    low: int | None = None
    high: int | None = None

    def apply(self, value: int) -> int:
        """Move `value` into the range; the upper end wins when the range is empty (fewer is safer)."""
        raised = value if self.low is None else max(value, self.low)
        return raised if self.high is None else min(raised, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """The number after all limits; `limited_by` names the last that moved it, None when none did."""

    wanted: int
    value: int
    limited_by: str | None


def limited(wanted: int, *, limits: Sequence[Limit]) -> Limited:
    """Apply the limits in order. The bounds of the user come last: nothing leaves without them."""
    value, limited_by = wanted, None
    for limit in limits:
        if (bounded := limit.apply(value)) != value:
            value, limited_by = bounded, limit.name
    return Limited(wanted=wanted, value=value, limited_by=limited_by)
