"""Proposals for max-num-seqs, the number of sequences that one engine runs at once (its slots).

Raised when the slots are the limit, as far as load, KV cache and TPOT knee allow; lowered when the batch is past the
knee. The limits come from observed data: the KV cache per sequence is measured, not taken from a table.
Must not: propose more than one step, a value outside the spec's bounds, or one without a limit derived from data.
"""

import math
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import IntBounds
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import (
    BUSY,
    busy_batch,
    is_late,
    mean_batch,
    queues,
    reaches_behind,
    seems_to_become_fewer,
    step_time,
    tpot_reading,
    tpot_surely,
    tpot_tail,
)
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import EngineWindow, Observation
from vllm_autotuner.observation.reading import Measured, number
from vllm_autotuner.performance.knee import largest_batch_at_quantile
from vllm_autotuner.performance.step_time import NEWEST_STRETCHES, NoFit, StepTime, StepTimeFit
from vllm_autotuner.planning.bounds import with_value
from vllm_autotuner.planning.capped_value import HEADROOM, LARGEST_STEP, Limit, Limited, limited
from vllm_autotuner.planning.feasibility import Feasible, finds_memory
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = [
    "NothingToGain",
    "fit_to_kv_cache",
    "kv_bound",
    "lower_max_num_seqs",
    "not_slow_now",
    "raise_max_num_seqs",
    "replicas_at_knee",
]

KV_MARGIN: Final = 0.1
"""Share of the KV cache left free for sequences that grow at the same time. Our choice; below 90 % is healthy."""

LATELY: Final = NEWEST_STRETCHES[0]
"""Seconds that count as recent, at most: the shortest stretch in which a change of the load is recognised."""
LATELY_WINDOWS: Final = 10
"""Windows that count as recent, at most: as many as a verdict uses."""

LEAST_USE: Final = 1e-6
"""Share of the KV cache below which usage counts as none: one block of the largest cache is a multiple of that."""


UNKNOWN_CAPACITY: Final = "the number of sequences that the KV cache holds is not known: no usage or lengths yet"


@dataclass(frozen=True, slots=True)
class NothingToGain:
    """No proposal, with the reason that `explain` prints."""

    why: str


