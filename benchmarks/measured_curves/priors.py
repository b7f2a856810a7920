"""Priors for the structured law from the hardware's data sheet, before anything is measured.

Separate from the fit, which accepts any priors. Must not: fit.
"""

from dataclasses import dataclass
from typing import Final

from vllm_autotuner.engine.geometry import Geometry, ModelShape
from vllm_autotuner.engine.hardware import Gpu
from vllm_autotuner.performance.kv_capacity import kv_bytes_per_token_per_gpu
from vllm_autotuner.performance.physics import BANDWIDTH_SHARE, PER_SEQUENCE

__all__ = ["TO_BASE_SPREAD", "LawPriors", "Prior", "fastest_prefill", "physics_priors"]

BANDWIDTH_SPREAD: Final = 0.2
"""Relative. Fits are flat between 0.6 and 0.9 of the bandwidth."""
PER_SEQUENCE_SPREAD: Final = 0.03e-3
"""Seconds: reaches from the small models to the large ones."""
TO_BASE_SPREAD: Final = 0.75
"""Relative, of both: priors that any two length mixes overrule, and that are right in any unit of time."""
PER_LAYER: Final = 0.066e-3
"""Seconds per layer of an empty step beside reading the weights. Six groups: 0.061-0.08 ms."""
BASE_SPREAD: Final = 0.15
"""Relative. The same six groups: within 10 %; the rest allows for unknown weight types."""
PREFILL_EFFICIENCY: Final = 0.55
"""Part of the GPU's arithmetic that prefill reaches. Six groups: 0.40-0.68, falling with TP."""
PREFILL_SPREAD: Final = 0.4
"""Relative."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Where a parameter is expected before the data speak, and how far it may easily be from there."""

    mean: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPriors:
    """What is expected of the parameters of the law, in seconds (per sequence, per token).

    None: nothing is expected of `base` and `per_prefill_token`; the other two are expected in proportion to the fastest
    step seen, because one mix cannot tell them apart.
    """

    base: Prior | None = None
    per_sequence: Prior | None = None
    per_held_token: Prior | None = None
    per_prefill_token: Prior | None = None
    source: str = "geometry or GPU unknown: in proportion to the fastest step"


def physics_priors(
    shape: ModelShape, gpu: Gpu | None, *, tensor_parallel_size: int, bytes_per_weight: float = 2
) -> LawPriors:
    """Return the priors for a model on a GPU; weak ones when either is unknown.

    KV values count as 2 bytes whatever their type: on measured curves an fp8 cache bought capacity, not step time.
    Worked: Qwen3-32B on H100 with TP 2 reads 131,072 bytes per token at 0.72 * 3.35 TB/s: 54.3 us per 1,000 tokens;
    an empty step reads 32.8 GB in 9.8 ms and has 64 layers: 14.0 ms (measured 13.9).
    """
    if not isinstance(shape, Geometry) or gpu is None:
        return LawPriors()
    read = kv_bytes_per_token_per_gpu(shape, tensor_parallel_size=tensor_parallel_size)
    held = read / (BANDWIDTH_SHARE * gpu.bandwidth)
    base = prefill = None
    fastest = fastest_prefill(shape, gpu, tensor_parallel_size=tensor_parallel_size, bytes_per_weight=bytes_per_weight)
    weights = shape.weight_bytes(bytes_per_weight=bytes_per_weight)
    if weights is not None and fastest is not None:
        step = weights / tensor_parallel_size / gpu.bandwidth + PER_LAYER * shape.layers
        base = Prior(step, step * BASE_SPREAD)
        prefill = Prior(fastest / PREFILL_EFFICIENCY, fastest / PREFILL_EFFICIENCY * PREFILL_SPREAD)
    return LawPriors(
        base=base,
        per_sequence=Prior(PER_SEQUENCE, PER_SEQUENCE_SPREAD),
        per_held_token=Prior(held, held * BANDWIDTH_SPREAD),
        per_prefill_token=prefill,
        source=f"{read:,} bytes of KV per token and GPU at {BANDWIDTH_SHARE} of {gpu.bandwidth / 1e12:.3g} TB/s",
    )


def fastest_prefill(
    shape: ModelShape, gpu: Gpu | None, *, tensor_parallel_size: int, bytes_per_weight: float = 2
) -> float | None:
    """Return the seconds per prompt token that no engine beats: 2 operations per weight at the GPU's peak.

    A fit below it is wrong, or part of the prompts came from a prefix cache. 8-bit arithmetic is twice as fast;
    4-bit weights are computed in 16 bit.
    """
    if not isinstance(shape, Geometry) or shape.parameters is None or gpu is None:
        return None
    return 2 * shape.parameters / (tensor_parallel_size * gpu.flops * (2 if bytes_per_weight == 1 else 1))
