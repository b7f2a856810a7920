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
LEAST_BATCH: Final = 0.5
"""Part of the largest batch below which sequences tell nothing of a full cache: one long request alone would say that
it holds eight. Our choice."""
LEAST_USE: Final = 1e-6
"""Share of the KV cache below which usage counts as none: one block of the largest cache is a multiple of that."""


def kv_bound(observation: Observation) -> int | None:
    """How many sequences the KV cache of the fullest engine holds at observed lengths, less a margin. None: not known.

    First choice: the measured KV cache usage per running sequence. Second: the cache in tokens over the median
    request (prompt and output), which overestimates a sequence's mean share and so errs on the safe side.
    """
    largest = max((moment.running for engine in observation.engines for moment in engine.moments), default=0.0)
    bounds = (_by_use(engine, least=LEAST_BATCH * largest) for engine in observation.engines)
    by_use = [bound for bound in bounds if bound is not None]
    if by_use:
        return min(by_use)
    prompt, output = observation.prompt_length.quantile(0.5), observation.output_length.quantile(0.5)
    pools = [engine.pool.tokens for engine in observation.engines if engine.pool.tokens is not None]
    if not pools or not isinstance(prompt, Measured) or not isinstance(output, Measured):
        return None
    length = prompt.value + output.value
    return max(1, math.floor(min(pools) * (1 - KV_MARGIN) / length)) if length > 0 else None


def _by_use(engine: EngineWindow, *, least: float) -> int | None:
    """By the scrapes in which at least `least` sequences ran, or as many as fill the cache; None without any."""
    used = [(moment.running, moment.kv) for moment in engine.moments if moment.kv is not None and moment.kv > LEAST_USE]
    shares = sorted(kv / running for running, kv in used if running > 0 and (running >= least or kv >= 1 - KV_MARGIN))
    if not shares:
        return None
    return max(1, math.floor((1 - KV_MARGIN) / shares[min(len(shares) - 1, round(BUSY * len(shares)))]))
