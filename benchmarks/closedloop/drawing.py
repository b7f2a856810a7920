"""A seeded source of figures for a scenario, with the engine that they are placed against.

Apart from `scenarios`, which says what is drawn from which range. Must not: know a scenario.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.closedloop.capacity import Means, engine_of, knee_batch, kv_batch, rate_at
from benchmarks.closedloop.scenario import Hardware
from vllm_autotuner.simulation.lengths import LogNormal

__all__ = ["FULL", "MOST_REPLICAS", "MOST_SEATS", "QUICK", "Draw", "Pace", "TooSlow"]

MOST_SEATS: Final = 1024
"""Upper bound of max-num-seqs that every user grants: vLLM's own default on these GPUs."""
SMALLEST_BATCH: Final = 6
"""An objective that leaves room for fewer sequences is no tuning problem but one of hardware. Our choice."""
MOST_REPLICAS: Final = 8
"""GPUs are not endless, neither here nor where services run. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """For how long, and on how many replicas a case is played."""

    seconds: tuple[float, float]
    """Of a run, drawn from this range."""
    startup: tuple[float, float]
    """Seconds of a start, drawn from this range."""
    fewest: int | None
    """Replicas that the start has at least; None: always one."""


FULL: Final = Pace(seconds=(7200.0, 10_800.0), startup=(60.0, 240.0), fewest=1)
"""Hours, for the real figures."""
QUICK: Final = Pace(seconds=(1800.0, 2100.0), startup=(60.0, 90.0), fewest=None)
"""One or two changes happen."""


class TooSlow(ValueError):
    """The drawn engine cannot meet the objective of the case."""


class Draw:
    """A seeded source of figures, with the engine that they are placed against."""

    def __init__(self, name: str, *, seed: int, hardware: Sequence[Hardware], pace: Pace) -> None:
        digest = hashlib.sha256(f"{name}/{seed}".encode()).digest()
        self.source = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        self.name, self.seed, self.pace = name, seed, pace
        self.hardware = hardware[int(self.source.integers(len(hardware)))]
        self.engine = engine_of(self.hardware)
        self.duration = round(self.between(*pace.seconds) / 60) * 60.0

    def between(self, low: float, high: float) -> float:
        """Return a number from the range, evenly."""
        return float(self.source.uniform(low, high))

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from the range, ends included."""
        return int(self.source.integers(low, high + 1))

    def few(self, most: int) -> int:
        """Return the replicas of the start, up to `most`; one where it must be quick."""
        drawn = self.whole(1, most)
        return 1 if self.pace.fewest is None else self.pace.fewest - 1 + drawn

    def maybe(self) -> bool:
        """Return a coin's side."""
        return bool(self.source.integers(2))

    def lengths(self, low: float, high: float, *, tail: tuple[float, float]) -> LogNormal:
        """Return lengths with the median in the range and the 95th percentile `tail` times as long.

        Half of what the model takes is the longest.
        """
        p50 = self.between(low, high)
        return LogNormal(p50=p50, p95=p50 * self.between(*tail), longest=self.hardware.max_model_len // 2 - 1)

    def useful_batch(self, mix: Means, *, tpot: float) -> float:
        """The largest batch that an engine can run inside the TPOT objective and its pool."""
        found = min(knee_batch(self.engine, mix, tpot=tpot), 0.9 * kv_batch(self.engine, mix), float(MOST_SEATS))
        if found < SMALLEST_BATCH:
            raise TooSlow(f"{self.name}: {self.hardware.name} cannot meet {tpot * 1000:.0f} ms per token with a batch")
        return found

    def carried(self, mix: Means, *, tpot: float) -> float:
        """Requests per second that one replica serves well."""
        return rate_at(self.engine, mix, batch=self.useful_batch(mix, tpot=tpot))