def raise_max_num_seqs(situation: Situation) -> Proposal | NothingToGain:
    """Raise max-num-seqs to the smallest of demand, step limit, KV cache limit, TPOT knee and the spec's bound."""
    observation, seats = situation.observation, _seats(situation)
    pool = kv_bound(observation)
    if pool is None:
        return NothingToGain(UNKNOWN_CAPACITY)
    model, tail = step_time(observation), _tail(situation)
    knee = _knee(model, situation=situation, tail=tail)
    if isinstance(model, StepTime) and knee is None:
        return NothingToGain("the step-time model predicts a TPOT over the objective even for a single sequence")
    demand = max(moment.running + moment.waiting for engine in observation.engines for moment in engine.moments)
    bounds = situation.tuning.max_num_seqs
    limits = (
        Limit(name=f"step limit (x{LARGEST_STEP})", high=seats * LARGEST_STEP),
        Limit(name="KV cache at observed lengths", high=pool),
        *([Limit(name="TPOT knee", high=knee)] if knee is not None else []),
        *_one_token_each(situation),
        *_failed_above(situation, seats=seats),
    )
    found = limited(max(math.ceil(demand), seats), limits=(*limits, *_user(bounds)))
    if (broken := _broken(found, limits=limits)) is not None:
        return broken
    if found.value < math.ceil(seats * (1 + NOISE)):
        return NothingToGain(f"raising max-num-seqs {seats} has no benefit (limit: {found.limited_by or 'no demand'})")
    # Observations end at the current max-num-seqs: for a larger batch the model only extrapolates.
    known = isinstance(model, StepTime) and model.covers(found.value) and situation.knobs.max_num_seqs is not None
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TTFT,
        reason=f"All {seats} slots (max-num-seqs) are in use while requests wait; the KV cache has room for {pool} "
        "sequences.",
        confidence=Confidence.HIGH if known else Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def lower_max_num_seqs(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs to the TPOT knee, at most halving the current batch."""
    observation = situation.observation
    if (why := not_slow_now(situation)) is not None:
        return why
    if _in_time_lately(situation):
        return NothingToGain("TPOT met its objective for most of the last minutes: a trial outlasts such a burst")
    batch = max(busy_batch(engine) for engine in observation.engines)
    model, tail = step_time(observation), _tail(situation)
    knee = _knee(model, situation=situation, tail=tail)
    if isinstance(model, StepTime) and knee is None:
        return NothingToGain("TPOT misses its objective even for a single sequence: a smaller batch does not help")
    # The batch may be empty while hysteresis still keeps the class.
    step = max(1, math.ceil(batch / LARGEST_STEP))
    bounds = situation.tuning.max_num_seqs
    limits = (Limit(name=f"step limit (x{LARGEST_STEP})", low=step), *_failed_below(situation, batch=batch))
    found = limited(knee if knee is not None else step, limits=(*limits, *_user(bounds)))
    if (broken := _broken(found, limits=limits)) is not None:
        return broken
    if (short := _too_few_for_load(situation, model, knee=knee)) is not None:
        return short
    if found.value > batch * (1 - NOISE):
        return NothingToGain(
            f"lowering max-num-seqs below batch size {batch:.0f} has no benefit (limit: {found.limited_by or 'knee'})"
        )
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TPOT,
        reason=f"TPOT misses its objective at batch size {batch:.0f}; "
        + (f"batch size {knee} meets it." if knee is not None else "halving it shows whether a smaller one meets it."),
        confidence=Confidence.HIGH if isinstance(model, StepTime) and model.covers(found.value) else Confidence.LOW,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def knee_of(situation: Situation) -> int | None:
    """The largest batch within the TPOT objective; None without a model, or if not even one sequence meets it."""
    model = step_time(situation.observation)
    return _knee(model, situation=situation, tail=_tail(situation))


def met_before(situation: Situation) -> bool:
    """Whether, without a model, some window met the TPOT objective, so that a smaller batch can meet it again.

    After prompts have become longer there is no fit for a while: a line through both mixes falls, and the new windows
    have too little spread.
    """
    steps, target = situation.observation.steps, situation.targets.tpot.seconds * (1 - HEADROOM)
    return isinstance(step_time(situation.observation), NoFit) and any(
        point.itl * _tail(situation) <= target for point in steps
    )


def not_slow_now(situation: Situation) -> NothingToGain | None:
    """Return why a late TPOT gives no reason to act: it is over, within noise, or from before a scale-out.

    A class remains named by its hysteresis after TPOT has recovered. And evaluated every few seconds, a quantile at its
    objective exceeds it now and then by chance.
    """
    case, target = situation.case, situation.targets.tpot
    for reading, why in (
        (tpot_reading(case), "TPOT meets its objective again"),
        (tpot_surely(case), "TPOT is over its objective only within statistical noise"),
    ):
        if isinstance(reading, Measured) and not is_late(reading, target):
            return NothingToGain(why)
    if _of_fewer_replicas(situation):
        return NothingToGain("the measured TPOT still covers the time before the newest replica")
    return None


def _in_time_lately(situation: Situation) -> bool:
    """Whether most tokens met the objective over the last minutes, including the current window.

    A burst of half a minute does not justify a restart: the trial lasts for minutes and finds nothing to improve. The
    majority counts, not the mean: a slow burst passes, while a batch slightly past the knee stays.
    """
    observation, target, tail = situation.observation, situation.targets.tpot.seconds, _tail(situation)
    since = observation.at - min(LATELY, LATELY_WINDOWS * observation.window)
    lately = [point for point in observation.steps if point.time is not None and point.time > since]
    late = sum(point.tokens for point in lately if point.itl * tail > target)
    return bool(lately) and late < sum(point.tokens for point in lately) / 2


def _of_fewer_replicas(situation: Situation) -> bool:
    """Whether the measurements still cover the time before the newest replica became ready."""
    since, observation = situation.replicas_since, situation.observation
    return since is not None and situation.replicas > 1 and reaches_behind(observation, since.timestamp())


def room_for_replicas(situation: Situation) -> bool:
    """Whether the spec allows one more replica."""
    scaling = situation.scaling
    return scaling is not None and situation.replicas < scaling.max_replicas


def replicas_at_knee(situation: Situation) -> int:
    """Return the number of replicas that serve the current load within the TPOT objective; the current one if unknown.

    Rounded up; there is no other margin. Where tokens are hardly faster in a small batch, a margin on TPOT would need
    half as many engines again (closed loop, bad-upgrade), and a missing replica is added soon. If clearly more requests
    arrive than finish, the served load is too low an estimate and is scaled by that ratio.
    Worked: two engines at a batch of 64 (84 ms, 762 tokens/s each) where 30 (50 ms, 600 tokens/s) meet the objective:
    2 * 762 / 600 = 2.54 are needed, so 3.
    """
    knee, serving = knee_of(situation), _serving(situation.observation)
    model, tail = step_time(situation.observation), _tail(situation)
    if isinstance(model, NoFit) or knee is None:
        return serving
    at_objective = _knee(model, situation=situation, tail=tail, headroom=0.0) or knee
    load = serving * situation.observation.pressure
    return max(serving, math.ceil(load / _share_at(at_objective, model, situation) - 1e-9))


def _serving(observation: Observation) -> int:
    """The number of pods that serve now, without those that are still starting."""
    return len({engine.key.pod for engine in observation.engines}) + len(observation.silent)


def _share_at(knee: int, model: StepTime, situation: Situation) -> float:
    """Throughput of engines at the knee relative to their current throughput.

    A ratio, so that a constant factor in the model's error (another mix, a slower engine) cancels out.
    """
    batch = max(1.0, mean_batch(situation.case))
    return (knee / model.predict(knee)) / (batch / model.predict(batch))


def _too_few_for_load(situation: Situation, model: StepTimeFit, *, knee: int | None) -> NothingToGain | None:
    """Return why not to lower max-num-seqs: at the knee the engines serve less than now, and a replica may be added.

    The rest would only queue. Evaluated at the knee, not at the proposed value, which a step limit may keep above it.
    """
    observation, served = situation.observation, situation.observation.generated_per_second
    if not room_for_replicas(situation) or isinstance(model, NoFit) or knee is None or served is None:
        return None
    if queues(observation):
        return NothingToGain(
            "requests already wait: a lower max-num-seqs lengthens the queue, another replica makes the batch smaller"
        )
    possible = served * _share_at(knee, model, situation)
    # Just enough on average is too little half of the time, and requests that queue then are late.
    if served <= possible * (1 - HEADROOM):
        return None
    return NothingToGain(
        f"{knee} slots per engine yield {possible:.0f} tokens/s, but {served:.0f} are needed: the rest would queue"
    )


def _pool_too_small_for_load(situation: Situation, *, pool: int) -> NothingToGain | None:
    """Return why not to lower max-num-seqs: the sequences that fit into the KV cache produce fewer tokens than now.

    Only where a replica may be added. Preempted requests are computed twice: if that costs more than it gains, fewer
    slots produce as many tokens; otherwise the rest would queue. Without a model, a smaller batch is assumed to be as
    slow as this one, which is safe, because a replica can be removed without a restart.
    """
    observation, model = situation.observation, step_time(situation.observation)
    made, itl = observation.generated_per_second, number(observation.itl.mean)
    pace = itl if isinstance(model, NoFit) else model.predict(pool)
    if not room_for_replicas(situation) or made is None or not pace:
        return None
    possible = len(observation.engines) * pool / pace
    if made <= possible * (1 - HEADROOM):
        return None
    return NothingToGain(
        f"{pool} slots per engine yield {possible:.0f} tokens/s, but {made:.0f} are needed: the rest would queue"
    )


def fit_to_kv_cache(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs to what the KV cache holds without preemptions, at most halving the current batch."""
    observation = situation.observation
    batch, pool = max(busy_batch(engine) for engine in observation.engines), kv_bound(observation)
    if pool is None:
        return NothingToGain(UNKNOWN_CAPACITY)
    if room_for_replicas(situation) and queues(observation):
        return NothingToGain(
            "requests already wait: a lower max-num-seqs lengthens the queue, another replica relieves the KV cache"
        )
    if (short := _pool_too_small_for_load(situation, pool=pool)) is not None:
        return short
    if _of_fewer_replicas(situation):
        return NothingToGain("the counted preemptions still cover the time before the newest replica")
    if seems_to_become_fewer(observation):
        return NothingToGain("the backlog is draining and will end the preemptions sooner than a change")
    bounds = situation.tuning.max_num_seqs
    step = Limit(name=f"step limit (x{LARGEST_STEP})", low=math.ceil(batch / LARGEST_STEP))
    limits = (step, *_failed_below(situation, batch=batch))
    found = limited(pool, limits=(*limits, *_user(bounds)))
    if (broken := _broken(found, limits=limits)) is not None:
        return broken
    # The max-num-seqs in effect, where it is known: even far above the batch it still allows the preemptions.
    seats = situation.knobs.max_num_seqs or math.ceil(max(m.running for e in observation.engines for m in e.moments))
    if found.value > seats * (1 - NOISE):
        return NothingToGain(f"lowering max-num-seqs {seats} has no benefit (limit: {found.limited_by or 'KV cache'})")
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TPOT,
        reason=f"The KV cache holds {pool} sequences at observed lengths; more run, so some are preempted and "
        "recomputed.",
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def kv_bound(observation: Observation) -> int | None:
    """How many sequences the KV cache of the fullest engine holds at observed lengths, less a margin. None: not known.

    First choice: the measured KV cache usage per running sequence. Second: the cache in tokens over the median
    request (prompt and output), which overestimates a sequence's mean share and so errs on the safe side.
    """
    by_use = [bound for engine in observation.engines if (bound := _by_use(engine)) is not None]
    if by_use:
        return min(by_use)
    prompt, output = observation.prompt_length.quantile(0.5), observation.output_length.quantile(0.5)
    pools = [engine.pool.tokens for engine in observation.engines if engine.pool.tokens is not None]
    if not pools or not isinstance(prompt, Measured) or not isinstance(output, Measured):
        return None
    length = prompt.value + output.value
    return max(1, math.floor(min(pools) * (1 - KV_MARGIN) / length)) if length > 0 else None


def _by_use(engine: EngineWindow) -> int | None:
    busy = [moment for moment in engine.moments if (moment.kv or 0.0) > LEAST_USE and moment.running > 0]
    if not busy:
        return None
    # The 90th percentile of use per sequence: sequences grow in step, the mean of a young batch flatters.
    shares = sorted((moment.kv or 0.0) / moment.running for moment in busy)
    return max(1, math.floor((1 - KV_MARGIN) / shares[min(len(shares) - 1, round(BUSY * len(shares)))]))


def _seats(situation: Situation) -> int:
    seen = max(moment.running for engine in situation.observation.engines for moment in engine.moments)
    return situation.knobs.max_num_seqs or max(1, round(seen))


def _tail(situation: Situation) -> float:
    return tpot_tail(situation.case)


def _knee(model: StepTimeFit, *, situation: Situation, tail: float, headroom: float = HEADROOM) -> int | None:
    """The largest batch within the TPOT objective, less a headroom; None without a model, or if none meets it."""
    if isinstance(model, NoFit):
        return None
    target = situation.targets.tpot.seconds * (1 - headroom)
    return largest_batch_at_quantile(model, target=target, tail=tail, seen_at=mean_batch(situation.case))


def _one_token_each(situation: Situation) -> tuple[Limit, ...]:
    """The engine fails to start if max-num-seqs is above max-num-batched-tokens."""
    tokens = situation.platform.step_tokens
    return () if tokens is None else (Limit(name="--max-num-batched-tokens", high=tokens),)


def _failed_above(situation: Situation, *, seats: int) -> tuple[Limit, ...]:
    """Stay half way below a value that was rolled back, so that neither it nor a similar one is tried again."""
    scarce = (
        each.max_num_seqs
        for each in situation.infeasible
        if each.max_num_seqs is not None
        and finds_memory((each,), with_value(situation.knobs, Knob.MAX_NUM_SEQS, each.max_num_seqs)) != Feasible()
    )
    above = [value for value in (*situation.failed_seats, *scarce) if value > seats]
    return (Limit(name=f"rolled back or declined at {min(above)}", high=(seats + min(above)) // 2),) if above else ()


def _failed_below(situation: Situation, *, batch: float) -> tuple[Limit, ...]:
    below = [value for value in situation.failed_seats if value < batch]
    if not below:
        return ()
    return (Limit(name=f"rolled back or declined at {max(below)}", low=math.ceil((batch + max(below)) / 2)),)


def _broken(found: Limited, *, limits: tuple[Limit, ...]) -> NothingToGain | None:
    """Return why there is no value: the spec's bounds and another limit exclude each other."""
    again = limited(found.value, limits=limits)
    if again.limited_by is None:
        return None
    return NothingToGain(f"{found.limited_by} requires {found.value}, which {again.limited_by} does not allow")


def _user(bounds: IntBounds | None) -> tuple[Limit, ...]:
    if bounds is None:
        return ()
    return (
        Limit(name="spec.tuning.maxNumSeqs.min", low=bounds.min),
        Limit(name="spec.tuning.maxNumSeqs.max", high=bounds.max),
    )
