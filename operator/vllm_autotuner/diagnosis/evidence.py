"""Evidence and thresholds: the numbers behind a diagnosis with their limits, as `explain` prints them."""

from dataclasses import dataclass

__all__ = ["Evidence", "Threshold", "absence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A limit with its unit, the reason for it and its source ("our choice, unmeasured" is a source)."""

    limit: float
    unit: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured fact. If `value` is None, it is not known and `note` says why."""

    name: str
    value: float | None
    unit: str
    threshold: float | None = None
    window: float | None = None
    """Seconds."""
    note: str = ""


def absence(value: float | None) -> str:
    """Return the note for a value that this engine version may not export."""
    return "not exported by this engine" if value is None else ""
