"""max-num-seqs: how many sequences one engine should run at once.

Up when the seats are the limit: to what the load, the KV pool and the knee allow. Down when the batch is past the knee.
The bounds come from observed data: a sequence's share of the pool is what it is seen to use, not what a table says.
Must not: propose past one step, past the bounds of the user, or without a bound derived from data.
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
    "fit_seats_to_pool",
    "kv_bound",
    "lower_seats",
    "not_slow_now",
    "raise_seats",
    "replicas_at_knee",
]

KV_MARGIN: Final = 0.1
"""Share of the pool left free for sequences that grow in step. Our choice; F3 calls a service healthy below 90 %."""

LATELY: Final = NEWEST_STRETCHES[0]
"""Seconds that count as lately at most: the shortest stretch that a change of the load is recognised by."""
LATELY_WINDOWS: Final = 10
"""Windows that count as lately at most: as many as a verdict looks at. What lasted so long lasts as long as a trial."""

LEAST_USE: Final = 1e-6
"""Share of the pool below which a reading is no use of it: one block of the largest pools is a multiple of that."""


@dataclass(frozen=True, slots=True)
class NothingToGain:
    """No proposal, and this is why: the explanation prints it."""

    why: str


def raise_seats(situation: Situation) -> Proposal | NothingToGain:
    """More seats: the smallest of demand, step limit, KV bound, knee and the user's bound."""
    observation, seats = situation.observation, _seats(situation)
    pool = kv_bound(observation)
    if pool is None:
        return NothingToGain("how many sequences the KV cache holds is not known yet: no usage and no lengths")
    model, tail = step_time(observation), _tail(situation)
    knee = _knee(model, situation=situation, tail=tail)
    if isinstance(model, StepTime) and knee is None:
        return NothingToGain("by the step-time model tokens are too slow even for a single sequence")
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
        return NothingToGain(f"max-num-seqs {seats} cannot usefully be raised: {found.limited_by or 'no demand'}")
    # What was seen ends at the seats there are: a model that never saw a larger batch is no more than plausible.
    known = isinstance(model, StepTime) and model.covers(found.value) and situation.knobs.max_num_seqs is not None
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TTFT,
        reason=f"All {seats} seats are taken while requests wait; the KV cache has room for {pool} sequences.",
        confidence=Confidence.HIGH if known else Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def lower_seats(situation: Situation) -> Proposal | NothingToGain:
    """Fewer seats: down to the knee, at most halving the batch that runs now."""
    observation = situation.observation
    if (why := not_slow_now(situation)) is not None:
        return why
    if _in_time_lately(situation):
        return NothingToGain("tokens came in time over the last minutes: a trial takes longer than this moment lasts")
    batch = max(busy_batch(engine) for engine in observation.engines)
    model, tail = step_time(observation), _tail(situation)
    knee = _knee(model, situation=situation, tail=tail)
    if isinstance(model, StepTime) and knee is None:
        return NothingToGain("tokens are too slow even for a single sequence: a smaller batch does not help")
    # Nothing may run any more while the class is still held.
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
            f"max-num-seqs cannot usefully be lowered below a batch of {batch:.0f}: {found.limited_by or 'the knee'}"
        )
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TPOT,
        reason=f"At a batch of {batch:.0f} tokens come slower than the objective; "
        + (f"{knee} meets it." if knee is not None else "half of it shows whether a smaller one meets it."),
        confidence=Confidence.HIGH if isinstance(model, StepTime) and model.covers(found.value) else Confidence.LOW,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def knee_of(situation: Situation) -> int | None:
    """The largest batch inside the TPOT objective; None without a model, and when not even one sequence meets it."""
    model = step_time(situation.observation)
    return _knee(model, situation=situation, tail=_tail(situation))


def met_before(situation: Situation) -> bool:
    """Whether, without a model, some window met the TPOT objective: then fewer on each engine can again.

    Longer prompts leave no line for a while: one through both mixes falls, and the new windows lie too close together.
    """
    steps, target = situation.observation.steps, situation.targets.tpot.seconds * (1 - HEADROOM)
    return isinstance(step_time(situation.observation), NoFit) and any(
        point.itl * _tail(situation) <= target for point in steps
    )


