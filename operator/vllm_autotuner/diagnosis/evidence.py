"""What a rule saw: numbers with their limits, so that a person can check a diagnosis and `explain` can print it."""

from dataclasses import dataclass

__all__ = ["Evidence", "Threshold", "absence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A limit, with its unit, why it stands there, and where it comes from ("our choice, unmeasured" is a source)."""

    limit: float
    unit: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact. `value` None means that it is not known, and `note` says why."""

    name: str
    value: float | None
    unit: str
    threshold: float | None = None
    window: float | None = None
    """Seconds."""
    note: str = ""


def absence(value: float | None) -> str:
    """The note of a value that this engine may not export."""
    return "not exported by this engine" if value is None else ""
