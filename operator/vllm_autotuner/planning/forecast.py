"""Forecasts a configuration under the load of now: what it serves, what it needs, and what users will see.

One forecast for every knob, from the capacity model, so that candidates can be compared, and the current configuration
with them. Must not: choose. A number that its models do not give is None.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.observation.noise import DEVIATIONS, NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.capacity import Replica, capacity, load_at, replicas_for
from vllm_autotuner.performance.kv_capacity import Pool, PoolEstimate, PoolForecast, UnknownPool, pool_after
from vllm_autotuner.performance.step_time import NEWEST_STRETCHES, NoFit, StepTime
from vllm_autotuner.performance.tensor_parallel import PREFILL_SCALING, at_degree
from vllm_autotuner.planning.current_replica import (
    UnknownReplica,
    highest_mean,
    limits_of,
)
from vllm_autotuner.planning.proposal import Predicted
from vllm_autotuner.planning.situation import Situation

__all__ = [
    "LEAST_SEEN",
    "Outlook",
    "Setting",
    "current_setting",
    "exported_type",
    "is_known_for_long",
    "longest_length",
    "outlook",
    "pool_tokens",
    "pool_with",
    "predicted",
    "setting_with",
]

MEASURED: Final = ("s", "tokens/s")
"""Units of what a verdict will compare: worth showing where it stays, too."""
DEGREE_ERROR: Final = 0.06
"""Relative error of a step time that was foretold for another tensor-parallel size: the largest on the measured curves
of three models."""
LEAST_SEEN: Final = 0.8
"""Share of a time that must have been observed under load before GPUs are given back by it, as replicas or by a change:
less is an outage or a restart, not low load, and one can wait for it. Our choice, as for `Sustained`."""
UTILIZATION: Final = 0.9
"""Stands on both sides of every comparison here, as we never change it: no result depends on it."""

ReplicaModel: TypeAlias = Replica | UnknownReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One configuration, as far as a forecast looks at it."""

    replicas: int
    degree: int
    replica: ReplicaModel
    pool: float | None
    """Tokens that the cache of one replica holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a setting does; seconds at the objectives' quantiles, output tokens per second of all replicas."""

    gpus: int
    """Of the setting, with the replicas of now."""
    pool: float | None = None
    held: float | None = None
    tpot: float | None = None
    ttft: float | None = None
    """None where a queue would grow without end, too."""
    tokens_per_second: float | None = None
    goodput: float | None = None
    """Output tokens per second within every objective."""
    error: float = 0.0
    """Relative error of the fit behind it; 0 without one."""
    capacity: float | None = None
    """Requests per second that one replica serves within the objectives."""
    limited_by: str = ""
    """What ends that capacity."""
    wanted: int | None = None
    """Replicas that serve the load within the objectives, whatever the user's bounds are; None if no number does."""
    needed: int | None = None
    """Replicas that serve the load within the objectives, within the user's bounds; None if no number does."""
    needed_gpus: int | None = None
    surely_enough: bool = False
    """Whether so many serve the load by the low end of their capacity as well."""
    missing: float | None = None
    """Share of the requests (0..1) beyond what so many replicas serve within the objectives."""


def is_known_for_long(situation: Situation) -> bool:
    """Whether most of the time that `Situation.planned_rate` looks back on was seen under load, and it is the load of
    all that is remembered: enough to save GPUs by.

    A load that has just fallen may come back, and what saves GPUs is taken back after hours.
    """
    seen = situation.observation
    if len(situation.made) * seen.window < LEAST_SEEN * NEWEST_STRETCHES[1]:
        return False
    ever = highest_mean(seen.tokens_by_window(over=math.inf), window=seen.window)
    return ever <= situation.busiest * (1 + DEVIATIONS * NOISE)


def current_setting(situation: Situation) -> Setting:
    """Return what runs now."""
    return Setting(
        replicas=max(1, situation.replicas),
        degree=situation.knobs.tensor_parallel_size or 1,
        replica=situation.replica,
        pool=pool_tokens(situation.observation),
    )


