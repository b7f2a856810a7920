"""Fault injection for simulated engines, for tests and demonstrations. All faults are off by default.

Must not: touch the scheduler's state; a fault only stretches steps, says when they end for good, or how many requests
fail.
"""

from dataclasses import dataclass

from vllm_autotuner.simulation.plausible import check_numbers

SLOWDOWN_EVERY = 10.0
"""Seconds between two growths of a slow degradation: many steps stay equal, and 0.3 % per growth at most is unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults by time since the engine was ready (seconds) or by flag."""

    degrade_above_seqs: int | None = None
    """Steps take `degrade_factor` longer when max-num-seqs is above this: a bad value that only serving shows."""
    degrade_factor: float = 2.0
    slowdown_per_hour: float = 0.0
    """Steps grow by this part per hour, every `SLOWDOWN_EVERY` seconds: 0.5 makes them 1.5 times as long by then."""
    wedge_after: float | None = None
    """No step ends after this: gauges freeze, nothing moves, `/health` still answers 200."""
    crash_after: float | None = None
    """The process exits with code 1."""
    fail_share: float = 0.0
    """Part of the requests, 0..1, that the engine fails on at once: HTTP 500, counted as finished with `error`."""

    def __post_init__(self) -> None:
        ages = ("wedge_after", "crash_after")
        check_numbers(
            self, positive=("degrade_factor",), not_negative=("slowdown_per_hour", *ages), fractions=("fail_share",)
        )

    def stretch(self, *, max_num_seqs: int, age: float) -> float:
        """Return the factor on the duration of a step at this age."""
        degraded = self.degrade_above_seqs is not None and max_num_seqs > self.degrade_above_seqs
        slower = self.slowdown_per_hour * (age // SLOWDOWN_EVERY) * SLOWDOWN_EVERY / 3600
        return (self.degrade_factor if degraded else 1.0) * (1 + slower)

    def next_change(self, *, age: float) -> float | None:
        """Return the age at which `stretch` changes next; None when it never does."""
        return (age // SLOWDOWN_EVERY + 1) * SLOWDOWN_EVERY if self.slowdown_per_hour else None

    @property
    def halts_after(self) -> float:
        """Seconds after which no step ends any more; infinite without such a fault."""
        return min((at for at in (self.wedge_after, self.crash_after) if at is not None), default=float("inf"))
