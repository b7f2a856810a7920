"""The capacity of the KV cache in tokens, and how a change of flags affects it.

Separate from the step time, because memory follows from arithmetic and time has to be measured.
The capacity of a running engine is read, not computed (`Pool`): formulas only convert it to other flags (`pool_after`),
with the overhead of the running engine. `first_pool` computes it without a running engine, with a wide interval.
Must not: assume a shape. An UnknownGeometry gives UnknownPool.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from vllm_autotuner.engine.geometry import Geometry, ModelShape
from vllm_autotuner.engine.hardware import Gpu

__all__ = [
    "KV_MARGIN",
    "Pool",
    "PoolEstimate",
    "PoolForecast",
    "UnknownPool",
    "first_pool",
    "kv_bytes_per_token_per_gpu",
    "kv_value_bytes",
    "pool_after",
]

GIB: Final = 2**30
"""Bytes."""
KV_MARGIN: Final = 0.1
"""Share of the pool left free for sequences that grow in step. Our choice; F3 calls a service healthy below 90 %."""
SEAT_BYTES_PER_VOCABULARY: Final = 39
"""Bytes of startup memory per slot and vocabulary entry: the engine profiles its sampler with max-num-seqs rows.
38.4-39.6 in four logged startups of dense models with max-num-seqs 1024; inferred, never varied on one model."""
FIXED_GIB: Final = 0.5
"""Memory besides weights, slots and KV cache, per GPU. Logged startups of dense models on H100: 0.1-0.9 GiB."""
FIXED_SPREAD_GIB: Final = 0.6
"""How far that may be off: the same start-ups, and 0.2 GiB for max-num-batched-tokens between 2048 and 8192."""


def kv_bytes_per_token_per_gpu(geometry: Geometry, *, tensor_parallel_size: int, bytes_per_value: int = 2) -> int:
    """Return what a token holds on each GPU. Beyond one KV head per GPU, heads are copied: no smaller than one.

    Worked: 64 layers, 8 KV heads of 128 in 16 bit: 262,144 at TP 1, 65,536 at TP 4, 32,768 at TP 8 and at TP 16.
    """
    heads = max(1, -(-geometry.kv_heads // tensor_parallel_size))
    return 2 * geometry.layers * heads * geometry.head_dim * bytes_per_value


def kv_value_bytes(kv_cache_dtype: str | None) -> int:
    """Return the bytes of one value: 1 for any fp8, 2 otherwise (`auto` is the model's 16 bit)."""
    return 1 if (kv_cache_dtype or "").startswith("fp8") else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pool that a running engine reports, and the flags that it has it under."""

    tokens: float
    tensor_parallel_size: int = 1
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float
    max_num_seqs: int | None = None
    """None: not known, and then the effect of another max-num-seqs is not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEstimate:
    """Tokens that a pool will hold: most likely, and between which bounds. 0: the model does not fit."""

    tokens: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class UnknownPool:
    """No estimate, and this is why."""

    why: str


PoolForecast: TypeAlias = PoolEstimate | UnknownPool


def pool_after(
    anchor: Pool, wanted: Pool, *, shape: ModelShape, gpu: Gpu | None, bytes_per_weight: float = 2
) -> PoolForecast:
    """Return the pool under the flags of `wanted` (its tokens are not looked at), carried over from `anchor`.

    What the anchor's GPU holds beside weights and pool is carried over as it is. Exact for the KV type alone. For TP
    and utilization the geometry and the GPU are needed. Seats cost what the sampler is profiled with; that is inferred,
    so the bounds are those with and without it.
    Worked: Qwen3-32B on H100, 282,496 tokens at TP 2: TP 4 frees 15.3 GiB a GPU and halves a token: 814,000 tokens. At
    TP 1, 18,176 tokens with 1024 seats: 64 of them free 5.3 GiB, for about 39,900 tokens.
    """
    if not isinstance(shape, Geometry):
        return UnknownPool(shape.why)
    per_token = _per_token(shape, anchor)
    anchor_bytes = anchor.tokens * per_token
    freed = 0.0
    same_memory = (anchor.tensor_parallel_size, anchor.gpu_memory_utilization) == (
        wanted.tensor_parallel_size,
        wanted.gpu_memory_utilization,
    )
    if not same_memory:
        weights = shape.weight_bytes(bytes_per_weight=bytes_per_weight)
        if gpu is None:
            return UnknownPool("the GPU is not known, so the effect on KV cache memory cannot be computed")
        if weights is None and anchor.tensor_parallel_size != wanted.tensor_parallel_size:
            return UnknownPool("the size of the weights is not known, nor is the memory that tensor parallelism frees")
        freed = (wanted.gpu_memory_utilization - anchor.gpu_memory_utilization) * gpu.memory_gib * GIB
        freed += (weights or 0.0) * (1 / anchor.tensor_parallel_size - 1 / wanted.tensor_parallel_size)
    seats = _seats_cost(shape, wanted) - _seats_cost(shape, anchor) if _both_know_seats(anchor, wanted) else 0.0
    spread = 0.0 if same_memory else FIXED_SPREAD_GIB * GIB
    after = _per_token(shape, wanted)
    without = anchor_bytes + freed
    low, high = without - spread - max(0.0, seats), without + spread + max(0.0, -seats)
    return _estimate(without - seats, low, high, after)


def first_pool(wanted: Pool, *, shape: ModelShape, gpu: Gpu | None, bytes_per_weight: float = 2) -> PoolForecast:
    """Return the pool of an engine that never ran. For advice, not for a change: the overhead is assumed.

    Worked: Qwen3-32B on H100, TP 2, 0.9, 1024 seats: 0.9 * 79.18 - 30.5 - 0.5 - 5.65 = 34.6 GiB, 283,000 tokens
    (logged: 282,496). At TP 1 the same overhead decides: 16,700 within +-2,500 (logged: 18,176).
    """
    if not isinstance(shape, Geometry):
        return UnknownPool(shape.why)
    weights = shape.weight_bytes(bytes_per_weight=bytes_per_weight)
    if gpu is None or weights is None:
        return UnknownPool("the GPU is not known" if gpu is None else "the size of the weights is not known")
    left = wanted.gpu_memory_utilization * gpu.memory_gib * GIB - weights / wanted.tensor_parallel_size
    likely = left - FIXED_GIB * GIB - _seats_cost(shape, wanted)
    spread = FIXED_SPREAD_GIB * GIB
    return _estimate(likely, likely - spread, likely + spread, _per_token(shape, wanted))


def _per_token(shape: Geometry, pool: Pool) -> int:
    return kv_bytes_per_token_per_gpu(
        shape,
        tensor_parallel_size=pool.tensor_parallel_size,
        bytes_per_value=kv_value_bytes(pool.kv_cache_dtype),
    )


def _both_know_seats(one: Pool, other: Pool) -> bool:
    return one.max_num_seqs is not None and other.max_num_seqs is not None


def _seats_cost(shape: Geometry, pool: Pool) -> float:
    return float(SEAT_BYTES_PER_VOCABULARY * shape.vocabulary * (pool.max_num_seqs or 0))


def _estimate(likely: float, low: float, high: float, per_token: int) -> PoolEstimate:
    return PoolEstimate(
        tokens=max(0.0, likely / per_token), low=max(0.0, low / per_token), high=max(0.0, high / per_token)
    )
