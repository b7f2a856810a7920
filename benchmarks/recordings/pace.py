"""The step-time law behind recordings, and how slow the machine was from scrape to scrape.

Two things make a step of a recorded engine long: what it computes (the law) and what else ran on its machine (the
pace). The recordings share a CPU with their load generator, so the same step took up to three times as long from one
interval to the next. A law has no word for that; a replay that is to test the scheduler takes the pace from the
recording, as it takes the arrivals, and one that is to test the law runs at pace 1.
Apart from the reconstruction, which knows no step. Must not: look at what a replay gave.

Each row is one interval: seconds = base * steps + per_sequence * tokens + per_prefill_token * prefill, divided by the
steps or tokens it is a mean of. Least squares, because a queue is a sum of steps and the mean must be right, not the
typical one; every row weighs by 1/sqrt(seconds), so that slow intervals do not outvote the others.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from benchmarks.recordings.read import BadRecording, Recorded
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.step_duration import StepLaw

__all__ = ["Pace", "fit_law", "law_errors", "pace_of"]

FEWEST_ROWS: Final = 6
"""Two for each of the three coefficients. Fewer fit whatever is there. Our choice."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the mean seconds of each interval consist of: one step, tokens, prefill tokens."""

    parts: NDArray[np.float64]
    seconds: NDArray[np.float64]


def fit_law(recordings: Mapping[str, Recorded], *, recomputed: Mapping[str, float]) -> StepLaw:
    """Fit one law to all of them. `recomputed`: tokens computed again per preemption, by name; no counter tells.

    Raises BadRecording when they hold too few busy intervals.
    """
    rows = [_rows(recorded, recomputed=recomputed[name]) for name, recorded in recordings.items()]
    parts, seconds = np.concatenate([one.parts for one in rows]), np.concatenate([one.seconds for one in rows])
    if len(seconds) < FEWEST_ROWS:
        raise BadRecording(f"{', '.join(recordings)}: {len(seconds)} timed intervals; a law needs {FEWEST_ROWS}")
    work = np.concatenate([_work(one, recomputed=recomputed[name]) for name, one in recordings.items()])
    lasted = np.concatenate([np.diff(one.times) for one in recordings.values()])
    # With a queue at both ends its length is what it counts by already: those that noise made short would count twice.
    queued = np.concatenate([(one.waiting[:-1] > 0) & (one.waiting[1:] > 0) for one in recordings.values()])
    full = np.zeros(len(lasted), dtype=bool)
    while True:
        # An interval that would need longer than it lasted was full: its steps took all the time there was.
        steps = work[full, :1]
        all_parts = np.concatenate([parts, work[full] / steps])
        all_seconds = np.concatenate([seconds, lasted[full] / steps[:, 0]])
        weights = 1 / np.sqrt(all_seconds)
        coefficients = _non_negative(all_parts * weights[:, None], all_seconds * weights)
        # Without a step that was counted, its preemptions alone do not say what it computed.
        over = ~full & ~queued & (work[:, 0] > 0) & (work @ np.array(coefficients) > lasted)
        if not over.any():
            break
        full |= over
    base, per_sequence, per_prefill_token = coefficients
    # Reading the KV cache cannot be told from `per_sequence` here: all sequences of a recording are about as long.
    return StepLaw(base=base, per_sequence=per_sequence, per_held_token=0.0, per_prefill_token=per_prefill_token)


