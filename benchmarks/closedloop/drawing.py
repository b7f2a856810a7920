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
from vllm_autotuner.simulation.configuration import EngineConfig, StartupRefused
from vllm_autotuner.simulation.lengths import Lengths, LogNormal

__all__ = ["FULL", "HOUR", "MOST_REPLICAS", "MOST_SEATS", "QUICK", "SMALLEST_BATCH", "Draw", "Modes", "Pace", "TooSlow"]

MOST_SEATS: Final = 1024
"""Upper bound of max-num-seqs that every user grants: vLLM's own default on these GPUs."""
SMALLEST_BATCH: Final = 6
"""An objective that leaves room for fewer sequences is no tuning problem but one of hardware. Our choice."""
MOST_REPLICAS: Final = 8
"""GPUs are not endless, neither here nor where services run. Our choice."""


HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """For how long, and on how many replicas a case is played. Times in seconds, drawn from ranges."""

    seconds: tuple[float, float]
    """Of a run whose load is steady in the end."""
    startup: tuple[float, float]
    """Of a start."""
    fewest: int | None
    """Replicas that the start has at least; None: always one."""
    event: tuple[float, float] = (3 * HOUR, 6 * HOUR)
    """When something happens that the scenario is about."""
    day: float = 24 * HOUR
    """Of a load that moves all day long; its shape is squeezed into this."""


FULL: Final = Pace(seconds=(24 * HOUR, 24 * HOUR), startup=(120.0, 480.0), fewest=1)
"""A day, for the real figures."""
QUICK: Final = Pace(
    seconds=(24 * HOUR, 24 * HOUR), startup=(120.0, 240.0), fewest=1, event=(0.5 * HOUR, 0.75 * HOUR), day=4 * HOUR
)
"""What happens does so early, and a moving day has four hours."""


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

    def event(self) -> float:
        """Return when it happens, on a whole quarter of a minute."""
        return round(self.between(*self.pace.event) / 15) * 15.0

    def with_flags(
        self,
        *,
        kv_cache_dtype: str | None = None,
        tensor_parallel_size: int | None = None,
        max_model_len: int | None = None,
    ) -> EngineConfig:
        """Return the engine with other flags. Raises TooSlow where it does not start with them."""
        try:
            return engine_of(
                self.hardware,
                kv_cache_dtype=kv_cache_dtype,
                tensor_parallel_size=tensor_parallel_size,
                max_model_len=max_model_len,
            )
        except StartupRefused as error:
            raise TooSlow(f"{self.name}: {self.hardware.name}: {error}") from None

    def useful_batch(self, mix: Means, *, tpot: float, engine: EngineConfig | None = None) -> float:
        """The largest batch that an engine can run inside the TPOT objective and its pool."""
        engine = engine or self.engine
        found = min(knee_batch(engine, mix, tpot=tpot), 0.9 * kv_batch(engine, mix), float(engine.max_num_seqs))
        if found < SMALLEST_BATCH:
            raise TooSlow(f"{self.name}: {self.hardware.name} cannot meet {tpot * 1000:.0f} ms per token with a batch")
        return found

    def carried(self, mix: Means, *, tpot: float, engine: EngineConfig | None = None) -> float:
        """Requests per second that one replica serves well."""
        engine = engine or self.engine
        return rate_at(engine, mix, batch=self.useful_batch(mix, tpot=tpot, engine=engine))


@dataclass(frozen=True, slots=True)
class Modes:
    """Lengths of two kinds of work on one service."""

    first: Lengths
    second: Lengths
    share: float
    """Of the second, 0..1."""

    def at(self, quantile: float) -> int:
        """See Lengths. All of the first come before all of the second: drawn evenly it is a mixture all the same."""
        edge = 1 - self.share
        if quantile < edge:
            return self.first.at(quantile / edge)
        return self.second.at((quantile - edge) / self.share)
