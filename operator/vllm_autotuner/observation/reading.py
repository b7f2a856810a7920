"""A measured value that may be missing, with the reason. Missing is never zero and never a verdict.

Must not: offer a default. The caller decides what happens without a value.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

__all__ = ["Absence", "Measured", "NoData", "Reading", "number"]


class Absence(StrEnum):
    """The kinds of missing; they differ in what a person can do about them."""

    NOT_EXPORTED = "NotExported"
    """No such series: this engine version lacks it, or nothing is scraped. Remedy: `diagnose` lists what is missing."""
    NO_TRAFFIC = "NoTraffic"
    """The series stands still: 0/0. Not an error; there is nothing to measure."""
    STALE = "Stale"
    """The last sample is older than three scrape intervals. Remedy: look at the scrape target."""
    PROVIDER_ERROR = "ProviderError"
    """The metrics source gave no usable answer. Remedy: the message names it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A fresh value; seconds, tokens, requests, or a ratio 0..1."""

    value: float


@dataclass(frozen=True, slots=True)
class NoData:
    """There is no value, and this is why. Never zero."""

    absence: Absence
    why: str


Reading: TypeAlias = Measured | NoData


def number(reading: Reading) -> float | None:
    """Return the value, or None when there is none: for displays and statuses, where absent is an answer."""
    return reading.value if isinstance(reading, Measured) else None
