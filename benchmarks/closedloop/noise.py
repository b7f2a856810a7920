"""What differs from pod to pod and from scrape to scrape though nobody changed anything, drawn by seed.

Every draw belongs to the seed and to the number of the pod, so that all policies of a case meet the same pods in the
same order. Must not: know a scenario, or be told to a policy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.simulation.arrivals import random_stream

__all__ = ["QUIET", "Noise", "drawn_noise"]

POD_SPREAD: Final = (0.01, 0.03)
"""Standard deviation of a pod's step times around the law: 1 to 3 % between equal GPUs (clocks, temperature)."""
STARTUP_SPREAD: Final = (0.05, 0.25)
"""Standard deviation of the logarithm of a pod's start-up: images and weights that are near, or are not. Our choice."""
LOST: Final = (0.01, 0.04)
"""Part of the scrapes that time out: a few in a hundred."""
LATE: Final = (0.0, 0.05)
"""Seconds by which a scrape may be late: a Prometheus with time to spare evens out 2 ms, a throttled one is later."""
INTERVALS: Final = (15, 30)
"""Seconds between scrapes: Prometheus' most common settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much differs in one case."""

    seed: int = 0
    pod_spread: float = 0.0
    startup_spread: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    """Seconds by which a scrape is late at most."""
    interval: int = 15
    """Seconds between the scrapes of one pod."""
    phases: bool = False
    """Whether each pod is scraped at its own moment of the interval; else all just before a decision."""

    def speed(self, pod: int) -> float:
        """Return the factor on the step times of a pod; 1 without noise."""
        deviation = random_stream(self.seed, "speed", pod).gauss(0.0, 1.0)
        return 1.0 + self.pod_spread * max(-2.0, min(2.0, deviation))

    def startup(self, pod: int) -> float:
        """Return the factor on the start-up of a pod; 1 without noise."""
        deviation = random_stream(self.seed, "startup", pod).gauss(0.0, 1.0)
        return math.exp(self.startup_spread * max(-2.0, min(2.0, deviation)))

    def scrapes(self, pod: int, *, after: float, until: float) -> Iterator[float]:
        """Yield when a pod is scraped in (after, until], without the scrapes that are lost."""
        phase = random_stream(self.seed, "phase", pod).uniform(0.0, self.interval) if self.phases else 0.0
        # One that was due before and is late may fall into this time.
        number = math.floor((after - self.late - phase) / self.interval) + 1
        while (due := phase + number * self.interval) <= until:
            at = due + (random_stream(self.seed, "late", pod, number).uniform(0.0, self.late) if self.late else 0.0)
            kept = not self.lost or random_stream(self.seed, "scrape", pod, number).random() >= self.lost
            if kept and after < at <= until:
                yield at
            number += 1


QUIET: Final = Noise()
"""Every pod alike, every scrape in time."""


def drawn_noise(seed: int, *, name: str) -> Noise:
    """Draw the noise of one case."""
    draws = random_stream(seed, "noise", name)
    return Noise(
        seed=draws.getrandbits(32),
        pod_spread=draws.uniform(*POD_SPREAD),
        startup_spread=draws.uniform(*STARTUP_SPREAD),
        lost=draws.uniform(*LOST),
        interval=draws.choice(INTERVALS),
        phases=True,
        late=draws.uniform(*LATE),
    )
