"""The KV pool of a profile: from memory where geometry and GPU are known, else from where the curves saturate.

Apart from the step times, because it has other sources: arithmetic, and what was measured to fit.
Must not: keep a computed pool that could not have held what was measured.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.measured_curves.groups import DEFAULT_UTILIZATION, SetUp, batch_of, first_sign, usable_points
from benchmarks.measured_curves.read import Curve, Point
from vllm_autotuner.engine.geometry import Geometry
from vllm_autotuner.performance.kv_capacity import FIXED_GIB, SEAT_BYTES_PER_VOCABULARY
from vllm_autotuner.simulation.configuration import GpuMemory, Profile

__all__ = ["weight_bytes", "with_pool"]

LARGEST_EXCESS: Final = 2
"""Computed pool over the mean tokens at which a curve saturates. In step, sequences fill a pool at half their length:
less than this is no contradiction (1.2 on measured curves)."""


def with_pool(profile: Profile, set_ups: Mapping[int, SetUp]) -> tuple[Profile, str]:
    """Return the profile with a pool for the set-ups (by tensor parallel size), and where it comes from."""
    first = set_ups[min(set_ups)]
    computed = replace(profile, memory=_memory(first))
    if computed.memory is None:
        why = "unknown geometry, GPU or weights"
    elif (refuted := _refuted(computed, set_ups)) is not None:
        why = refuted
    else:
        return computed, "memory of the GPU less weights, seats and fixed parts"
    seen = {size: _seen_pool(set_up) for size, set_up in set_ups.items()}
    blocks = max(_blocks_at_one(profile, tokens=tokens, size=size) for size, (tokens, _) in seen.items())
    how = "; ".join(f"TP {size}: {how}" for size, (_, how) in sorted(seen.items()))
    return replace(profile, gpu_blocks=blocks), f"{why}, so from the curves: {how}"


def weight_bytes(set_up: SetUp) -> float | None:
    """Return the memory of the weights, where the model is known."""
    shape = set_up.shape
    if not isinstance(shape, Geometry):
        return None
    return shape.weight_bytes(bytes_per_weight=set_up.first.bytes_per_weight)


def _memory(set_up: SetUp) -> GpuMemory | None:
    shape, weights = set_up.shape, weight_bytes(set_up)
    if weights is None or set_up.gpu is None or not isinstance(shape, Geometry):
        return None
    return GpuMemory(
        total_gib=set_up.gpu.memory_gib,
        weights_gib=float(f"{weights / 2**30:.5g}"),
        fixed_gib=FIXED_GIB,
        per_seat_mib=float(f"{SEAT_BYTES_PER_VOCABULARY * shape.vocabulary / 2**20:.5g}"),
    )


def _refuted(profile: Profile, set_ups: Mapping[int, SetUp]) -> str | None:
    """Return why the computed pool is wrong: too small for what ran without a queue, or far too large to fill."""
    for size, set_up in set_ups.items():
        for curve in set_up.curves:
            point = (usable_points(curve) or curve.points)[-1]
            tokens = profile.block_size * profile.blocks(
                tensor_parallel_size=size,
                kv_cache_dtype="fp8" if curve.fp8_kv else "auto",
                gpu_memory_utilization=curve.utilization or DEFAULT_UTILIZATION,
                max_num_seqs=curve.seats or (round(point.x) if curve.load.is_max_num_seqs else profile.max_num_seqs),
            )
            if tokens < max(_live_tokens(curve, point), point.prompt_tokens + point.output_tokens):
                return f"a computed pool of {tokens:,} tokens at TP {size} cannot hold what ran at {point.x:g}"
            full = _full_tokens(curve)
            if full is not None and tokens > LARGEST_EXCESS * full:
                return (
                    f"a computed pool of {tokens:,} tokens at TP {size} is not filled by the {full:,.0f} that filled it"
                )
    return None


def _full_tokens(curve: Curve) -> float | None:
    """Return the tokens at the first sign of saturation, where it cannot be for seats."""
    sign = first_sign(curve)
    if sign is None or not curve.load.closed or curve.seats is not None:
        return None
    return _live_tokens(curve, curve.points[sign.index])


def _live_tokens(curve: Curve, point: Point) -> float:
    """Return the tokens that the batch holds on average."""
    return batch_of(curve, point) * curve.mean_share * (point.prompt_tokens + point.output_tokens / 2)


def _seen_pool(set_up: SetUp) -> tuple[float, str]:
    """Return the tokens that the pool seems to hold, and how that is known."""
    held, full = 0.0, math.inf
    for curve in set_up.curves:
        live = [_live_tokens(curve, point) for point in curve.points]
        longest = max(point.prompt_tokens + point.output_tokens for point in curve.points)
        held = max([held, longest, *live[: len(usable_points(curve))]])
        full = min(full, _full_tokens(curve) or math.inf)
    if math.isinf(full) or full <= held:
        return 2 * held, "twice the largest use that was measured without a queue"
    return math.sqrt(held * full), "between the last point without a queue and the first with one"


def _blocks_at_one(profile: Profile, *, tokens: float, size: int) -> int:
    """Return the blocks at tensor parallel size 1 that give `tokens` at `size`."""
    thousand = replace(profile, gpu_blocks=1000).blocks(
        tensor_parallel_size=size,
        kv_cache_dtype="auto",
        gpu_memory_utilization=DEFAULT_UTILIZATION,
        max_num_seqs=profile.max_num_seqs,
    )
    return max(2, math.ceil(tokens / profile.block_size * 1000 / thousand) + 1)
