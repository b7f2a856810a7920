"""Simulation settings from environment variables (SIM_*), for which a real engine has no flag.

Separate from `arguments`, so that a pod's command line is exactly that of the real engine.
Must not: read vLLM's flags.

| variable | meaning |
|---|---|
| SIM_GPU_BLOCKS, SIM_BLOCK_SIZE | KV blocks at TP 1 and 16-bit KV; tokens per block |
| SIM_WEIGHTS_TO_POOL, SIM_MEMORY_TO_POOL | memory of the weights, and of the GPU, against that of the pool |
| SIM_MODEL_MAX_LEN, SIM_ATTENTION_HEADS, SIM_KV_HEADS, SIM_KV_BYTES_PER_TOKEN | the model |
| SIM_MAX_NUM_SEQS, SIM_MAX_NUM_BATCHED_TOKENS | the engine's own defaults for those flags |
| SIM_PREFIX_HIT_RATIO | part of each prompt that the prefix cache holds, 0..1 |
| SIM_COLD_REQUESTS | so many requests find it cold after a start |
| SIM_STEP_BASE_MS, SIM_STEP_PER_SEQ_MS, SIM_STEP_PER_KTOKEN_MS, SIM_PREFILL_PER_TOKEN_MS | one step, at TP 1 |
| SIM_WEIGHT_SHARE, SIM_ALL_REDUCE_MS, SIM_PREFILL_SCALING | how a step changes with TP |
| SIM_FP8_KV_READ | what fp8 KV makes of SIM_STEP_PER_KTOKEN_MS: 1 nothing, 0.5 half |
| SIM_JITTER | standard deviation of the logarithm of a random factor on steps; its mean is 1 |
| SIM_EOS_MEAN_TOKENS | mean output of requests without `ignore_eos`; unset: only `max_tokens` ends them |
| SIM_RUNAWAY_SHARE | part of those requests that never end by themselves, 0..1 |
| SIM_SEED | seed of everything random |
| SIM_STARTUP_SECONDS | from the first log line to the first answer of `/health` |
| SIM_DEGRADE_ABOVE_SEQS, SIM_DEGRADE_FACTOR | steps take longer by the factor when max-num-seqs is above |
| SIM_SLOWDOWN_PER_HOUR | steps grow by this part per hour |
| SIM_WEDGE_AFTER, SIM_CRASH_AFTER | seconds after which nothing moves, or the process exits with code 1 |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.plausible import check_numbers
from vllm_autotuner.simulation.step_duration import StepTimes


class SettingsError(ValueError):
    """A SIM_ variable that does not exist or cannot be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything from the environment."""

    profile: Profile = field(default_factory=Profile)
    faults: Faults = field(default_factory=Faults)
    startup_seconds: float = 0.0
    eos_mean_tokens: float | None = None
    runaway_share: float = 0.0
    """Of the requests that would end by themselves, the part that never does."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(
            self, positive=("eos_mean_tokens",), not_negative=("startup_seconds",), fractions=("runaway_share",)
        )


_VARIABLES: Final[Mapping[str, tuple[str, str, type]]] = {
    "SIM_GPU_BLOCKS": ("profile", "gpu_blocks", int),
    "SIM_BLOCK_SIZE": ("profile", "block_size", int),
    "SIM_WEIGHTS_TO_POOL": ("profile", "weights_to_pool", float),
    "SIM_MEMORY_TO_POOL": ("profile", "memory_to_pool", float),
    "SIM_MODEL_MAX_LEN": ("profile", "model_max_len", int),
    "SIM_ATTENTION_HEADS": ("profile", "attention_heads", int),
    "SIM_KV_HEADS": ("profile", "kv_heads", int),
    "SIM_KV_BYTES_PER_TOKEN": ("profile", "kv_bytes_per_token", int),
    "SIM_MAX_NUM_SEQS": ("profile", "max_num_seqs", int),
    "SIM_MAX_NUM_BATCHED_TOKENS": ("profile", "max_num_batched_tokens", int),
    "SIM_PREFIX_HIT_RATIO": ("profile", "prefix_hit_ratio", float),
    "SIM_COLD_REQUESTS": ("profile", "cold_requests", int),
    "SIM_STEP_BASE_MS": ("step", "base_ms", float),
    "SIM_STEP_PER_SEQ_MS": ("step", "per_sequence_ms", float),
    "SIM_STEP_PER_KTOKEN_MS": ("step", "per_ktoken_ms", float),
    "SIM_PREFILL_PER_TOKEN_MS": ("step", "prefill_per_token_ms", float),
    "SIM_WEIGHT_SHARE": ("step", "weight_share", float),
    "SIM_ALL_REDUCE_MS": ("step", "all_reduce_ms", float),
    "SIM_PREFILL_SCALING": ("step", "prefill_scaling", float),
    "SIM_FP8_KV_READ": ("step", "fp8_kv_read", float),
    "SIM_JITTER": ("step", "jitter", float),
    "SIM_DEGRADE_ABOVE_SEQS": ("faults", "degrade_above_seqs", int),
    "SIM_DEGRADE_FACTOR": ("faults", "degrade_factor", float),
    "SIM_SLOWDOWN_PER_HOUR": ("faults", "slowdown_per_hour", float),
    "SIM_WEDGE_AFTER": ("faults", "wedge_after", float),
    "SIM_CRASH_AFTER": ("faults", "crash_after", float),
    "SIM_STARTUP_SECONDS": ("settings", "startup_seconds", float),
    "SIM_EOS_MEAN_TOKENS": ("settings", "eos_mean_tokens", float),
    "SIM_RUNAWAY_SHARE": ("settings", "runaway_share", float),
    "SIM_SEED": ("settings", "seed", int),
}


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read the SIM_ variables; empty ones count as unset. Raises SettingsError, also for a name that does not exist."""
    found: dict[str, dict[str, Any]] = {"profile": {}, "step": {}, "faults": {}, "settings": {}}
    for name, text in environment.items():
        if not name.startswith("SIM_") or not text:
            continue
        if name not in _VARIABLES:
            raise SettingsError(f"{name}: unknown setting. Known settings: {', '.join(sorted(_VARIABLES))}")
        group, attribute, read = _VARIABLES[name]
        try:
            value = read(text)
        except ValueError:
            raise SettingsError(f"{name}: {text!r} is not a number") from None
        if value < 0 or value != value:
            raise SettingsError(f"{name}: {text!r} is below 0")
        found[group][attribute] = value
    try:
        profile = Profile(step=StepTimes(**found["step"]), **found["profile"])
        return Settings(profile=profile, faults=Faults(**found["faults"]), **found["settings"])
    except ValueError as error:
        raise SettingsError(f"invalid SIM_ variables: {error}") from None
