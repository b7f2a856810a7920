"""Rejects configurations that cannot start, by arithmetic over model, GPU, KV cache, lengths and free GPUs.

Each check stands alone and answers Feasible, Infeasible or Unsure: the unknown is neither a yes nor a no, it makes a
knob recommend-only. Must not: say whether a value is wise, or read the user's bounds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.engine.geometry import ModelShape, UnknownGeometry
from vllm_autotuner.engine.hardware import Gpu
from vllm_autotuner.performance.kv_capacity import PoolForecast, UnknownPool, kv_value_bytes
from vllm_autotuner.planning.placement import FreeGpus

__all__ = [
    "FP8_SINCE",
    "Answer",
    "Feasible",
    "Infeasible",
    "Unsure",
    "finds_memory",
    "fp8_supported",
    "heads_divide",
    "holds_lengths",
    "not_failed",
    "placeable",
    "pool_starts",
    "rolls_out",
    "verdict",
]

FP8_SINCE: Final = (8, 9)
"""Compute capability from which fp8 KV is native (Ada, Hopper). Older GPUs store it only through some attention
backends, and no table of ours knows which. Design, planning.md."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """Nothing known prevents it."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """It cannot start, or would refuse what is served now."""

    why: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """It cannot be determined; `why` names the missing input."""

    why: str


Answer: TypeAlias = Feasible | Infeasible | Unsure


def verdict(answers: Iterable[Answer]) -> Answer:
    """Return the first Infeasible, else the first Unsure, else Feasible."""
    asked = tuple(answers)
    for kind in (Infeasible, Unsure):
        for answer in asked:
            if isinstance(answer, kind):
                return answer
    return Feasible()


def heads_divide(shape: ModelShape, degree: int) -> Answer:
    """Each GPU gets whole heads; KV heads are split evenly, or copied evenly where there are fewer than GPUs."""
    if isinstance(shape, UnknownGeometry):
        return Unsure(shape.why)
    if shape.attention_heads % degree:
        return Infeasible(f"{shape.attention_heads} attention heads are not divisible by {degree}")
    heads = shape.kv_heads
    if heads % degree and degree % heads:
        return Infeasible(f"{heads} KV heads cannot be split or replicated evenly across {degree} GPUs")
    return Feasible()


def fp8_supported(shape: ModelShape, gpu: Gpu | None) -> Answer:
    """Whether the GPU computes with an 8-bit cache, and the model's cache is of a kind that we know."""
    if gpu is None:
        return Unsure("the GPU is not known: set spec.accelerator.product, or --gpu of a command")
    if gpu.compute_capability is None:
        return Unsure(f"the compute capability of {gpu.name} is not known, nor is its fp8 support")
    if gpu.compute_capability < FP8_SINCE:
        have, need = (".".join(map(str, each)) for each in (gpu.compute_capability, FP8_SINCE))
        return Infeasible(f"{gpu.name} has compute capability {have}; fp8 KV needs {need}")
    if isinstance(shape, UnknownGeometry):
        return Unsure(shape.why)
    return Feasible()


def pool_starts(pool: PoolForecast, *, longest: int | None) -> Answer:
    """The engine starts only when the pool holds one sequence of max-model-len; the low end of the forecast counts."""
    if isinstance(pool, UnknownPool):
        return Unsure(pool.why)
    if pool.high <= 0:
        return Infeasible("the weights do not fit into GPU memory")
    if longest is None:
        return Feasible() if pool.low > 0 else Unsure("it is uncertain whether the weights leave room for a KV cache")
    if pool.high < longest:
        return Infeasible(f"the KV cache would hold {pool.tokens:.0f} tokens, less than one sequence of {longest}")
    if pool.low < longest:
        return Unsure(f"the KV cache would hold {pool.low:.0f} to {pool.high:.0f} tokens; one sequence needs {longest}")
    return Feasible()


def holds_lengths(value: int, *, longest_seen: int | None, shape: ModelShape) -> Answer:
    """max-model-len covers what was seen (margin included by the caller), and is no longer than the model allows."""
    if longest_seen is None:
        return Unsure("request lengths are not known")
    if value < longest_seen:
        return Infeasible(f"requests had up to {longest_seen} tokens: {value} would reject some")
    if not isinstance(shape, UnknownGeometry) and shape.max_positions is not None and value > shape.max_positions:
        return Infeasible(f"the model supports at most {shape.max_positions} tokens")
    return Feasible()


def placeable(free_gpus: FreeGpus | None, *, devices: int) -> Answer:
    """A pod of so many devices finds a node now: a rollout begins with one pod more than there were."""
    if free_gpus is None:
        return Unsure("the number of free GPUs is not known")
    if devices > free_gpus.largest_node:
        return Infeasible(f"no node has {_gpus(devices)}: the largest node has {free_gpus.largest_node}")
    if (most := max(free_gpus.free, default=0)) < devices:
        found = f"at most {most} free on one" if most else "all are taken"
        return Infeasible(f"no node has {_gpus(devices, 'free ')}: {found}")
    if free_gpus.quota is not None and free_gpus.quota < devices:
        return Infeasible(f"the namespace's ResourceQuota leaves {_gpus(max(0, free_gpus.quota))} ({devices} needed)")
    return Feasible()


def _gpus(count: int, which: str = "") -> str:
    return f"{count} {which}GPU{'' if count == 1 else 's'}"


def rolls_out(free_gpus: FreeGpus | None, *, devices: int, replicas: int) -> Answer:
    """Whether all replicas can come to stand as pods of so many devices; how many stand now makes room for them."""
    if free_gpus is None or free_gpus.replaces(devices=devices, replicas=replicas):
        return Feasible()
    return Infeasible(f"{replicas} replica(s) of {_gpus(devices)} do not fit, even in place of the current ones")


def finds_memory(infeasible: Iterable[EngineKnobs], wanted: EngineKnobs) -> Answer:
    """What needs as much of everything as a configuration that found too little memory finds too little as well."""
    known = next((each for each in infeasible if _needs_as_much(wanted, each)), None)
    if known is None:
        return Feasible()
    values = ", ".join(f"{name}={value}" for name, value in known.model_dump(by_alias=True, exclude_none=True).items())
    return Infeasible(f"not enough memory for {values or 'the defaults of the engine'}")


def _needs_as_much(wanted: EngineKnobs, than: EngineKnobs) -> bool:
    """Compare all four settings. A default is an unknown number and only equals itself."""
    for one, other in (
        (wanted.max_num_seqs, than.max_num_seqs),
        (wanted.max_model_len, than.max_model_len),
    ):
        if one != other and (one is None or other is None or one < other):
            return False
    narrower = kv_value_bytes(wanted.kv_cache_dtype) < kv_value_bytes(than.kv_cache_dtype)
    return not narrower and (wanted.tensor_parallel_size or 1) <= (than.tensor_parallel_size or 1)


def not_failed(failed: Iterable[tuple[str, str]], *, knob: str, value: int | str) -> Answer:
    """Reject a value that was rolled back or declined in this environment, until its cooldown ends."""
    return (
        Infeasible(f"{value} was rolled back or declined before") if (knob, str(value)) in tuple(failed) else Feasible()
    )
