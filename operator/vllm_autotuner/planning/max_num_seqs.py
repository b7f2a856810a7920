"""Proposals for max-num-seqs, the number of sequences that one engine runs at once (its slots).

Raised as far as KV cache and TPOT allow; lowered when the batch is past the knee, or holds more than the KV cache.
The limits come from the measured replica (`current_replica`). A step goes as far as the model covers, else to twice or
half of what was seen.
Must not: propose a value outside the spec's bounds, or one without a limit derived from data.
"""

import math
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import (
    busy_batch,
    is_late,
    queues,
    reaches_behind,
    seems_to_become_fewer,
    tpot_reading,
    tpot_surely,
)
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.performance.capacity import FARTHEST, Replica, busy_tpot
from vllm_autotuner.performance.kv_capacity import PoolEstimate
from vllm_autotuner.performance.step_time import FEWEST_POINTS
from vllm_autotuner.planning.bounds import with_value
from vllm_autotuner.planning.capped_value import LARGEST_STEP, STEP_LIMIT, Limit, Limited, limited, user_limits
from vllm_autotuner.planning.current_replica import UnknownReplica, rate_each
from vllm_autotuner.planning.feasibility import Feasible, finds_memory
from vllm_autotuner.planning.forecast import longest_length, pool_tokens, pool_with
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = [
    "NO_BOUNDS",
    "PRESENT_UNKNOWN",
    "UNKNOWN_CAPACITY",
    "fit_to_kv_cache",
    "lower_max_num_seqs",
    "not_slow_now",
    "raise_max_num_seqs",
]

UNKNOWN_CAPACITY: Final = "the number of sequences that the KV cache holds is not known: no usage or lengths yet"
HEADROOM: Final = NOISE
"""Share of the TPOT objective that a proposal leaves unused: a batch that just meets it misses it half of the time. Our
choice: the size of the noise that a verdict ignores."""
NO_BOUNDS: Final = "spec.tuning.maxNumSeqs sets no bounds"
PRESENT_UNKNOWN: Final = (
    "the present max-num-seqs is not known and may be higher; set it in the spec or in the engine's flags"
)


def raise_max_num_seqs(situation: Situation) -> Proposal | NothingToGain:
    """Raise max-num-seqs to the smallest of KV cache, TPOT knee, what the model covers and the spec's bound.

    Recommended only where the present value is the engine's default, and not even that where nobody gave the flags: it
    is at least what ran, so more than that may lower it.
    """
    seats, pool = _seats(situation), situation.held
    if pool is None:
        return NothingToGain(UNKNOWN_CAPACITY)
    replica = situation.replica
    # No headroom: only in bursts are all slots in use, or requests would wait.
    knee = _largest(situation, headroom=0.0)
    if isinstance(replica, Replica) and knee is None:
        return NothingToGain("the step-time model predicts a TPOT over the objective even for a single sequence")
    limits = (
        Limit(name="KV cache at observed lengths", high=pool),
        *_knee_limit(replica, knee),
        _step_up(situation, seats=seats),
        *_one_token_each(situation),
        *_failed_above(situation, seats=seats),
    )
    found = _limited(max(pool, seats), situation, limits=limits)
    if isinstance(found, NothingToGain):
        return found
    if found.value < math.ceil(seats * (1 + NOISE)):
        present = f"above the {seats} that ran" if situation.knobs.max_num_seqs is None else f"{seats}"
        return NothingToGain(f"raising max-num-seqs {present} has no benefit (limit: {found.limited_by or 'KV cache'})")
    cache, longest = pool_with(situation, max_num_seqs=found.value), longest_length(situation)
    if isinstance(cache, PoolEstimate) and longest is not None and cache.tokens < longest:
        return NothingToGain(
            f"max-num-seqs {found.value} leaves {cache.tokens:.0f} tokens to the KV cache: fewer than max-model-len "
            f"{longest}, so the engine would not start"
        )
    if situation.knobs.max_num_seqs is None and not situation.flags_known:
        unknown = "the present value is not known, and may be higher; pass the engine's flags with --engine-args"
        return NothingToGain(f"--max-num-seqs={found.value}: {unknown}")
    queue = f"All {seats} slots (max-num-seqs) are in use while requests wait"
    # A line of this service, by whose interval TPOT is in time at the new value as well.
    known = isinstance(replica, Replica) and replica.step.points >= FEWEST_POINTS
    sure = known and found.value <= (_largest(situation, surely=True) or 0)
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TTFT,
        reason=f"{queue if queues(situation.observation) else f'max-num-seqs is {seats}'}; the KV cache has room for "
        f"{pool} sequences.",
        confidence=Confidence.HIGH if sure and situation.knobs.max_num_seqs is not None else Confidence.MEDIUM,
        limited_by=found.limited_by or "KV cache at observed lengths",
        recommend_only=_why_not_raised(situation),
    )


def _why_not_raised(situation: Situation) -> str:
    """Return why a raise may only be recommended; empty if it may be applied."""
    if situation.knobs.max_num_seqs is None:
        return PRESENT_UNKNOWN
    return "" if situation.tuning.max_num_seqs is not None else NO_BOUNDS


