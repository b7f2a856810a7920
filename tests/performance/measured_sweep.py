"""A measured sweep of max-num-seqs, and lines, for tests of the knee."""

from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import StepTime, fit_step_time

__all__ = ["F4", "PREEMPTING", "Row", "model", "settings_within", "sweep"]


def model(base: float, slope: float, *, high: float = 128.0) -> StepTime:
    return StepTime(base=base, per_sequence=slope, low=1.0, high=high, points=9, error=0.01)


# --- F4: Llama-70B on 4x A100, saturated: max-num-seqs, tok/s, p50 and p99 TPOT in ms --------------------------------

Row = tuple[int, int, float, float]
F4: tuple[Row, ...] = (
    (8, 1280, 6.2, 8.1),
    (16, 2410, 6.6, 9.5),
    (32, 3780, 8.4, 12.8),
    (64, 4650, 13.7, 19.2),
    (128, 5120, 24.9, 35.1),
    (256, 4890, 52.3, 78.4),
    (512, 3200, 159.8, 245.0),
)
PREEMPTING = 256
"""From here on preemption wastes work: those rows belong to another state, not to the line."""


def sweep(column: int, *, below: int = PREEMPTING) -> StepTime:
    points = [StepPoint(running=row[0], itl=row[column] / 1000, tokens=row[1]) for row in F4 if row[0] < below]
    found = fit_step_time(points)
    assert isinstance(found, StepTime)
    return found


def settings_within(limit: int | None) -> int:
    """The largest of the swept settings that is no larger than `limit`."""
    assert limit is not None
    return max(row[0] for row in F4 if row[0] <= limit)
