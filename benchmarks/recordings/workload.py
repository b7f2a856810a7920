"""The requests behind a recording, from what its counters say: how many came when, how long they were.

| known | from |
|---|---|
| how many came in an interval between two scrapes | growth of finished + running + waiting |
| prompt tokens of those with their first token in an interval, together | growth of prompt tokens; FCFS |
| output tokens of those that finished in an interval, together | growth of the histogram's sum; taken to be in order |
| which range a length is from | the phase that the request came in |

Not known, and how it is chosen: single lengths are drawn evenly from the phase's range by seed and then shifted
together until each interval's sum holds. Within an interval, arrivals are spread evenly. Where no queue stands at
either end, the scrape at the end shows how many were still running: those came within their own duration of it, the
others early enough to be done. So in light load the running gauge is an input, and agreement there proves little.
Must not: look at how the simulated engine does with them.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks.recordings.read import BadRecording, Phase, Recorded
from vllm_autotuner.simulation.sequence import Request

__all__ = ["reconstruct"]


def reconstruct(recorded: Recorded, *, phases: Sequence[Phase], seed: int) -> tuple[Request, ...]:
    """Return the requests in order of arrival, in seconds after the first scrape. Raises BadRecording.

    Requests that were there at the first scrape come at 0: how far they had got is not known.
    """
    counts = np.diff(recorded.arrived, prepend=0)
    if np.any(counts < 0):
        row = int(np.argmax(counts < 0))
        raise BadRecording(
            f"{recorded.name}: at +{recorded.times[row]:.0f} s fewer requests are running and waiting than came and "
            "did not finish: aborted requests that no counter shows, or several engines"
        )
    intervals = [0.0, *recorded.times.tolist()]
    evenly = [
        start + (end - start) * (index + 0.5) / count
        for (start, end), count in zip(pairwise(intervals), counts.tolist(), strict=True)
        for index in range(count)
    ]
    draw = random.Random(seed)
    chosen = [_phase_at(at, phases) for at in evenly]
    # Those that ran at the first scrape have their first token behind them; nobody counts it again.
    begun = recorded.first_tokens + recorded.running[0]
    prompts = _drawn([phase.prompt for phase in chosen], sums=recorded.prompt_tokens, counts=begun, draw=draw)
    outputs = _drawn(
        [phase.output for phase in chosen], sums=recorded.finished_output, counts=recorded.finished, draw=draw
    )
    arrivals = _placed(recorded, evenly=evenly, counts=counts.tolist(), outputs=outputs)
    requests = [
        Request(arrival=at, prompt_tokens=prompt, max_tokens=output)
        for at, prompt, output in zip(arrivals, prompts, outputs, strict=True)
    ]
    return tuple(sorted(requests, key=lambda request: request.arrival))


def _phase_at(at: float, phases: Sequence[Phase]) -> Phase:
    return phases[max(0, bisect_right([phase.start for phase in phases], at) - 1)]


def _drawn(
    ranges: Sequence[tuple[int, int]], *, sums: np.ndarray, counts: np.ndarray, draw: random.Random
) -> list[int]:
    """Draw a length from each range and shift those of each interval until they sum up to what was counted."""
    lengths = [draw.randint(*limits) for limits in ranges]
    known = np.rint(counts).astype(int).tolist()
    for row, (first, last) in enumerate(pairwise(known)):
        group = slice(first, min(last, len(lengths)))
        lengths[group] = _shifted(lengths[group], ranges[group], total=round(float(sums[row + 1] - sums[row])))
    return lengths


def _shifted(lengths: Sequence[int], ranges: Sequence[tuple[int, int]], *, total: int) -> list[int]:
    """Add the same to every length, within its range as far as that goes, until they sum up to `total`.

    Order says who is in a group, and order is not exact: where the ranges cannot give the sum, all leave them alike.
    """
    shifted = list(lengths)
    while (missing := total - sum(shifted)) and shifted:
        step = 1 if missing > 0 else -1
        open_ends = [
            index
            for index, (length, (low, high)) in enumerate(zip(shifted, ranges, strict=True))
            if low <= length + step <= high
        ] or [index for index, length in enumerate(shifted) if length + step >= 1]
        if not open_ends:
            break
        share = max(1, abs(missing) // len(open_ends))
        for index in open_ends[: abs(missing)]:
            low, high = ranges[index]
            inside = low <= shifted[index] + step <= high
            reach = (high - shifted[index] if step > 0 else shifted[index] - low) if inside else 1
            shifted[index] += step * min(share, reach)
    return shifted


def _placed(
    recorded: Recorded, *, evenly: Sequence[float], counts: Sequence[int], outputs: Sequence[int]
) -> list[float]:
    """Move arrivals, within their interval, to where the scrape at its end saw them: still running, or done."""
    arrivals = list(evenly)
    first = 0
    for row, count in enumerate(counts):
        mine = range(first, first + count)
        first += count
        if row == 0 or not count or recorded.waiting[row] or recorded.waiting[row - 1]:
            continue
        start, end = float(recorded.times[row - 1]), float(recorded.times[row])
        lasting = _durations(recorded, row, outputs=[outputs[index] for index in mine])
        if lasting is None:
            continue
        done = min(count, max(0, round(float(recorded.finished[row])) - mine.start))
        cut = max(start, end - max(lasting[:done], default=0.0))
        for place, index in enumerate(mine[:done]):
            arrivals[index] = start + (cut - start) * (place + 0.5) / done
        for place, index in enumerate(mine[done:]):
            began = max(start, end - lasting[done + place])
            arrivals[index] = began + (end - began) * (place + 0.5) / (count - done)
    return arrivals


def _durations(recorded: Recorded, row: int, *, outputs: Sequence[int]) -> list[float] | None:
    """Return how long requests took in this interval without a queue, seconds; None when nothing was timed."""
    itl_count, itl_seconds, prefill_count, prefill_seconds = (
        float(column[row] - column[row - 1])
        for column in (recorded.itl_count, recorded.itl_seconds, recorded.prefill_count, recorded.prefill_seconds)
    )
    if itl_count == 0:
        return None
    itl = itl_seconds / itl_count
    prefill = prefill_seconds / prefill_count if prefill_count else itl
    return [prefill + output * itl for output in outputs]
