"""What one replica of a service does now, in the terms of the capacity model (`performance.capacity`).

Everything is measured on this service; where its batch has never varied, the slope of the step-time line is that of an
earlier line, or of engines in general, with the interval that this asks for.
Must not: describe another configuration (`forecast` does), or choose.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from vllm_autotuner.diagnosis.case import (
    Case,
    batch_of_tokens,
    busy_batch,
    mean_batch,
    mostly_waits,
    queues,
    step_time,
    tpot_reading,
)
from vllm_autotuner.diagnosis.concurrency_capped import ConcurrencyCapped
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.diagnosis.prefill_bound import BUSY, prefill_shares
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.capacity import BUSIEST, FirstToken, Limits, Replica
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.performance.outliers import outlying
from vllm_autotuner.performance.physics import empty_step
from vllm_autotuner.performance.step_time import NEWEST_STRETCHES, StepTime

__all__ = [
    "STRETCH",
    "UnknownReplica",
    "current_replica",
    "highest_mean",
    "limits_of",
    "output_tokens",
    "rate_each",
    "rate_now",
    "with_silent",
]

STRETCH: Final = NEWEST_STRETCHES[0]
"""Seconds over which a load is averaged: objectives are quantiles over minutes, not over a window of 30 s."""
FEWEST_WINDOWS: Final = 5
"""Windows needed to tell how much arrivals vary from one to the next."""
MOST_BURSTY: Final = 30.0
"""Gaps with a coefficient of variation of 5.5: traces of production have up to 4 (BurstGPT, ServeGen)."""


@dataclass(frozen=True, slots=True)
class UnknownReplica:
    """There is no model of a replica, and this is why."""

    why: str


def limits_of(targets: Targets) -> Limits:
    """The objectives in the terms of the capacity model."""
    return Limits(tpot=targets.tpot.seconds, ttft=targets.ttft.seconds, ttft_quantile=targets.ttft.quantile)


def output_tokens(seen: Observation) -> float | None:
    """Mean output tokens of a request; None if not known."""
    recent = number(seen.recent_output_length.mean)
    if recent:
        return recent
    made, finished = seen.generated_per_second, seen.finished_per_second
    return made / finished if made and finished else number(seen.output_length.quantile(0.5))


def _served_rate(seen: Observation) -> float | None:
    """Requests per second of the whole service whose tokens are made now; None if not known."""
    made, output = seen.generated_per_second, output_tokens(seen)
    return made / output if made and output else None


def rate_now(seen: Observation) -> float | None:
    """Requests per second that come now; None if not known. More than are served while a queue grows.

    Silent pods have their share (`with_silent`): else seven of ten would seem to carry the load of all.
    """
    each = rate_each(seen)
    return None if each is None else with_silent(each * len(seen.engines), seen=seen)


def rate_each(seen: Observation) -> float | None:
    """The same for one engine, of those that report."""
    served = _served_rate(seen)
    return None if served is None else served * seen.pressure / len(seen.engines)


def with_silent(amount: float, *, seen: Observation) -> float:
    """What all ready pods have, if those that report have so much, and each silent one as much as one of them."""
    reporting = len(seen.reporting)
    return amount * max(1.0, (seen.expected or 0) / reporting) if reporting else amount


def highest_mean(by_time: Mapping[float, float], *, window: float) -> float:
    """The highest mean over `STRETCH` seconds of values by the end of their window, oldest first; 0 without any.

    Not the highest window: of twenty with 100 requests one has 120 by chance, and what bursts cost is in the crowding.
    """
    values = list(by_time.values())
    many = min(len(values), max(1, round(STRETCH / window)))
    return max((fmean(values[end - many : end]) for end in range(many, len(values) + 1)), default=0.0) if many else 0.0


def current_replica(case: Case, *, default_slots: int | None = None) -> Replica | UnknownReplica:
    """Return the average replica of now, or why there is no model of it.

    `default_slots`: where max-num-seqs is not set; None if it is not known.
    """
    seen, batch = case.observation, mean_batch(case)
    output, rate, line = output_tokens(seen), _served_rate(seen), _line(case)
    if output is None or not rate or batch <= 0:
        return UnknownReplica("no requests with tokens: nothing to learn from")
    if line is None:
        return UnknownReplica("inter-token latency or request lengths are not known")
    held = kv_bound(seen)
    crowding = sum(map(busy_batch, seen.engines)) / (batch * len(seen.engines))
    return Replica(
        step=line,
        empty=_empty(seen, line),
        output=output,
        held_longer=_held_longer(seen),
        seats=_slots(case, default=default_slots),
        held=None if held is None else float(held),
        crowding=max(1.0, crowding),
        tail=_tail(case, itl=line.predict(max(1.0, batch * crowding))),
        tail_at=max(1.0, batch * crowding),
        first=_first_token(case, rate=rate / len(seen.engines), batch=batch),
        burstiness=_burstiness(seen),
    )


def _slots(case: Case, *, default: int | None) -> int | None:
    """As they are set, as they seem to be where all are in use, or the default unless more were seen to run."""
    known = case.knobs.max_num_seqs or ConcurrencyCapped().slots_seen(case)
    running = max(moment.running for engine in case.engines for moment in engine.moments)
    return default if known is None and default is not None and running <= default else known


def _line(case: Case) -> StepTime | None:
    """The fitted line; without one the slope of an earlier line through now; else that of engines in general."""
    seen = case.observation
    fitted = step_time(seen)
    if isinstance(fitted, StepTime):
        return fitted
    itl, batch = number(seen.itl.mean), batch_of_tokens(seen)
    if itl is None or not batch:
        return None
    earlier = case.learned_here
    if earlier is not None and abs(earlier.predict(batch) / itl - 1) <= outlying(earlier.error):
        moved = earlier.scaled_through(batch, itl, base=max(0.0, itl - earlier.added(batch)))
        return replace(moved, high=max(batch, earlier.high))
    alone = _empty_in_general(seen, itl=itl, batch=batch)
    if alone is None:
        return None
    slope = max(0.0, (itl - alone) / batch)
    # At the batch that was measured it is off by the noise of a window; away from it the model's own error counts.
    return StepTime(base=alone, per_sequence=slope, low=batch, high=batch, points=1, error=NOISE)


def _empty(seen: Observation, line: StepTime) -> float:
    """Seconds of an empty step where the line has less than half of what engines in general need; else 0.

    A line through large batches alone may go through zero: two sequences would then be served in no time. The experts
    that a mixture reads are no part of that: fewer sequences read fewer.
    """
    alone = _empty_in_general(seen, itl=line.predict(line.low), batch=line.low)
    return alone if alone is not None and 2 * (line.base + line.read(line.low)) < alone else 0.0


def _empty_in_general(seen: Observation, *, itl: float, batch: float) -> float | None:
    """Seconds of an empty step by one measured batch; None where request lengths are not known."""
    prompt, output = number(seen.recent_prompt_length.mean), output_tokens(seen)
    if prompt is None or output is None:
        return None
    shares = prefill_shares(seen.engines)
    # Times of prompts that are computed side by side add up: no more than what does not yet count as prefilling.
    prefilling = min(BUSY.limit, fmean(shares)) if shares else 0.0
    return empty_step(itl, batch=batch, context=prompt + output / 2, prefilling=prefilling)


def _held_longer(seen: Observation) -> float:
    """By what factor requests hold their slot longer than their tokens take: the batch over what makes the tokens.

    Below 1 where a step makes several tokens of a sequence (speculative decoding), and of short outputs: the first
    token comes with the prompt.

    Without the first window that is remembered: where a service has just begun it was there for a part of it, so more
    ran in it than its tokens tell. The first one of a replica that came later is one of many.
    """
    first = min((point.time for point in seen.steps if point.time is not None), default=None)
    whole = [point for point in seen.steps if point.time is None or point.time != first]
    taken = sum(point.running * (point.window or seen.window) for point in whole)
    times, each = {point.time for point in whole}, seen.tokens_per_step
    firsts = sum(one.requests for one in seen.first_tokens if one.time in times)
    made = sum(point.tokens for point in whole) * each
    needed = sum(point.tokens * point.itl for point in whole) * each
    longer = taken / (needed * (1 + firsts / made)) if needed > 0 and taken > 0 else 1.0
    # The time of a token over a preemption is no time in a slot.
    preempts = any(engine.preemptions for engine in seen.engines)
    return max(1.0, longer) if preempts and each <= 1 else longer


def _tail(case: Case, *, itl: float) -> float:
    """As measured. Of the few requests of a window its upper confidence bound is the slowest, which would decide.

    1 where more are preempted than the quantile leaves out: then it tells how long they wait for the KV cache, and no
    batch that is asked about is one that the cache does not hold.
    """
    engines, beyond = case.observation.engines, 1 - case.targets.tpot.quantile
    if sum(each.preemptions or 0.0 for each in engines) > beyond * sum(each.finished or 0.0 for each in engines):
        return 1.0
    measured = number(tpot_reading(case))
    return measured / itl if measured is not None and itl > 0 else 1.0


def _first_token(case: Case, *, rate: float, batch: float) -> FirstToken | None:
    seen, target = case.observation, case.targets.ttft
    shares = prefill_shares(seen.engines)
    prompts = min(BUSIEST, fmean(shares)) if shares else 0.0
    ttft, prefill = number(seen.ttft.quantile(target.quantile)), number(seen.prefill_time.mean)
    prompt, longer = number(seen.recent_prompt_length.mean), number(seen.prompt_length.quantile(target.quantile))
    own = None if prefill is None else prefill * (max(1.0, longer / prompt) if longer and prompt else 1.0)
    if queues(seen) or mostly_waits(seen):
        # The measured TTFT is mostly the wait in the queue: what is left without one is the prompt's own time, as long
        # as that of a prompt at the quantile, and the prompts before it.
        if own is None:
            return None
        ttft = own / (1 - prompts) if ttft is None else min(ttft, own / (1 - prompts))
    if ttft is None:
        return None
    # Prompts that share their steps count the time of all of them, so that of one alone is less by as much at most.
    alone = 0.0 if own is None else own * (1 - prompts)
    return FirstToken(seconds=ttft, rate=rate, batch=batch, prompts=prompts, alone=alone)


def _burstiness(seen: Observation) -> float:
    """Variance over mean of the requests that one engine gets in a window.

    From three windows in a row, so that a load that rises or falls is none that varies: of independent counts the first
    less twice the second plus the third has six times their variance. Requests are shared out by chance: of what all of
    them vary by more than chance, one engine of n sees an n-th.
    """
    counts = list(seen.arrivals_by_window().items())
    in_a_row = [
        (first, second, third)
        for (begin, first), (_, second), (end, third) in zip(counts, counts[1:], counts[2:], strict=False)
        # At Unix times, close is within two seconds.
        if end - begin < 2 * seen.window + 2
    ]
    if len(in_a_row) < FEWEST_WINDOWS - 2:
        return 1.0
    variance = fmean((first - 2 * second + third) ** 2 for first, second, third in in_a_row) / 6
    mean = fmean(count for _, count in counts)
    return min(MOST_BURSTY, max(1.0, 1 + (variance / mean - 1) / len(seen.engines)))