def not_slow_now(situation: Situation) -> NothingToGain | None:
    """Refuse to act on a TPOT of before, or of chance: a class outlasts it by its hysteresis, a reason to act does not.

    Asked every few seconds, a quantile that lies at its objective is above it some time.
    """
    case, target = situation.case, situation.targets.tpot
    for reading, why in (
        (tpot_reading(case), "TPOT is inside its objective again"),
        (tpot_surely(case), "TPOT misses its objective by no more than chance"),
    ):
        if isinstance(reading, Measured) and not is_late(reading, target):
            return NothingToGain(why)
    if _of_fewer_replicas(situation):
        return NothingToGain("the TPOT that is measured is of fewer replicas still")
    return None


def _in_time_lately(situation: Situation) -> bool:
    """Whether most tokens met the objective over the last minutes, the present moment among them.

    A burst of half a minute is worth no restart: its trial lasts for many, and finds nothing to improve. Most, and not
    their mean: however slow a burst was it is over, and however little a lasting knee is passed it stays.
    """
    observation, target, tail = situation.observation, situation.targets.tpot.seconds, _tail(situation)
    since = observation.at - min(LATELY, LATELY_WINDOWS * observation.window)
    lately = [point for point in observation.steps if point.time is not None and point.time > since]
    late = sum(point.tokens for point in lately if point.itl * tail > target)
    return bool(lately) and late < sum(point.tokens for point in lately) / 2


def _of_fewer_replicas(situation: Situation) -> bool:
    """Whether what is measured is of the time before the newest replica: it may be over."""
    since, observation = situation.replicas_since, situation.observation
    return since is not None and situation.replicas > 1 and reaches_behind(observation, since.timestamp())


def room_for_replicas(situation: Situation) -> bool:
    """Whether the user lets us add a replica."""
    scaling = situation.scaling
    return scaling is not None and situation.replicas < scaling.max_replicas


def replicas_at_knee(situation: Situation) -> int:
    """How many replicas serve what comes now with a batch that meets the TPOT objective; as many as do if unknown.

    Whole ones: the part of an engine that is left over is the margin, and no other comes on top. Where tokens are
    hardly faster in a small batch a margin on TPOT takes half as many engines again (closed loop, bad-upgrade), and one
    that turns out to be missing is soon asked for. Where clearly more comes than goes, what is served says too little:
    it piles up, and every minute of that is late.
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
    """How many pods serve what is served now. One that is still starting has been asked for, and serves nothing."""
    return len({engine.key.pod for engine in observation.engines}) + len(observation.silent)


def _share_at(knee: int, model: StepTime, situation: Situation) -> float:
    """Tokens per second of engines at the knee, of those that they make now.

    A ratio by the model, so that an error of its level (another mix, a slower engine) does not matter.
    """
    batch = max(1.0, mean_batch(situation.case))
    return (knee / model.predict(knee)) / (batch / model.predict(batch))


def _too_few_for_load(situation: Situation, model: StepTimeFit, *, knee: int | None) -> NothingToGain | None:
    """Refuse to lower seats where the knee serves less than is served now and a replica may be added.

    The rest would only queue. Asked of the knee and not of the value: a step limit may keep that above the objective.
    """
    observation, served = situation.observation, situation.observation.generated_per_second
    if not room_for_replicas(situation) or isinstance(model, NoFit) or knee is None or served is None:
        return None
    if queues(observation):
        return NothingToGain("requests wait already: fewer seats lengthen the queue, a replica makes the batch smaller")
    possible = served * _share_at(knee, model, situation)
    # Just enough on average is too little half of the time, and what queues then is late.
    if served <= possible * (1 - HEADROOM):
        return None
    return NothingToGain(
        f"{knee} seats an engine make {possible:.0f} tokens/s where {served:.0f} are asked for: the rest would queue"
    )


def _pool_too_small_for_load(situation: Situation, *, pool: int) -> NothingToGain | None:
    """Refuse to lower seats where what the pool holds makes fewer tokens than are made now and a replica may be added.

    Evictions are work done twice: where they take more than they bring, fewer seats make as many tokens. Where they do
    not, what would no longer run would queue. Without a model a smaller batch is as slow as this one: the safe side,
    as a replica goes again without a restart.
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
        f"{pool} seats an engine make {possible:.0f} tokens/s where {made:.0f} are asked for: the rest would queue"
    )


