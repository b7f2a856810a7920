"""Predicts the step time at another tensor-parallel size for a service that was measured at one size.

Separate from the fit: nothing here is fitted to this service. A measured line is split into parts by the hardware's
figures (weights, host work, KV, prompts), and each part is scaled to the other size by its own rule.
Must not: predict without a geometry and a GPU, or assume the speed of the links between GPUs: `measured_links` says
for which ones the rules were verified.
"""

import math
from dataclasses import replace
from typing import Final

from vllm_autotuner.engine.geometry import ModelShape, UnknownGeometry
from vllm_autotuner.engine.hardware import Gpu
from vllm_autotuner.performance.kv_capacity import kv_bytes_per_token_per_gpu
from vllm_autotuner.performance.physics import BANDWIDTH_SHARE, PER_SEQUENCE
from vllm_autotuner.performance.step_time import NoFit, StepTime, StepTimeFit

__all__ = ["at_degree", "measured_links"]

PREFILL_SCALING: Final = 0.8
"""Exponent with which the time of prompts falls with the degree: 0.78 (2 to 4, H100) and 0.82 (1 to 2, H200)."""
HOST_GROWTH: Final = 1.055
"""Factor by which the part of an empty step that reads no weights grows with each doubling: layers wait for each other.
0.061 to 0.064 ms a layer from 1 to 2, 0.064 to 0.068 from 2 to 4."""
MEASURED: Final = (9, 0)
"""Compute capability of the GPUs that the two constants come from: H100 and H200, joined by NVLink."""


def at_degree(
    line: StepTime,
    *,
    degree: int,
    wanted: int,
    shape: ModelShape,
    gpu: Gpu | None,
    bytes_per_weight: float | None,
    context: float,
) -> StepTimeFit:
    """Return the line that `line`, measured at `degree`, becomes at `wanted`. `context`: tokens held per sequence.

    The range of batches that were seen is kept. Worked, Qwen3-32B on H100, 1024 + 1024 tokens: 14.4 ms + 0.182 ms at
    degree 2 become 9.7 ms + 0.117 ms at 4 (measured: 9.6 + 0.124).
    """
    if degree == wanted:
        return line
    if isinstance(shape, UnknownGeometry):
        return NoFit(shape.why)
    if gpu is None:
        return NoFit("the GPU is not known, so the share of its memory bandwidth cannot be computed")
    weights = None if bytes_per_weight is None else shape.weight_bytes(bytes_per_weight=bytes_per_weight)
    if weights is None:
        return NoFit("the size of the weights is not known")
    doublings = math.log2(wanted / degree)
    reading = min(line.base, weights / degree / gpu.bandwidth)
    base = reading * degree / wanted + (line.base - reading) * HOST_GROWTH**doublings
    host = min(line.per_sequence, PER_SEQUENCE)
    before, after = (kv_bytes_per_token_per_gpu(shape, tensor_parallel_size=each) for each in (degree, wanted))
    held = min(line.per_sequence - host, context * before / (BANDWIDTH_SHARE * gpu.bandwidth))
    prompts = line.per_sequence - host - held
    slope = host + held * after / before + prompts * (degree / wanted) ** PREFILL_SCALING
    # Experts are shared out among the GPUs, as all weights are.
    return replace(line, base=base, per_sequence=slope, reading=line.reading * degree / wanted)


def measured_links(gpu: Gpu | None) -> bool:
    """Whether the rules were measured on GPUs like this one; PCIe cards of the same kind talk more slowly."""
    return gpu is not None and gpu.compute_capability == MEASURED and "PCIE" not in gpu.words