def setting_with(now: Setting, knob: Knob, value: int | str, *, situation: Situation) -> Setting:
    """Return `now` with one knob moved: what the cache and the step become by it, as far as that is known."""
    match knob:
        case Knob.REPLICAS:
            return replace(now, replicas=int(value))
        case Knob.MAX_MODEL_LEN:
            # vLLM's V1 reserves nothing by the longest length: the pool stays, only the worst case is bounded.
            return now
        case Knob.MAX_NUM_SEQS:
            if isinstance(now.replica, UnknownReplica):
                return now
            capped = replace(now, replica=replace(now.replica, seats=int(value)))
            pool = pool_with(situation, max_num_seqs=int(value))
            return _with_pool(capped, pool) if isinstance(pool, PoolEstimate) else capped
        case Knob.KV_CACHE_DTYPE:
            return _with_pool(now, pool_with(situation, kv_cache_dtype=str(value)))
        case Knob.TENSOR_PARALLEL_SIZE:
            degree = int(value)
            # As if no slots went with it: what their memory is worth is inferred, and a trial need not show it.
            moved = _with_pool(now, pool_with(situation, degree=degree))
            return replace(moved, degree=degree, replica=_at_degree(moved.replica, now, degree, situation=situation))


def outlook(setting: Setting, *, situation: Situation, runs: bool = False, too_few: int = 0) -> Outlook:
    """Return what a setting does under the load of now.

    `runs`: it is the one that runs now. Then the replicas that it needs are the likely number: what another one needs
    is by the low end of its capacity, so that a change has to be surely better, and the way back is not one, too.
    `too_few`: so many replicas of what runs were seen to be too few at such a load. As many requests per second of
    capacity, by whatever setting, are not enough either.
    """
    cores, rate = situation.cores, situation.planned_rate
    gpus_each = setting.degree * cores
    gpus = setting.replicas * gpus_each
    replica = setting.replica
    if isinstance(replica, UnknownReplica) or not rate:
        return Outlook(gpus=gpus, pool=setting.pool)
    limits = limits_of(situation.targets)
    known = capacity(replica, limits=limits).times(cores)
    load = load_at(replica, rate / (setting.replicas * cores), limits=limits)
    served = known.rate if runs else known.low
    wanted = replicas_for(rate, served)
    if wanted is not None and too_few and isinstance(situation.replica, Replica):
        failed = too_few * capacity(situation.replica, limits=limits).times(cores).rate
        wanted = max(wanted, (too_few if runs else math.floor(failed / served)) + 1)
    needed = _needed(wanted, setting=setting, situation=situation)
    serves = (setting.replicas if needed is None else needed) * known.rate
    return Outlook(
        gpus=gpus,
        pool=setting.pool,
        held=replica.held,
        tpot=load.tpot,
        ttft=load.ttft if math.isfinite(load.ttft) and replica.first is not None else None,
        tokens_per_second=load.rate * setting.replicas * cores * replica.output,
        goodput=min(rate, serves) * replica.output,
        error=replica.step.error,
        capacity=known.rate,
        limited_by=known.limited_by,
        wanted=wanted,
        needed=needed,
        needed_gpus=None if needed is None else needed * gpus_each,
        surely_enough=needed is not None and rate <= needed * known.low,
        missing=max(0.0, 1 - serves / rate),
    )


def predicted(before: Outlook, after: Outlook) -> tuple[Predicted, ...]:
    """Return the effects that are known, most important first; of memory and GPUs only what changes."""
    # Where the operator does not change the replicas, what is needed is not known apart from what is used.
    needs = (before.needed_gpus, after.needed_gpus) != (before.gpus, after.gpus)
    rows = (
        ("TTFT", "s", before.ttft, after.ttft),
        ("TPOT", "s", before.tpot, after.tpot),
        ("output tokens per second", "tokens/s", before.tokens_per_second, after.tokens_per_second),
        ("goodput", "tokens/s", before.goodput, after.goodput),
        ("capacity of a replica", "requests/s", before.capacity, after.capacity),
        ("KV cache", "tokens", before.pool, after.pool),
        ("sequences that the KV cache holds", "sequences", before.held, after.held),
        ("GPUs", "GPUs", float(before.gpus), float(after.gpus)),
        ("GPUs that the load needs", "GPUs", _float(before.needed_gpus), _float(after.needed_gpus) if needs else None),
    )
    return tuple(
        Predicted(name=name, unit=unit, current=old, predicted=new)
        for name, unit, old, new in rows
        if new is not None and (unit in MEASURED or old != new)
    )


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _needed(replicas: int | None, *, setting: Setting, situation: Situation) -> int | None:
    """Replicas within the user's bounds; the maximum where even that is too few, as `missing` says.

    Those of the setting where the operator does not change them.
    """
    scaling = situation.scaling
    if scaling is None:
        return setting.replicas
    if replicas is None:
        return None
    return max(scaling.min_replicas, min(scaling.max_replicas, replicas))