def fit_seats_to_pool(situation: Situation) -> Proposal | NothingToGain:
    """Fewer seats: what the pool holds without evicting, at most halving the batch that runs now."""
    observation = situation.observation
    batch, pool = max(busy_batch(engine) for engine in observation.engines), kv_bound(observation)
    if pool is None:
        return NothingToGain("how many sequences the KV cache holds is not known yet: no usage and no lengths")
    if room_for_replicas(situation) and queues(observation):
        return NothingToGain("requests wait already: fewer seats lengthen the queue, a replica takes load off the pool")
    if (short := _pool_too_small_for_load(situation, pool=pool)) is not None:
        return short
    if _of_fewer_replicas(situation):
        return NothingToGain("the evictions that are counted are of fewer replicas still")
    if seems_to_become_fewer(observation):
        return NothingToGain("what has piled up is being worked off: its evictions end with it, sooner than a change")
    bounds = situation.tuning.max_num_seqs
    step = Limit(name=f"step limit (x{LARGEST_STEP})", low=math.ceil(batch / LARGEST_STEP))
    limits = (step, *_failed_below(situation, batch=batch))
    found = limited(pool, limits=(*limits, *_user(bounds)))
    if (broken := _broken(found, limits=limits)) is not None:
        return broken
    # The cap that is in effect, where it is known: one far above the batch allows every eviction that is seen.
    seats = situation.knobs.max_num_seqs or math.ceil(max(m.running for e in observation.engines for m in e.moments))
    if found.value > seats * (1 - NOISE):
        return NothingToGain(f"max-num-seqs {seats} cannot usefully be lowered: {found.limited_by or 'the KV cache'}")
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TPOT,
        reason=f"The KV cache holds {pool} sequences at observed lengths; more run, are evicted and computed again.",
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if bounds is not None else "spec.tuning.maxNumSeqs sets no bounds",
    )


def kv_bound(observation: Observation) -> int | None:
    """How many sequences the pool of the fullest engine holds at observed lengths, less a margin. None: not known.

    First choice: what running sequences are seen to use of the pool. Second: the pool in tokens over the median
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
    """The largest batch inside the TPOT objective, less a headroom; None without a model, and when none meets it."""
    if isinstance(model, NoFit):
        return None
    target = situation.targets.tpot.seconds * (1 - headroom)
    return largest_batch_at_quantile(model, target=target, tail=tail, seen_at=mean_batch(situation.case))


def _one_token_each(situation: Situation) -> tuple[Limit, ...]:
    """The engine refuses to start with more seats than tokens in a step."""
    tokens = situation.platform.step_tokens
    return () if tokens is None else (Limit(name="--max-num-batched-tokens", high=tokens),)


def _failed_above(situation: Situation, *, seats: int) -> tuple[Limit, ...]:
    """Stay clearly below what was rolled back before: half way, so that neither it nor its neighbour is tried again."""
    scarce = (
        each.max_num_seqs
        for each in situation.infeasible
        if each.max_num_seqs is not None
        and finds_memory((each,), with_value(situation.knobs, Knob.MAX_NUM_SEQS, each.max_num_seqs)) != Feasible()
    )
    above = [value for value in (*situation.failed_seats, *scarce) if value > seats]
    return (Limit(name=f"taken back or declined at {min(above)}", high=(seats + min(above)) // 2),) if above else ()


def _failed_below(situation: Situation, *, batch: float) -> tuple[Limit, ...]:
    below = [value for value in situation.failed_seats if value < batch]
    if not below:
        return ()
    return (Limit(name=f"taken back or declined at {max(below)}", low=math.ceil((batch + max(below)) / 2)),)


def _broken(found: Limited, *, limits: tuple[Limit, ...]) -> NothingToGain | None:
    """Refuse a value that the user's bounds have pushed past a limit: between the two there is nothing to propose."""
    again = limited(found.value, limits=limits)
    if again.limited_by is None:
        return None
    return NothingToGain(f"{found.limited_by} asks for {found.value}, which {again.limited_by} does not allow")


def _user(bounds: IntBounds | None) -> tuple[Limit, ...]:
    if bounds is None:
        return ()
    return (
        Limit(name="spec.tuning.maxNumSeqs.min", low=bounds.min),
        Limit(name="spec.tuning.maxNumSeqs.max", high=bounds.max),
    )