def lower_max_num_seqs(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs to the TPOT knee; no further than to half of the batch without a model that covers it."""
    if (why := not_slow_now(situation)) is not None:
        return why
    observation = situation.observation
    batch, replica = max(busy_batch(engine) for engine in observation.engines), situation.replica
    knee = _largest(situation)
    if isinstance(replica, Replica) and knee is None:
        return NothingToGain("TPOT misses its objective even for a single sequence: a smaller batch does not help")
    # The batch may be empty while hysteresis still keeps the class.
    half = max(1, math.ceil(batch / LARGEST_STEP))
    limits = (_step_down(replica, half=half), *_failed_below(situation, batch=batch))
    found = _limited(knee if knee is not None else half, situation, limits=limits)
    if isinstance(found, NothingToGain):
        return found
    if found.value > batch * (1 - NOISE):
        return NothingToGain(
            f"lowering max-num-seqs below batch size {batch:.0f} has no benefit (limit: {found.limited_by or 'knee'})"
        )
    waits = _replicas_first(situation) or _would_wait(situation, slots=found.value)
    if waits is not None:
        return waits
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        target=ChangeTarget.TPOT,
        reason=f"TPOT misses its objective at batch size {batch:.0f}; "
        + (f"batch size {knee} meets it." if knee is not None else "halving it shows whether a smaller one meets it."),
        confidence=Confidence.HIGH if _seen(replica, found.value) else Confidence.LOW,
        limited_by=found.limited_by,
        recommend_only="" if situation.tuning.max_num_seqs is not None else NO_BOUNDS,
    )


def fit_to_kv_cache(situation: Situation) -> Proposal | NothingToGain:
    """Lower max-num-seqs to what the KV cache then holds without preemptions, at most halving the current batch.

    The memory of the slots that go becomes KV cache: of 1024 slots beside a small cache more than it holds now.
    """
    observation = situation.observation
    batch, now = max(busy_batch(engine) for engine in observation.engines), situation.held
    if now is None:
        return NothingToGain(UNKNOWN_CAPACITY)
    if _of_fewer_replicas(situation):
        return NothingToGain("the counted preemptions still cover the time before the newest replica")
    if seems_to_become_fewer(observation):
        return NothingToGain("the backlog is draining and will end the preemptions sooner than a change")
    # With fewer slots requests wait for one, which is too late as well.
    if (in_time := not_slow_now(situation)) is not None and not queues(observation):
        return in_time
    pool = _held_with_as_many_slots(situation, held=now)
    step = Limit(name=STEP_LIMIT, low=math.ceil(batch / LARGEST_STEP))
    found = _limited(pool, situation, limits=(step, *_failed_below(situation, batch=batch)))
    if isinstance(found, NothingToGain):
        return found
    larger = min(found.value, pool) > now * (1 + NOISE)
    # The max-num-seqs in effect, where it is known: even far above the batch it still allows the preemptions.
    seats = _seats(situation)
    if found.value > seats * (1 - NOISE):
        return NothingToGain(f"lowering max-num-seqs {seats} has no benefit (limit: {found.limited_by or 'KV cache'})")
    waits = _replicas_first(situation) or _would_fall_behind(situation, slots=found.value)
    if waits is not None:
        return waits
    if in_time is not None and not larger:
        return NothingToGain("tokens come in time, and with fewer slots the KV cache would hold no more sequences")
    return Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=situation.knobs.max_num_seqs,
        value=found.value,
        # What is computed twice delays tokens, or only those who wait behind it.
        target=ChangeTarget.TPOT if in_time is None else ChangeTarget.TTFT,
        # What slots take is inferred: where the value counts on it, the pods of its trial must show it.
        kv_cache_tokens=pool_tokens(observation) if larger else None,
        reason=f"The KV cache holds {now} sequences at observed lengths; more run, so some are preempted and "
        "recomputed." + (f" With the memory of the slots that go it holds {pool}." if larger else ""),
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by,
        recommend_only="" if situation.tuning.max_num_seqs is not None else NO_BOUNDS,
    )


def _held_with_as_many_slots(situation: Situation, *, held: int) -> int:
    """The most sequences for which the cache of an engine with as many slots has room; `held` where it is not known."""
    most, tokens = held, pool_tokens(situation.observation)
    # The first is the cache beside too few slots, so its slots take a little from the second.
    for _ in range(2):
        cache = pool_with(situation, max_num_seqs=most)
        if not isinstance(cache, PoolEstimate) or not tokens:
            return held
        most = max(held, math.floor(held * cache.tokens / tokens))
    return most


def _largest(situation: Situation, *, surely: bool = False, headroom: float = HEADROOM) -> int | None:
    """The largest batch whose TPOT at its quantile meets the objective, likely or surely.

    None without a model, or if not even a single sequence meets it.
    """
    replica = situation.replica
    if isinstance(replica, UnknownReplica):
        return None
    target = situation.targets.tpot.seconds * (1 - headroom)
    low, high = 0, _farthest(replica) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if busy_tpot(replica, middle, surely=surely) <= target else (low, middle)
    return low or None


def _farthest(replica: Replica) -> int:
    return math.floor(FARTHEST * max(1.0, replica.step.high))


def _knee_limit(replica: Replica | UnknownReplica, knee: int | None) -> tuple[Limit, ...]:
    """Only a knee that is one: where the model ends, TPOT is still in time."""
    if isinstance(replica, UnknownReplica) or knee is None or knee >= _farthest(replica):
        return ()
    return (Limit(name="TPOT knee", high=knee),)


def _step_up(situation: Situation, *, seats: int) -> Limit:
    """The largest value that one step may go to: twice the present one, or as far as TPOT is surely in time."""
    twice, surely = seats * LARGEST_STEP, _largest(situation, surely=True)
    if surely is not None and surely > twice:
        return Limit(name="what the step-time model covers", high=surely)
    return Limit(name=STEP_LIMIT, high=twice)


def _step_down(replica: Replica | UnknownReplica, *, half: int) -> Limit:
    """The smallest value that one step may go to: half of the batch, or the smallest batch that was seen."""
    if isinstance(replica, Replica) and _seen(replica, half):
        return Limit(name="the smallest batch seen", low=math.ceil(replica.step.low))
    return Limit(name=STEP_LIMIT, low=half)


def _seen(replica: Replica | UnknownReplica, batch: int) -> bool:
    return isinstance(replica, Replica) and batch >= replica.step.low


def not_slow_now(situation: Situation) -> NothingToGain | None:
    """Return why a late TPOT gives no reason to act: it is over, within noise, or from before a scale-out.

    A class remains named by its hysteresis after TPOT has recovered. And evaluated every few seconds, a quantile at its
    objective exceeds it now and then by chance.
    """
    case, target = situation.case, situation.targets.tpot
    for reading, why in (
        (tpot_reading(case), "TPOT meets its objective"),
        (tpot_surely(case), "TPOT is over its objective only within statistical noise"),
    ):
        if isinstance(reading, Measured) and not is_late(reading, target):
            return NothingToGain(why)
    if _of_fewer_replicas(situation):
        return NothingToGain("the measured TPOT still covers the time before the newest replica")
    return None


def _of_fewer_replicas(situation: Situation) -> bool:
    """Whether the measurements still cover the time before the newest replica became ready."""
    since = situation.replicas_since
    return since is not None and situation.replicas > 1 and reaches_behind(situation.case, since.timestamp())


def _replicas_first(situation: Situation) -> NothingToGain | None:
    """Return why not to lower max-num-seqs: requests wait, and a replica may be added."""
    scaling = situation.scaling
    if scaling is None or situation.replicas >= scaling.max_replicas or not queues(situation.observation):
        return None
    return NothingToGain(
        "requests already wait: a lower max-num-seqs lengthens the queue, another replica makes the batch smaller"
    )


def _would_wait(situation: Situation, *, slots: int) -> NothingToGain | None:
    """Return why not to lower max-num-seqs: what is in the system now would wait for too long.

    A balance: what does not fit into the slots waits, and leaves at the rate at which requests finish then.
    """
    engines, replica = situation.observation.engines, situation.replica
    if isinstance(replica, UnknownReplica):
        return None
    if (behind := _would_fall_behind(situation, slots=slots)) is not None:
        return behind
    there = sum(max(moment.running + moment.waiting for moment in engine.moments) for engine in engines)
    left, finishing = there - slots * len(engines), replica.rate(slots) * len(engines)
    wait, limit = max(0.0, left) / finishing, situation.targets.ttft.seconds
    if wait <= limit:
        return None
    return NothingToGain(
        f"with max-num-seqs {slots} requests would wait {wait:.1f} s for a slot, and TTFT may be {limit:g} s"
    )


def _would_fall_behind(situation: Situation, *, slots: int) -> NothingToGain | None:
    """Return why not to lower max-num-seqs: fewer requests would finish than come."""
    replica = situation.replica
    if isinstance(replica, UnknownReplica):
        return None
    rate = rate_each(situation.observation) or 0.0
    if rate <= replica.rate(slots) * (1 + NOISE):
        return None
    return NothingToGain(
        f"with max-num-seqs {slots} a replica finishes {replica.rate(slots):.2f} requests/s, and {rate:.2f} come"
    )


def _seats(situation: Situation) -> int:
    seen = max(moment.running for engine in situation.observation.engines for moment in engine.moments)
    return situation.knobs.max_num_seqs or max(1, round(seen))


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


def _limited(wanted: int, situation: Situation, *, limits: tuple[Limit, ...]) -> Limited | NothingToGain:
    """Apply the limits and then the spec's bounds; there is no value where the two exclude each other."""
    found = limited(wanted, limits=(*limits, *user_limits("maxNumSeqs", situation.tuning.max_num_seqs)))
    again = limited(found.value, limits=limits)
    if again.limited_by is None:
        return found
    return NothingToGain(f"{found.limited_by} requires {found.value}, which {again.limited_by} does not allow")
