"""A run of consecutive steps with the same batch, whose ends and durations have a closed form.

Every decoding sequence gains one token per step, so each step reads that many more tokens of KV and lasts longer than
the one before by the same amount, and nothing has to happen in between.
Separate from the scheduler, which decides how long a run may be, because this is only arithmetic.
Must not: use sequences, blocks or metrics.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class StepRun:
    """Steps under way. Steps count from 0; every time is computed from `start`, however often it is read."""

    start: float
    first: float
    """Duration of the first step, seconds."""
    growth: float
    """What each further step lasts longer, seconds."""
    steps: int
    """How many steps it has. May be cut while it runs, never below those that have begun."""
    prefill: bool
    """Prompts are computed as well; then it is a single step."""
    waits: bool = False
    """Nothing is computed: all requests are deferred, and the run ends when the first of them is ready."""
    done: int = 0
    """Steps that have ended and were counted."""

    def end_of(self, steps: int) -> float:
        """Return when so many steps have ended."""
        return self.start + steps * self.first + self.growth * (steps * (steps - 1) / 2)

    @property
    def end(self) -> float:
        """When the last step ends."""
        return self.start + self.first if self.steps == 1 else self.end_of(self.steps)

    def ended_by(self, until: float) -> int:
        """Return how many steps end at `until` or before: at least `done`, at most `steps`."""
        if until >= self.end:
            return self.steps
        if until < self.end_of(self.done + 1):
            return self.done
        # The root of growth/2 * n^2 + (first - growth/2) * n = passed, in the form that also holds for growth 0.
        passed, slope = until - self.start, self.first - self.growth / 2
        steps = int(2 * passed / (slope + math.sqrt(slope * slope + 2 * self.growth * passed)))
        while self.end_of(steps + 1) <= until:
            steps += 1
        while self.end_of(steps) > until:
            steps -= 1
        return steps

    def cut_after(self, steps: int) -> None:
        """End no later than after so many steps; the step under way always ends."""
        self.steps = min(self.steps, max(steps, self.done + 1))

    def cut_before(self, time: float) -> None:
        """Let no step begin at `time` or later, but for the first."""
        if self.end_of(self.steps - 1) < time:
            return
        steps = self.ended_by(time)
        # A step that would begin exactly at `time` belongs to what comes after.
        self.cut_after(steps if self.end_of(steps) == time else steps + 1)
