"""Distributions of prompt and output lengths: each turns one uniform random number into a number of tokens.

Each is the inverse of its distribution function. One draw a length, always, so that another distribution changes
lengths and nothing else: request 17 stays the long one, its neighbours and all arrivals stay what they were.
Must not: draw by itself.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

__all__ = ["Empirical", "Fixed", "Lengths", "LogNormal", "Uniform"]

LONGEST = 10_000_000
"""Tokens. Above every context window there is; a heavy tail stops here instead of overflowing."""
_NORMAL = NormalDist()
_P95 = _NORMAL.inv_cdf(0.95)


class Lengths(Protocol):
    """A distribution of tokens."""

    def at(self, quantile: float) -> int:
        """Return the length at a quantile, 0 <= quantile < 1; at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same. Raises ValueError below 1 token."""

    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= LONGEST:
            raise ValueError(f"a length must be 1 to {LONGEST:,} tokens")

    def at(self, quantile: float) -> int:
        """See Lengths."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high` is as likely. Raises ValueError when there is none."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= LONGEST:
            raise ValueError(f"lengths must be 1 to {LONGEST:,} tokens, the smaller one first")

    def at(self, quantile: float) -> int:
        """See Lengths."""
        return self.low + int(quantile * (self.high - self.low + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """What measured prompts and outputs look like: many short, few very long. By median and 95th percentile."""

    p50: float
    p95: float
    longest: int = LONGEST
    """Longer ones are cut to this."""

    def __post_init__(self) -> None:
        if not (1 <= self.p50 <= self.p95 <= LONGEST and 1 <= self.longest <= LONGEST):
            raise ValueError(f"1 <= p50 <= p95 <= {LONGEST:,} tokens is required, and a longest length of at least 1")

    def at(self, quantile: float) -> int:
        """See Lengths."""
        if quantile <= 0:
            return 1
        sigma = math.log(self.p95 / self.p50) / _P95
        return max(1, min(self.longest, round(self.p50 * math.exp(sigma * _NORMAL.inv_cdf(quantile)))))


@dataclass(frozen=True, slots=True)
class Empirical:
    """The lengths of a trace, each as likely as often it occurs. Raises ValueError without any."""

    lengths: Iterable[int] = field(repr=False)
    _ascending: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ascending = tuple(sorted(self.lengths))
        if not ascending or ascending[0] < 1:
            raise ValueError("an empirical distribution needs lengths of 1 token or more")
        object.__setattr__(self, "_ascending", ascending)
        object.__setattr__(self, "lengths", ascending)

    def at(self, quantile: float) -> int:
        """See Lengths."""
        return self._ascending[int(quantile * len(self._ascending))]
