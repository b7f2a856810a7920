"""The speed of an engine's steps at a moment: faults stretch them, and a GPU's speed varies.

Separate from the scheduler, which decides what a step computes, and from the step-time law, which gives its duration.
Must not: use sequences or blocks, or depend on how often it is called.
"""

import random

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.faults import Faults

JITTER_STEPS = 16
"""Steps that share one draw of the jitter: a GPU is slow or fast for a while, not for one step. Our choice, unmeasured.
Fixed by the number of the step, so that a run does not depend on how often it is looked at."""


class Pace:
    """The factor on what the law says of a step. `tick`: how many steps the engine has done before."""

    __slots__ = ("_drawn", "_faults", "_jitter", "_random", "_seats", "_started", "constant")

    def __init__(self, config: EngineConfig, faults: Faults, *, started: float, seed: int) -> None:
        self._faults = faults
        self._jitter = config.jitter
        self._seats = config.max_num_seqs
        self._started = started
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._drawn = (-1, 1.0)  # which `JITTER_STEPS`, and their factor
        varies = config.jitter > 0 or faults.next_change(age=0) is not None
        self.constant = None if varies else self.factor(started, tick=0)
        """The factor, where it never changes."""

    def factor(self, at: float, *, tick: int) -> float:
        """Return the factor on a step that begins at this time, by faults and jitter."""
        factor = self._faults.stretch(max_num_seqs=self._seats, age=at - self._started)
        return factor * self._drawn_for(tick) if self._jitter else factor

    def steps_alike(self, limit: int, *, tick: int) -> int:
        """Return how many steps from this one on have its jitter, at most `limit`."""
        return min(limit, JITTER_STEPS - tick % JITTER_STEPS) if self._jitter else limit

    def changes_after(self, at: float) -> float | None:
        """Return when faults stretch steps otherwise than at this time; None when they never will."""
        change = self._faults.next_change(age=at - self._started)
        return None if change is None else self._started + change

    def _drawn_for(self, tick: int) -> float:
        """Return the factor of the jitter on the steps around this one; its mean is 1."""
        group, sigma = tick // JITTER_STEPS, self._jitter
        if self._drawn[0] != group:
            self._drawn = (group, self._random.lognormvariate(-sigma * sigma / 2, sigma))
        return self._drawn[1]
