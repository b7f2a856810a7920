"""Requests of a run, drawn once and handed to every policy: arrivals by a rate over time, lengths by a log-normal.

Must not: know engines. The same generator state gives the same requests to the byte.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.closedloop.scenario import Traffic

__all__ = ["Lengths", "Stretch", "draw_traffic"]

GRID = 5.0
"""Seconds over which the rate is taken as constant when arrivals are placed. Far below every wave and step drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens: a log-normal around a median, cut to what the model takes."""

    median: float
    sigma: float
    """Standard deviation of the logarithm. Chat traces show 0.7 to 1.1; 0 gives one fixed length."""
    longest: int

    @property
    def mean(self) -> float:
        """Of the log-normal, before the cut."""
        return float(self.median * np.exp(self.sigma**2 / 2))

    def draw(self, count: int, *, source: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return `count` lengths."""
        drawn = self.median * np.exp(self.sigma * source.standard_normal(count))
        return np.clip(np.rint(drawn), 1, self.longest).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A length mix from `start` (seconds) on."""

    start: float
    prompt: Lengths
    output: Lengths


def draw_traffic(
    rate: Callable[[float], float],
    *,
    variation: float,
    stretches: Sequence[Stretch],
    duration: float,
    source: np.random.Generator,
) -> Traffic:
    """Draw all requests.

    `rate`: requests per second at a time. `variation`: coefficient of variation of the gaps, 1 is Poisson; higher
    values are bursts. Gaps of one request a second are drawn first and then stretched by the rate.
    """
    grid = np.arange(0.0, duration + GRID, GRID)
    expected = np.concatenate([[0.0], np.cumsum([rate(float(at)) * GRID for at in grid[:-1]])])
    shape = 1 / variation**2
    gaps = source.gamma(shape, 1 / shape, size=int(expected[-1] + 10 * (variation + 1) * np.sqrt(expected[-1]) + 50))
    marks = np.cumsum(gaps)
    arrivals = np.interp(marks[marks < expected[-1]], expected, grid)
    arrivals = arrivals[arrivals < duration]
    mix = np.searchsorted([stretch.start for stretch in stretches], arrivals, side="right") - 1
    prompt, output = np.zeros(len(arrivals), dtype=np.int64), np.zeros(len(arrivals), dtype=np.int64)
    for index, stretch in enumerate(stretches):
        chosen = mix == index
        prompt[chosen] = stretch.prompt.draw(int(chosen.sum()), source=source)
        output[chosen] = stretch.output.draw(int(chosen.sum()), source=source)
    return Traffic(arrivals, prompt, output)
