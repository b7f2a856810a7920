"""Arrival times of requests: a rate that changes over time, and the burstiness of the arrivals.

Separate from the content of requests (`lengths`, `traffic`), so that two policies always see the same arrivals.
A renewal process with mean 1 runs on the time of "expected requests so far" and is carried back to seconds through the
rate curve. So one spread serves every curve, no candidate is thrown away, and a rate changes nothing about the draws.
Must not: read a clock, or share its random numbers with anything else.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

__all__ = ["RateCurve", "arrival_times", "random_stream"]

DAY = 86_400.0
"""Seconds."""
DAY_KNOTS = 96
"""Straight pieces of a day: quarters of an hour follow a sine to 0.06 % of its swing."""


def random_stream(seed: int, *names: str | int) -> random.Random:
    """Return the random numbers that belong to this seed and name: the same in every process, apart from all others."""
    return random.Random(":".join(map(str, (seed, *names))))  # noqa: S311 - repeatable, not secret


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Requests per second over time: straight lines between knots of (seconds, rate), from second 0 on.

    Two knots at one time are a jump. After the last knot its rate stays, or with `period` (seconds) all begins again.
    Raises ValueError for what is no such curve.
    """

    knots: tuple[tuple[float, float], ...]
    period: float | None = None
    _expected: tuple[float, ...] = field(init=False, repr=False)
    """Requests expected from second 0 to each knot."""

    def __post_init__(self) -> None:
        if not self.knots or self.knots[0][0] != 0:
            raise ValueError("a rate curve must begin at second 0")
        if not all(math.isfinite(rate) and rate >= 0 for _, rate in self.knots):
            raise ValueError("a rate must be a finite number of requests per second, 0 or more")
        if any(not later >= earlier or math.isinf(later) for (earlier, _), (later, _) in pairwise(self.knots)):
            raise ValueError("the times of a rate curve must not decrease")
        if self.period is not None and not (math.isfinite(self.period) and self.period >= self.knots[-1][0]):
            raise ValueError("a period must not end before the last knot")
        if self.period == 0:
            raise ValueError("a period must be longer than 0 s")
        areas = ((later - earlier) * (low + high) / 2 for (earlier, low), (later, high) in pairwise(self._lines()))
        object.__setattr__(self, "_expected", tuple(accumulate(areas, initial=0.0)))

    def _lines(self) -> tuple[tuple[float, float], ...]:
        """The knots, and where the curve repeats also the end of its period."""
        if self.period is None or self.knots[-1][0] == self.period:
            return self.knots
        return (*self.knots, (self.period, self.knots[-1][1]))

    @classmethod
    def constant(cls, rate: float) -> "RateCurve":
        """The same rate at all times."""
        return cls(((0.0, rate),))

    @classmethod
    def steps(cls, levels: Sequence[tuple[float, float]], *, period: float | None = None) -> "RateCurve":
        """Jumps: each (seconds, rate) holds until the next one."""
        knots = [levels[0]]
        for (_, before), (at, rate) in pairwise(levels):
            knots += [(at, before), (at, rate)]
        return cls(tuple(knots), period)

    @classmethod
    def diurnal(
        cls, mean: float, *, peak_to_trough: float, period: float = DAY, peak_at: float = DAY / 2
    ) -> "RateCurve":
        """Day and night as a sine around `mean`; it repeats. Measured days: peaks of 2 to 5 times the trough."""
        if not (math.isfinite(peak_to_trough) and peak_to_trough >= 1):
            raise ValueError("peak_to_trough must be 1 or more")
        swing = (peak_to_trough - 1) / (peak_to_trough + 1)
        times = [period * index / DAY_KNOTS for index in range(DAY_KNOTS + 1)]
        rates = [mean * (1 + swing * math.cos(2 * math.pi * (at - peak_at) / period)) for at in times]
        return cls(tuple(zip(times, rates, strict=True)), period)

    def scaled(self, factor: float) -> "RateCurve":
        """The same curve with every rate multiplied."""
        return RateCurve(tuple((at, rate * factor) for at, rate in self.knots), self.period)

    def rate(self, at: float) -> float:
        """Return requests per second at a time; at a jump the rate after it."""
        lines = self._lines()
        if self.period is not None:
            at %= self.period
        index = bisect_right(lines, at, key=lambda knot: knot[0]) - 1
        if index + 1 >= len(lines):
            return lines[-1][1]
        (start, low), (end, high) = lines[index], lines[index + 1]
        return low + (high - low) * (at - start) / (end - start)

    def time_of(self, expected: float) -> float:
        """Return when this many requests are expected to have come; infinite when they never will."""
        lines, before = self._lines(), 0.0
        if self.period is not None:
            whole = self._expected[-1]
            if whole <= 0:
                return math.inf
            rounds = math.floor(expected / whole)
            before, expected = rounds * self.period, expected - rounds * whole
        index = bisect_right(self._expected, expected) - 1
        (start, low), rest = lines[index], expected - self._expected[index]
        if index + 1 >= len(lines):
            # At the end of a period the sum of the pieces may miss the whole by rounding.
            return before + start + (rest / low if low > 0 else 0.0 if rest <= 0 else math.inf)
        end, high = lines[index + 1]
        # rest = low * x + slope / 2 * x**2, solved without subtracting what is nearly equal.
        slope = (high - low) / (end - start)
        root = math.sqrt(max(0.0, low * low + 2 * slope * rest))
        return before + min(end, start + (2 * rest / (low + root) if rest > 0 else 0.0))


def arrival_times(curve: RateCurve, *, burstiness: float = 1.0, draws: random.Random) -> Iterator[float]:
    """Yield ascending arrival times in seconds for ever, or until the curve expects no more.

    `burstiness`: coefficient of variation of the gaps at a constant rate. 0 is a metronome, 1 Poisson (measured chat:
    1.09), above 1 requests come in bursts (gamma). Raises ValueError for a negative one.
    """
    if not (math.isfinite(burstiness) and burstiness >= 0):
        raise ValueError("burstiness must be 0 or more (0 even, 1 Poisson, above 1 bursts)")
    return _arrival_times(curve, _gaps(burstiness, draws))


def _arrival_times(curve: RateCurve, gaps: Iterable[float]) -> Iterator[float]:
    for expected in accumulate(gaps):
        at = curve.time_of(expected)
        if math.isinf(at):
            return
        yield at


def _gaps(burstiness: float, draws: random.Random) -> Iterator[float]:
    """Gaps with mean 1."""
    if burstiness == 0:
        while True:
            yield 1.0
    shape = burstiness**-2
    while True:
        yield draws.gammavariate(shape, 1 / shape)
