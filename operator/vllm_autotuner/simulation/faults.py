"""What can go wrong with an engine on purpose, for tests and demonstrations. Everything is off by default.

Must not: touch the scheduler's state; a fault only stretches steps or says when they end for good.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults by time since the engine was ready (seconds) or by flag."""

    degrade_above_seqs: int | None = None
    """Steps take `degrade_factor` longer when max-num-seqs is above this: a bad value that only serving shows."""
    degrade_factor: float = 2.0
    slowdown_per_hour: float = 0.0
    """Steps grow by this part per hour: 0.5 makes them 1.5 times as long after one hour."""
    wedge_after: float | None = None
    """No step ends after this: gauges freeze, nothing moves, `/health` still answers 200."""
    crash_after: float | None = None
    """The process exits with code 1."""

    def stretch(self, *, max_num_seqs: int, age: float) -> float:
        """Return the factor on the duration of a step at this age."""
        degraded = self.degrade_above_seqs is not None and max_num_seqs > self.degrade_above_seqs
        return (self.degrade_factor if degraded else 1.0) * (1 + self.slowdown_per_hour * age / 3600)

    @property
    def halts_after(self) -> float:
        """Seconds after which no step ends any more; infinite without such a fault."""
        return min((at for at in (self.wedge_after, self.crash_after) if at is not None), default=float("inf"))
