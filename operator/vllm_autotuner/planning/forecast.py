"""Forecasts a configuration under the current demand: TPOT, TTFT, throughput, KV cache capacity and GPUs.

One forecast for every knob, so that candidates can be compared, and the current configuration with them.
Must not: choose. A number that its models do not give is None, and a fit that is missing takes its numbers with it.
The queue is a balance, not a process: what does not fit into the running batches waits, and leaves at the rate at which
requests finish. Enough to rank, and to tell a queue that ends from one that stays.
"""

from dataclasses import dataclass, replace
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.diagnosis.case import step_time
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.kv_capacity import Pool, PoolEstimate, PoolForecast, UnknownPool, pool_after
from vllm_autotuner.performance.step_time import NoFit, StepTimeFit, at_quantile
from vllm_autotuner.performance.tensor_parallel import PREFILL_SCALING, at_degree
from vllm_autotuner.planning.demand import Demand
from vllm_autotuner.planning.max_num_seqs import kv_bound
from vllm_autotuner.planning.proposal import Predicted
from vllm_autotuner.planning.ranking import Effect
from vllm_autotuner.planning.situation import Situation

__all__ = ["Outlook", "Setting", "current_setting", "outlook", "pool_with", "predicted", "setting_with"]

MEASURED: Final = ("s", "tokens/s")
"""Units of what a verdict will compare: worth showing where it stays, too."""
UTILIZATION: Final = 0.9
"""Stands on both sides of every comparison here, as we never change it: no result depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One configuration, as far as a forecast looks at it."""

    replicas: int
    degree: int
    seats: int | None
    held: float | None
    """Sequences of observed lengths that the cache of one replica holds."""
    pool: float | None
    """Tokens that it holds."""
    step: StepTimeFit
    prefill: float | None

    @property
    def capacity(self) -> float | None:
        """Largest number of sequences that one replica runs; None if not known."""
        return min((each for each in (self.seats, self.held) if each is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a setting does; seconds at the objectives' quantiles, output tokens per second of all replicas."""

    tpot: float | None
    ttft: float | None
    tokens_per_second: float | None
    goodput: float | None
    """Output tokens per second while every objective is met, else 0."""
    held: float | None
    pool: float | None
    gpus: int
    error: float
    """Relative error of the fit behind it; 0 without one."""

    @property
    def effect(self) -> Effect | None:
        """The same for ranking; None where a number is missing."""
        if self.ttft is None or self.tpot is None or self.tokens_per_second is None:
            return None
        return Effect(ttft=self.ttft, tpot=self.tpot, tokens_per_second=self.tokens_per_second, gpus=self.gpus)


def current_setting(situation: Situation, demand: Demand) -> Setting:
    """Return what runs now."""
    seen, knobs = situation.observation, situation.knobs
    held = kv_bound(seen)
    return Setting(
        replicas=max(1, situation.replicas),
        degree=knobs.tensor_parallel_size or 1,
        seats=knobs.max_num_seqs,
        held=None if held is None else float(held),
        pool=_pool_tokens(seen),
        step=step_time(seen),
        prefill=demand.prefill,
    )


def setting_with(now: Setting, knob: Knob, value: int | str, *, situation: Situation, demand: Demand) -> Setting:
    """Return `now` with one knob moved: what the cache and the step become by it, as far as that is known."""
    match knob:
        case Knob.MAX_NUM_SEQS:
            return replace(now, seats=int(value))
        case Knob.REPLICAS:
            return replace(now, replicas=int(value))
        case Knob.MAX_MODEL_LEN:
            # vLLM's V1 reserves nothing by the longest length: the pool stays, only the worst case is bounded.
            return now
        case Knob.KV_CACHE_DTYPE:
            return _with_pool(now, pool_with(situation, kv_cache_dtype=str(value)))
        case Knob.TENSOR_PARALLEL_SIZE:
            degree = int(value)
            moved = _with_pool(now, pool_with(situation, degree=degree))
            faster = (now.degree / degree) ** PREFILL_SCALING
            prefill = None if now.prefill is None else now.prefill * faster
            step = _step_at(now, degree, situation=situation, demand=demand)
            return replace(moved, degree=degree, prefill=prefill, step=step)


def outlook(setting: Setting, *, now: Setting, situation: Situation, demand: Demand) -> Outlook:
    """Return what a setting does under the demand; TTFT is carried over from the measured one of `now`."""
    targets, gpus = situation.targets, setting.replicas * setting.degree
    step = setting.step
    if isinstance(step, NoFit):
        return Outlook(
            tpot=None, ttft=None, tokens_per_second=None, goodput=None, held=setting.held, pool=setting.pool,
            gpus=gpus, error=0.0,
        )  # fmt: skip
    batch = _batch(setting, demand, rate_of=now)
    tokens = setting.replicas * batch / step.predict(batch)
    tpot = at_quantile(step, tail=demand.tail, seen_at=demand.batch).predict(batch)
    ttft = _ttft(setting, now=now, demand=demand)
    met = tpot <= targets.tpot.seconds and (ttft is None or ttft <= targets.ttft.seconds)
    return Outlook(
        tpot=tpot,
        ttft=ttft,
        tokens_per_second=tokens,
        goodput=tokens if met else 0.0,
        held=setting.held,
        pool=setting.pool,
        gpus=gpus,
        error=step.error,
    )


def predicted(before: Outlook, after: Outlook) -> tuple[Predicted, ...]:
    """Return the effects that are known, most important first; of memory and GPUs only what changes."""
    rows = (
        ("TTFT", "s", before.ttft, after.ttft),
        ("TPOT", "s", before.tpot, after.tpot),
        ("output tokens per second", "tokens/s", before.tokens_per_second, after.tokens_per_second),
        ("goodput", "tokens/s", before.goodput, after.goodput),
        ("KV cache", "tokens", before.pool, after.pool),
        ("sequences that the KV cache holds", "sequences", before.held, after.held),
        ("GPUs", "GPUs", float(before.gpus), float(after.gpus)),
    )
    return tuple(
        Predicted(name=name, unit=unit, current=old, predicted=new)
        for name, unit, old, new in rows
        if new is not None and (unit in MEASURED or old != new)
    )


def pool_with(situation: Situation, *, degree: int | None = None, kv_cache_dtype: str | None = None) -> PoolForecast:
    """Return the pool of one replica with another degree or KV type, carried over from the one that is exported."""
    knobs, platform = situation.knobs, situation.platform
    tokens = _pool_tokens(situation.observation)
    if tokens is None:
        return UnknownPool("the engine does not export the size of its KV cache")
    now = Pool(
        tokens=tokens,
        tensor_parallel_size=knobs.tensor_parallel_size or 1,
        kv_cache_dtype=knobs.kv_cache_dtype or _exported_type(situation.observation),
        gpu_memory_utilization=UTILIZATION,
    )
    then = replace(
        now,
        tensor_parallel_size=degree or now.tensor_parallel_size,
        kv_cache_dtype=kv_cache_dtype or now.kv_cache_dtype,
    )
    if degree is not None and platform.bytes_per_weight is None:
        return UnknownPool("the weight type is not known, nor is the KV cache at another tensor-parallel size")
    bytes_per_weight = 2.0 if platform.bytes_per_weight is None else platform.bytes_per_weight
    return pool_after(now, then, shape=platform.shape, gpu=platform.gpu, bytes_per_weight=bytes_per_weight)


def _with_pool(now: Setting, pool: PoolForecast) -> Setting:
    if not isinstance(pool, PoolEstimate) or not now.pool:
        return replace(now, pool=None, held=None)
    # What sequences are seen to hold stays: only the pool they hold it of grows.
    return replace(now, pool=pool.tokens, held=None if now.held is None else now.held * pool.tokens / now.pool)


def _step_at(now: Setting, degree: int, *, situation: Situation, demand: Demand) -> StepTimeFit:
    platform, context = situation.platform, demand.context
    if isinstance(now.step, NoFit):
        return now.step
    if context is None:
        return NoFit("request lengths are not known")
    return at_degree(
        now.step,
        degree=now.degree,
        wanted=degree,
        shape=platform.shape,
        gpu=platform.gpu,
        bytes_per_weight=platform.bytes_per_weight,
        context=context,
    )


def _batch(setting: Setting, demand: Demand, *, rate_of: Setting) -> float:
    """Sequences that one replica runs: its share of what is there, up to its capacity.

    Where nothing waits, requests arrive at a rate of their own: faster tokens then mean fewer at once, and slower more.
    """
    share = demand.in_system / setting.replicas
    if not demand.queued and not isinstance(setting.step, NoFit) and not isinstance(rate_of.step, NoFit):
        before = demand.in_system / rate_of.replicas
        rate = rate_of.replicas * before / max(rate_of.step.predict(before), 1e-12) / setting.replicas
        spare = 1 - rate * setting.step.per_sequence
        share = rate * setting.step.base / spare if spare > 0 else demand.in_system
    return max(1.0, share if setting.capacity is None else min(share, setting.capacity))


def _ttft(setting: Setting, *, now: Setting, demand: Demand) -> float | None:
    """Return TTFT at its quantile: the measured one, by as much as waiting and prefill change.

    Where nothing waits yet, what will wait comes on top: no ratio leads from no queue to one. And where a queue ends,
    what is left of it is no less than the prefill itself at that quantile: all wait alike, but long prompts stay long.
    """
    then, before = _wait(setting, now=now, demand=demand), _wait(now, now=now, demand=demand)
    if then is None or before is None or demand.ttft is None or not setting.prefill or not now.prefill:
        return None
    if not demand.queued:
        return demand.ttft * setting.prefill / now.prefill + then
    scaled = demand.ttft * (setting.prefill + then) / (now.prefill + before)
    floor = (demand.prefill_tail or 0.0) * setting.prefill / now.prefill
    return max(scaled, min(floor, demand.ttft))


def _wait(setting: Setting, *, now: Setting, demand: Demand) -> float | None:
    """Mean queue time of a request (seconds); None if not known."""
    if isinstance(setting.step, NoFit):
        return None
    space = None if setting.capacity is None else setting.replicas * setting.capacity
    if not demand.queued:
        # A burst at one scrape is no queue: what holds as many as now still holds it.
        enough = demand.in_system if now.capacity is None else min(demand.in_system, now.replicas * now.capacity)
        if space is None or space >= enough:
            return 0.0
    if demand.output_tokens is None or space is None:
        return None
    batch = _batch(setting, demand, rate_of=now)
    finishing = setting.replicas * batch / setting.step.predict(batch) / demand.output_tokens
    return max(0.0, demand.in_system - space) / finishing


def _pool_tokens(seen: Observation) -> float | None:
    known = [engine.pool.tokens for engine in seen.engines if engine.pool.tokens]
    return float(min(known)) if known else None


def _exported_type(seen: Observation) -> str | None:
    return next((engine.pool.cache_dtype for engine in seen.engines if engine.pool.cache_dtype is not None), None)