def law_errors(law: StepLaw, recorded: Recorded, *, recomputed: float) -> NDArray[np.float64]:
    """Return the relative error of the law in every timed interval of a recording."""
    rows = _rows(recorded, recomputed=recomputed)
    return np.asarray(rows.parts @ _coefficients(law) / rows.seconds - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace(Faults):
    """How many times longer than the law says a step takes, by interval."""

    until: tuple[float, ...]
    """Ends of the intervals, ascending; the last factor holds for ever."""
    factors: tuple[float, ...]

    @override
    def stretch(self, *, max_num_seqs: int, age: float) -> float:
        """See Faults.stretch."""
        return self.factors[self._index(age)]

    @override
    def next_change(self, *, age: float) -> float | None:
        """See Faults.next_change."""
        index = self._index(age)
        return self.until[index] if index + 1 < len(self.factors) else None

    def _index(self, age: float) -> int:
        return min(bisect_left(self.until, age), len(self.factors) - 1)


def pace_of(recorded: Recorded, *, law: StepLaw, recomputed: float) -> Pace:
    """Return how slow the machine was in each interval; where nothing was timed, as slow as before."""
    factors: list[float] = []
    busy = _work(recorded, recomputed=recomputed) @ _coefficients(law)
    for row, lasted in enumerate(np.diff(recorded.times).tolist(), start=1):
        timed = _step(recorded, row, recomputed=recomputed)
        if timed is None:
            factor = factors[-1] if factors else 1.0
        else:
            parts, seconds = timed
            factor = float(seconds / (parts @ _coefficients(law)))
        # No engine computes for longer than the interval lasted.
        factors.append(min(factor, lasted / float(busy[row - 1])) if busy[row - 1] else factor)
    return Pace(until=tuple(recorded.times[1:].tolist()), factors=tuple(factors))


def _rows(recorded: Recorded, *, recomputed: float) -> _Rows:
    found = []
    for row in range(1, len(recorded.times)):
        found += [one for one in (_step(recorded, row, recomputed=recomputed), _prefill(recorded, row)) if one]
    parts = np.array([parts for parts, _ in found]).reshape(-1, 3)
    return _Rows(parts, np.array([seconds for _, seconds in found]))


def _work(recorded: Recorded, *, recomputed: float) -> NDArray[np.float64]:
    """Return what each interval computed, one row each: steps, tokens, prefill tokens."""
    prefill = recorded.prompt_tokens + recomputed * recorded.preemptions
    return np.diff(np.stack([recorded.steps, recorded.generation_tokens, prefill], axis=1), axis=0)


def _step(recorded: Recorded, row: int, *, recomputed: float) -> tuple[NDArray[np.float64], float] | None:
    """Return what a step of this interval consisted of, and its mean seconds.

    With a queue at both ends the engine never paused: its steps took all the time there was. Without a queue the
    latency between tokens tells, weighted by the sequences that saw a step. With a queue at one end neither holds.
    """
    steps, tokens, itls = (_grew(recorded, name, row) for name in ("steps", "generation_tokens", "itl_count"))
    if not (steps and tokens and itls):
        return None
    batch, preemptions = tokens / steps, _grew(recorded, "preemptions", row)
    prefill = (_grew(recorded, "prompt_tokens", row) + recomputed * preemptions) / steps
    before, after = recorded.waiting[row - 1], recorded.waiting[row]
    if before and after:
        return np.array([1.0, batch, prefill]), float(recorded.times[row] - recorded.times[row - 1]) / steps
    if before or after or preemptions:
        return None
    # The sequence whose prompt it is sees no latency between tokens in that step.
    seen = prefill * max(0.0, batch - 1) / batch
    return np.array([1.0, batch, seen]), _grew(recorded, "itl_seconds", row) / itls


def _prefill(recorded: Recorded, row: int) -> tuple[NDArray[np.float64], float] | None:
    """Return what the step with a prompt consisted of, where no queue and no preemption blurs it."""
    first_tokens, finished, steps = (_grew(recorded, name, row) for name in ("first_tokens", "prefill_count", "steps"))
    quiet = not (recorded.waiting[row - 1] or recorded.waiting[row] or _grew(recorded, "preemptions", row))
    # Prefill times are counted when a request ends: only where as many ended as began are they of the same requests.
    if not quiet or not steps or not 0 < first_tokens == finished:
        return None
    prompt, seconds = _grew(recorded, "prompt_tokens", row), _grew(recorded, "prefill_seconds", row)
    batch = _grew(recorded, "generation_tokens", row) / steps
    return np.array([1.0, batch, prompt / first_tokens]), seconds / finished


def _grew(recorded: Recorded, name: str, row: int) -> float:
    column: NDArray[np.float64] = getattr(recorded, name)
    return float(column[row] - column[row - 1])


def _coefficients(law: StepLaw) -> NDArray[np.float64]:
    return np.array([law.base, law.per_sequence, law.per_prefill_token])


def _non_negative(parts: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[float, float, float]:
    """Least squares without negative coefficients: those that come out negative are left out, one after the other."""
    used = [0, 1, 2]
    while used:
        solution, *_ = np.linalg.lstsq(parts[:, used], seconds, rcond=None)
        if np.all(solution >= 0):
            break
        used.pop(int(np.argmin(solution)))
    coefficients = [0.0, 0.0, 0.0]
    for index, value in zip(used, solution, strict=True):
        coefficients[index] = float(value)
    return coefficients[0], coefficients[1], coefficients[2]
