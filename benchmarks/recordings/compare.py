"""A recording beside its replay: the classes that were named, and the levels, whole and while it was saturated.

Apart from playing. Must not: forgive. A class that differs is listed with its time, also where a transition excuses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.recordings.read import Recorded
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.cli.evaluate.evaluation import Subject, evaluate
from vllm_autotuner.cli.evaluate.moments import TICK, Span
from vllm_autotuner.cli.evaluate.moments import recorded as every_tick_of
from vllm_autotuner.cli.evaluate.service_groups import one_service
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["Difference", "Level", "Timeline", "differences", "levels", "longest_queue", "named", "ratio"]

AROUND_A_TURN: Final = float(WindowSettings().state)
"""Seconds on either side of a transition within which the two may disagree: one state window, two in all. Which class
is named there hangs on single samples."""

Timeline = Sequence[tuple[float, DiagnosisClass]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A quantity over a stretch of the recording, time-weighted."""

    quantity: str
    real: float
    simulated: float

    @property
    def error(self) -> float | None:
        """Relative to the real one; None where that is 0."""
        return self.simulated / self.real - 1 if self.real else None

    @classmethod
    def mean_of(cls, same: Sequence["Level"]) -> "Level":
        """Return the mean over replays of one recording."""
        return cls(quantity=same[0].quantity, real=same[0].real, simulated=fmean(each.simulated for each in same))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A moment at which the two were named differently."""

    at: float
    """Seconds after the first scrape."""
    real: DiagnosisClass
    simulated: DiagnosisClass
    near_turn: bool
    """Whether the real class changes within `AROUND_A_TURN`."""


async def named(recorded: Recorded, *, flags: EngineFlags) -> Timeline:
    """Return the primary class of every evaluation, as `vllm-autotuner diagnose --timeline` evaluates a recording."""
    span = Span(recorded.start, recorded.start + recorded.seconds)
    (report,) = await evaluate(
        recorded.source,
        schedule=every_tick_of(span, every=TICK),
        grouping=one_service,
        subject=Subject(targets=targets_of(Objectives()), knobs=EngineKnobs(max_num_seqs=flags.max_num_seqs)),
        settings=WindowSettings(),
    )
    return [(point.time - recorded.start, point.diagnosis.primary) for point in report.timeline]


def differences(real: Timeline, simulated: Timeline) -> tuple[Difference, ...]:
    """Return the moments at which the classes differ. Both were evaluated at the same moments."""
    turns = [after[0] for before, after in pairwise(real) if before[1] is not after[1]]
    return tuple(
        Difference(
            at=at,
            real=was,
            simulated=became,
            near_turn=any(abs(at - turn) <= AROUND_A_TURN for turn in turns),
        )
        for (at, was), (_, became) in zip(real, simulated, strict=True)
        if was is not became
    )


def levels(real: Recorded, simulated: Recorded, *, between: tuple[int, int] | None = None) -> tuple[Level, ...]:
    """Compare from row to row (all when None): gauges as scraped, and the batch, which counters give exactly."""
    first, last = between or (0, len(real.times) - 1)
    rows = slice(first, last + 1)
    found = [
        Level(
            quantity=quantity,
            real=_mean(real.times[rows], getattr(real, column)[rows]),
            simulated=_mean(simulated.times[rows], getattr(simulated, column)[rows]),
        )
        for quantity, column in (("running", "running"), ("waiting", "waiting"), ("KV usage", "kv_usage"))
    ]
    batches = [
        (one.generation_tokens[last] - one.generation_tokens[first]) / (one.steps[last] - one.steps[first])
        for one in (real, simulated)
    ]
    found.append(Level(quantity="tokens per step", real=float(batches[0]), simulated=float(batches[1])))
    if between is None:
        # Every request has ended, so the time that they ran is exact where a gauge is a sample every 2 s.
        ran = [one.inference_seconds[-1] / one.seconds for one in (real, simulated)]
        found.append(Level(quantity="in inference", real=float(ran[0]), simulated=float(ran[1])))
    return tuple(found)


def longest_queue(recorded: Recorded) -> tuple[int, int] | None:
    """Return the first and last row of the longest time with a queue; None when none lasts a state window."""
    best: tuple[int, int] | None = None
    start: int | None = None
    for row, waiting in enumerate([*recorded.waiting.tolist(), 0.0]):
        if waiting and start is None:
            start = row
        if not waiting and start is not None:
            if best is None or _lasts(recorded, (start, row - 1)) > _lasts(recorded, best):
                best = (start, row - 1)
            start = None
    return best if best is not None and _lasts(recorded, best) >= WindowSettings().state else None


def ratio(real: float, simulated: float) -> float | None:
    """Return by which factor the two differ, 1 or more; None when only one of them is 0."""
    if real == simulated:
        return 1.0
    return max(real / simulated, simulated / real) if real and simulated else None


def _lasts(recorded: Recorded, rows: tuple[int, int]) -> float:
    return float(recorded.times[rows[1]] - recorded.times[rows[0]])


def _mean(times: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    return float(np.trapezoid(values, times) / (times[-1] - times[0]))
