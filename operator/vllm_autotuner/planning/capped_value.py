"""Applies a list of limits to a value and records which limit was binding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.spec import IntBounds

__all__ = ["LARGEST_STEP", "STEP_LIMIT", "Limit", "Limited", "limited", "user_limits"]

LARGEST_STEP: Final = 2
"""Largest factor in one step, up or down, where no model of the service covers more (G10): a wrong guess costs at most
one halving or doubling, and demand rarely grows more than 1.5 times in 10 minutes. Design choice."""
STEP_LIMIT: Final = f"step limit (x{LARGEST_STEP})"


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
    """The value after all limits; `limited_by` names the last one that changed it, None if none did."""

    value: int
    limited_by: str | None


def limited(wanted: int, *, limits: Sequence[Limit]) -> Limited:
    """Apply the limits in order. The user's bounds come last, so that they always hold."""
    value, limited_by = wanted, None
    for limit in limits:
        if (bounded := limit.apply(value)) != value:
            value, limited_by = bounded, limit.name
    return Limited(value=value, limited_by=limited_by)


def user_limits(field: str, bounds: IntBounds | None) -> tuple[Limit, ...]:
    """Return the bounds of a field of spec.tuning as limits; none where the spec sets none."""
    if bounds is None:
        return ()
    return (
        Limit(name=f"spec.tuning.{field}.min", low=bounds.min),
        Limit(name=f"spec.tuning.{field}.max", high=bounds.max),
    )
