"""How many sequences of the observed lengths the KV cache of an engine holds, from its use.

Separate from `kv_capacity`, which converts tokens between flags; this is measured. Must not: guess a length.
"""

import math
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.observation.noise import NOISE
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


@dataclass(frozen=True, slots=True)
class _Prompts:
    """Tokens of a prompt."""

    least: float
    """Nearly all have as many: those that run are not those that have finished."""
    found: float
    """In the prefix cache, in the mean."""
    computed: float
    """The rest, in the mean."""


def kv_bound(observation: Observation) -> int | None:
    """How many sequences the KV cache of the fullest engine holds at observed lengths, less a margin. None: not known.

    First choice: the measured KV cache usage per running sequence, where a prefix that they share counts once. Second:
    the cache in tokens over the median request (prompt and output), which overestimates a sequence's mean share and so
    errs on the safe side.
    """
    largest = max((moment.running for engine in observation.engines for moment in engine.moments), default=0.0)
    prompts = _prompts(observation)
    bounds = (_by_use(engine, least=LEAST_BATCH * largest, prompts=prompts) for engine in observation.engines)
    by_use = [bound for bound in bounds if bound is not None]
    if by_use:
        return min(by_use)
    prompt, output = observation.prompt_length.quantile(0.5), observation.output_length.quantile(0.5)
    pools = [engine.pool.tokens for engine in observation.engines if engine.pool.tokens is not None]
    if not pools or not isinstance(prompt, Measured) or not isinstance(output, Measured):
        return None
    length = prompt.value + output.value
    return max(1, math.floor(min(pools) * (1 - KV_MARGIN) / length)) if length > 0 else None


def _prompts(observation: Observation) -> _Prompts | None:
    """None where lengths or the hits of the prefix cache are not exported, or nothing was found in it."""
    mean, hits = observation.recent_prompt_length.mean, observation.prefix_hit_rate
    if not isinstance(mean, Measured) or not hits:
        return None
    found = min(1.0, hits) * mean.value
    return _Prompts(least=observation.prompt_length.exceeded_by(BUSY), found=found, computed=mean.value - found)


def _by_use(engine: EngineWindow, *, least: float, prompts: _Prompts | None) -> int | None:
    """By the scrapes in which at least `least` sequences ran, or as many as fill the cache; None without any."""
    used = [(moment.running, moment.kv) for moment in engine.moments if moment.kv is not None and moment.kv > LEAST_USE]
    held = sorted(
        (
            _held(running, kv, pool=engine.pool.tokens, prompts=prompts)
            for running, kv in used
            if running > 0 and (running >= least or kv >= 1 - KV_MARGIN)
        ),
        reverse=True,
    )
    return max(1, math.floor(held[min(len(held) - 1, round(BUSY * len(held)))])) if held else None


def _held(running: float, kv: float, *, pool: int | None, prompts: _Prompts | None) -> float:
    """How many sequences fill the cache but for the margin, of those that take the part `kv` of it.

    What is missing to the prompts of all, were each held for itself, is held once for all: at most what was found in
    the prefix cache, and the rest of each prompt is its own. Outputs are not counted, and of prompts only what nearly
    all have, so that less may be taken as shared than is. Worked: ten sequences with 20,000 tokens in common and 1,000
    of their own take 30,000; a cache of 200,000 holds 160 of them, not 60.
    """
    plain = (1 - KV_MARGIN) * running / kv
    if prompts is None or pool is None or running < 1 / NOISE or kv >= 1 - KV_MARGIN:
        return plain
    taken, room = kv * pool, (1 - KV_MARGIN) * pool
    missing = (running * prompts.least - taken) / (running - 1)
    shared = min(prompts.found, missing, taken - running * prompts.computed)
    return (room - shared) * running / (taken - shared) if 0 < shared < min(room, taken) else plain
