"""What one replica can carry, from the simulated engine's own law: scenarios place their load against it.

Not the product's models: those have to find out by themselves. Must not: be used by a policy.
"""

from dataclasses import dataclass

from benchmarks.closedloop.scenario import Hardware
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.configuration import EngineConfig, configure
from vllm_autotuner.simulation.lengths import Lengths
from vllm_autotuner.simulation.traffic import Mix

__all__ = ["Means", "engine_of", "knee_batch", "kv_batch", "means_of", "rate_at", "step_seconds"]

QUANTILES = 1000
"""Points at which a distribution of lengths is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Mean prompt and output tokens."""

    prompt: float
    output: float

    @property
    def held(self) -> float:
        """Mean KV tokens of a running sequence: the whole prompt and half of the output."""
        return self.prompt + self.output / 2


def means_of(mix: Mix) -> Means:
    """The mean lengths of a mix, by its distributions."""
    return Means(prompt=_mean(mix.prompt), output=_mean(mix.output))


def _mean(lengths: Lengths) -> float:
    return sum(lengths.at((index + 0.5) / QUANTILES) for index in range(QUANTILES)) / QUANTILES


def engine_of(
    hardware: Hardware,
    *,
    seats: int | None = None,
    kv_cache_dtype: str | None = None,
    tensor_parallel_size: int | None = None,
    max_model_len: int | None = None,
) -> EngineConfig:
    """The engine with these flags, and its own defaults for the rest. Raises StartupRefused where it does not start."""
    flags = EngineFlags(
        tensor_parallel_size=tensor_parallel_size or hardware.tensor_parallel_size,
        max_model_len=max_model_len or hardware.max_model_len,
        max_num_seqs=seats,
        kv_cache_dtype=kv_cache_dtype,
    )
    return configure(flags, profile=hardware.profile)


def step_seconds(engine: EngineConfig, mix: Means, *, batch: float) -> float:
    """The mean step with `batch` sequences in steady state: as many prompts come in as sequences finish."""
    law = engine.law
    prefill = batch * mix.prompt / mix.output
    held = law.per_held_token * batch * mix.held
    return law.base + law.per_sequence * batch + held + law.per_prefill_token * prefill


def rate_at(engine: EngineConfig, mix: Means, *, batch: float) -> float:
    """Requests per second that one replica finishes with `batch` running."""
    return batch / (step_seconds(engine, mix, batch=batch) * mix.output)


def knee_batch(engine: EngineConfig, mix: Means, *, tpot: float) -> float:
    """The batch at which a step takes `tpot` seconds; below 1 when none does."""
    base = step_seconds(engine, mix, batch=0)
    return (tpot - base) / (step_seconds(engine, mix, batch=1) - base)


def kv_batch(engine: EngineConfig, mix: Means) -> float:
    """Sequences of this mix that the KV pool holds."""
    return (engine.num_gpu_blocks - 1) * engine.block_size / mix.held
