"""How many sequences of the observed lengths the KV cache of an engine holds, from its use.

Separate from `kv_capacity`, which converts tokens between flags; this is measured. Must not: guess a length.
"""

import math
from typing import Final

from vllm_autotuner.observation.observation import EngineWindow, Observation
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.performance.kv_capacity import KV_MARGIN

__all__ = ["kv_bound"]

BUSY: Final = 0.9
"""Quantile of use per sequence: sequences grow in step, the mean of a young batch flatters. Our choice."""
LEAST_USE: Final = 1e-6
"""Share of the KV cache below which usage counts as none: one block of the largest cache is a multiple of that."""


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
    shares = sorted((moment.kv or 0.0) / moment.running for moment in busy)
    return max(1, math.floor((1 - KV_MARGIN) / shares[min(len(shares) - 1, round(BUSY * len(shares)))]))