def longest_length(situation: Situation) -> int | None:
    """Return max-model-len as it is set, else as the engine exports it; None if neither is known."""
    exported = (each.pool.max_model_len for each in situation.observation.engines)
    return situation.knobs.max_model_len or next((each for each in exported if each is not None), None)


def pool_with(
    situation: Situation,
    *,
    degree: int | None = None,
    kv_cache_dtype: str | None = None,
    max_num_seqs: int | None = None,
) -> PoolForecast:
    """Return the pool of one replica with one of these moved, carried over from the one that is exported."""
    knobs, platform = situation.knobs, situation.platform
    tokens = pool_tokens(situation.observation)
    if tokens is None:
        return UnknownPool("the engine does not export the size of its KV cache")
    memory = max_num_seqs is not None or degree is not None
    if memory and any(engine.pool.given for engine in situation.observation.engines):
        return UnknownPool("the engine's flags set the size of its KV cache, whatever memory is left")
    now = Pool(
        tokens=tokens,
        tensor_parallel_size=knobs.tensor_parallel_size or 1,
        kv_cache_dtype=knobs.kv_cache_dtype or exported_type(situation.observation),
        gpu_memory_utilization=UTILIZATION,
        max_num_seqs=situation.slots,
    )
    then = Pool(
        tokens=tokens,
        tensor_parallel_size=degree or now.tensor_parallel_size,
        kv_cache_dtype=kv_cache_dtype or now.kv_cache_dtype,
        gpu_memory_utilization=UTILIZATION,
        max_num_seqs=max_num_seqs or now.max_num_seqs,
    )
    if degree is not None and platform.bytes_per_weight is None:
        return UnknownPool("the weight type is not known, nor is the KV cache at another tensor-parallel size")
    bytes_per_weight = 2.0 if platform.bytes_per_weight is None else platform.bytes_per_weight
    return pool_after(now, then, shape=platform.shape, gpu=platform.gpu, bytes_per_weight=bytes_per_weight)


def _with_pool(now: Setting, pool: PoolForecast) -> Setting:
    if not isinstance(pool, PoolEstimate) or not now.pool:
        return replace(now, pool=None, replica=UnknownReplica("the KV cache of this configuration is not known"))
    replica = now.replica
    if isinstance(replica, Replica) and replica.held is not None:
        # What sequences are seen to hold stays: only the pool they hold it of grows.
        replica = replace(replica, held=replica.held * pool.tokens / now.pool)
    return replace(now, pool=pool.tokens, replica=replica)


def _at_degree(moved: ReplicaModel, now: Setting, degree: int, *, situation: Situation) -> ReplicaModel:
    if isinstance(moved, UnknownReplica):
        return moved
    platform, seen = situation.platform, situation.observation
    prompt = number(seen.recent_prompt_length.mean) or number(seen.prompt_length.quantile(0.5))
    if prompt is None:
        return UnknownReplica("request lengths are not known")
    carried = partial(
        at_degree,
        degree=now.degree,
        wanted=degree,
        shape=platform.shape,
        gpu=platform.gpu,
        bytes_per_weight=platform.bytes_per_weight,
        context=prompt + moved.output / 2,
    )
    # The floor of a line that goes through zero is carried over as its base is.
    line, floor = carried(moved.step), carried(replace(moved.step, base=moved.empty))
    if isinstance(line, NoFit):
        return UnknownReplica(line.why)
    assert isinstance(floor, StepTime), "it is unknown for what would make the line unknown"
    # One figure for all that carries over: how far measured curves at another degree were from what is foretold.
    line = replace(line, points=1, error=max(line.error, DEGREE_ERROR))
    faster = (now.degree / degree) ** PREFILL_SCALING
    first = moved.first
    if first is not None:
        # Above 1 where the prompts of now would not be computed in time.
        prompts = first.prompts * faster
        first = replace(first, seconds=first.seconds * faster, prompts=prompts, alone=first.alone * faster)
    return replace(moved, step=line, empty=floor.base, first=first)


def pool_tokens(seen: Observation) -> float | None:
    """Return the tokens that the KV cache of a replica holds, of the smallest one; None if none is exported."""
    known = [engine.pool.tokens for engine in seen.engines if engine.pool.tokens]
    return float(min(known)) if known else None


def exported_type(seen: Observation) -> str | None:
    """Return the data type of the KV cache, as the engine exports it; None if it does not."""
    return next((engine.pool.cache_dtype for engine in seen.engines if engine.pool.cache_dtype is not None), None)
