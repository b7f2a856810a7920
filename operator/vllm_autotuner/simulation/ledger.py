"""The results of all requests in columns, one row each, so that millions of them fit into memory.

Separate from the fleet, because services are evaluated from this alone. Must not: know pods beyond their number.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ended", "Fate", "Ledger", "Period"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

NO_POD: Final = -1
"""In place of a pod's number, for a request that no pod has answered."""


class Fate(IntEnum):
    """How a request ended."""

    ANSWERED = 0
    REFUSED = 1
    """The engine will never run it (HTTP 400): longer than max-model-len."""
    BROKEN = 2
    """Its pod died, and no attempt was left."""
    TIMED_OUT = 3
    """The client gave up."""
    UNAVAILABLE = 4
    """No pod was ready (HTTP 503), and no attempt was left."""
    FAILED = 5
    """The engine failed on it (HTTP 500), and no attempt was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One request that is over. Seconds and tokens; latencies are NaN where there was no answer."""

    number: int
    arrival: float
    """When the client sent it first: retries are part of its waiting."""
    ended: float
    ttft: float
    tpot: float
    """Mean seconds per output token after the first; 0 for a single one, as vLLM reports it."""
    prompt_tokens: int
    output_tokens: int
    pod: int
    attempts: int
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The requests that ended in a period of `seconds`, as columns. Failed ones have NaN as latencies."""

    seconds: float
    number: IntArray
    """Which request it is: the same in every run of the same traffic."""
    arrival: FloatArray
    ended: FloatArray
    ttft: FloatArray
    tpot: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    pod: IntArray
    fate: IntArray

    def __len__(self) -> int:
        return len(self.ended)

    def count(self, fate: Fate) -> int:
        """Return how many ended like this."""
        return int(np.count_nonzero(self.fate == fate))

    def good(self, *, ttft: float, tpot: float) -> int:
        """Return how many were answered within both limits (seconds)."""
        # NaN compares as false: what failed is not good.
        return int(np.count_nonzero((self.ttft <= ttft) & (self.tpot <= tpot)))

    def goodput(self, *, ttft: float, tpot: float) -> float:
        """Return requests per second that were answered within both limits (seconds)."""
        return self.good(ttft=ttft, tpot=tpot) / self.seconds

    def attainment(self, *, ttft: float, tpot: float) -> float | None:
        """Return the part of all that ended which was answered within both limits; None when nothing ended."""
        return self.good(ttft=ttft, tpot=tpot) / len(self) if len(self) else None


class Ledger:
    """Every request that has ended, in order of its end."""

    def __init__(self) -> None:
        self._floats = {name: array("d") for name in ("arrival", "ended", "ttft", "tpot")}
        self._whole = {
            name: array("q") for name in ("number", "prompt_tokens", "output_tokens", "pod", "attempts", "fate")
        }

    def __len__(self) -> int:
        return len(self._whole["fate"])

    def __iter__(self) -> Iterator[Ended]:
        floats, whole = self._floats, self._whole
        for index in range(len(self)):
            yield Ended(
                number=whole["number"][index],
                arrival=floats["arrival"][index],
                ended=floats["ended"][index],
                ttft=floats["ttft"][index],
                tpot=floats["tpot"][index],
                prompt_tokens=whole["prompt_tokens"][index],
                output_tokens=whole["output_tokens"][index],
                pod=whole["pod"][index],
                attempts=whole["attempts"][index],
                fate=Fate(whole["fate"][index]),
            )

    def add(self, ended: Ended) -> None:
        """Add a request that ended now, after all others."""
        for name, floats in self._floats.items():
            floats.append(getattr(ended, name))
        for name, whole in self._whole.items():
            whole.append(getattr(ended, name))

    def between(self, start: float, end: float) -> Period:
        """Return what ended after `start` and until `end` (seconds). Copies: the ledger may go on growing."""
        times = np.frombuffer(self._floats["ended"], dtype=np.float64) if len(self) else np.empty(0)
        first, last = np.searchsorted(times, (start, end), side="right")
        del times  # an array that numpy looks at cannot grow

        def floats(name: str) -> FloatArray:
            return np.array(self._floats[name][first:last], dtype=np.float64)

        def whole(name: str) -> IntArray:
            return np.array(self._whole[name][first:last], dtype=np.int64)

        return Period(
            seconds=end - start,
            number=whole("number"),
            arrival=floats("arrival"),
            ended=floats("ended"),
            ttft=floats("ttft"),
            tpot=floats("tpot"),
            prompt_tokens=whole("prompt_tokens"),
            output_tokens=whole("output_tokens"),
            pod=whole("pod"),
            fate=whole("fate"),
        )
