"""Values that are secretly bad: what an engine does with each, drawn by seed. Only the engines know.

Every (knob, value) of a service is bad with the scenario's probability, whatever else is set; what the user had written
himself never is. Must not: be read by a policy, or by anything that decides.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from benchmarks.closedloop.scenario import Scenario
from vllm_autotuner.change.verification import knobs_in
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.configuration import CoreRefused
from vllm_autotuner.simulation.faults import Faults

__all__ = ["Candidates", "Flaw", "Way"]


class Way(StrEnum):
    """In which way a value is bad. Each is as likely; figures are our choice, around what a verdict must notice."""

    SLOWER = "slower"
    """Tokens take 20 to 200 % longer."""
    DOES_NOT_START = "does not start"
    """The engine dies in every start."""
    DIES_LATER = "dies later"
    """The engine dies 1 to 20 minutes after it became ready, and again after each restart."""
    HANGS_LATER = "hangs later"
    """The engine hangs as long after it became ready, and is healthy to its probe."""
    NEVER_READY = "never ready"
    """It neither serves nor dies."""
    FAILS_REQUESTS = "fails requests"
    """The engine fails on 5 to 50 % of the requests."""
    DEGRADES = "degrades"
    """Tokens take 100 to 600 % longer for each hour that it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """What is wrong with one value."""

    value: str
    """As `knob=value`."""
    way: Way
    faults: Faults

    @property
    def told(self) -> str:
        """For figures."""
        return f"{self.value}: {self.way.value}"

    @property
    def becomes_ready(self) -> bool:
        """Whether a start comes to its end."""
        return self.way is not Way.NEVER_READY

    def check_start(self) -> None:
        """Raise CoreRefused where the engine dies in its start."""
        if self.way is Way.DOES_NOT_START:
            raise CoreRefused("CUDA error: an illegal memory access was encountered")


WAYS: Final = tuple(Way)
DIES_AFTER: Final = (60.0, 1200.0)
"""Seconds as ready, for `Way.DIES_LATER` and `Way.HANGS_LATER`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Which values are bad in one run."""

    seed: str
    share: float
    """Part of all values, 0..1."""
    start: Mapping[str, str]
    """The user's own."""

    @classmethod
    def of(cls, scenario: Scenario, *, start: Sequence[str]) -> "Candidates":
        """Those of a scenario whose user has written these arguments."""
        return cls(seed=f"{scenario.name}/{scenario.seed}", share=scenario.bad, start=_values(start))

    def flaw(self, arguments: Sequence[str]) -> Flaw | None:
        """What is wrong with an engine that is started like this; the first of several."""
        tried = {knob: value for knob, value in _values(arguments).items() if self.start.get(knob) != value}
        flaws = (self._drawn(f"{knob}={value}") for knob, value in tried.items())
        return next((flaw for flaw in flaws if flaw is not None), None)

    def _drawn(self, value: str) -> Flaw | None:
        digest = hashlib.sha256(f"{self.seed}/{value}".encode()).digest()
        source = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        if source.uniform() >= self.share:
            return None
        way = WAYS[int(source.integers(len(WAYS)))]
        match way:
            case Way.SLOWER:
                faults = Faults(degrade_above_seqs=0, degrade_factor=float(source.uniform(1.2, 3.0)))
            case Way.DIES_LATER:
                faults = Faults(crash_after=float(source.uniform(*DIES_AFTER)))
            case Way.HANGS_LATER:
                faults = Faults(wedge_after=float(source.uniform(*DIES_AFTER)))
            case Way.FAILS_REQUESTS:
                faults = Faults(fail_share=float(source.uniform(0.05, 0.5)))
            case Way.DEGRADES:
                faults = Faults(slowdown_per_hour=float(source.uniform(1.0, 6.0)))
            case Way.DOES_NOT_START | Way.NEVER_READY:
                faults = Faults()
        return Flaw(value=value, way=way, faults=faults)


def _values(arguments: Sequence[str]) -> Mapping[str, str]:
    knobs = knobs_in(parse_flags(tuple(arguments)))
    return {name: str(value) for name, value in knobs.model_dump(by_alias=True).items() if value is not None}
