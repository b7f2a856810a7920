"""Builds the configuration of one engine from flags and a profile of model and GPU, or rejects it as vLLM does.

Separate from the scheduler, as in vLLM: a configuration is rejected before the engine starts.
Must not: read the environment or a command line (`settings` and `arguments` do).
"""

from dataclasses import dataclass, field

from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.plausible import check_numbers
from vllm_autotuner.simulation.sequence import SchedulingPolicy
from vllm_autotuner.simulation.step_duration import StepLaw, StepTimes, step_law

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's own since 0.21; `Profile.gpu_blocks` is the pool at this value."""


class StartupRefused(Exception):
    """The engine does not start; the message is vLLM's own."""


class ConfigRefused(StartupRefused):
    """Refused while the configuration `config` is built: the API server prints a validation error."""

    def __init__(self, message: str, *, config: str) -> None:
        super().__init__(message)
        self.config = config


class CoreRefused(StartupRefused):
    """Refused once the KV pool is known: the engine core prints the cause, the API server a wrapper after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The parts of a GPU's memory in GiB; the KV cache gets utilization * total - weights - fixed - slots."""

    total_gib: float
    weights_gib: float
    """All GPUs together: a tensor parallel group splits them."""
    fixed_gib: float = 0.5
    """Besides weights, slots and KV cache. Logged startups of dense models on H100: 0.1-0.9 GiB."""
    per_seat_mib: float = 4.8
    """Each of max-num-seqs: the sampler is profiled with all of them, about 39 bytes per vocabulary entry. Inferred
    from logged start-ups with 1024 and 128 seats on H100, not measured one against the other."""

    def __post_init__(self) -> None:
        check_numbers(self, positive=("total_gib", "weights_gib"), not_negative=("fixed_gib", "per_seat_mib"))

    def pool_gib(self, *, gpu_memory_utilization: float, tensor_parallel_size: int, max_num_seqs: int) -> float:
        """Return what is left for the pool of each GPU; below 0 the model does not fit.

        Worked: Qwen3-32B on H100 (79.18, 61.02, 5.7 MiB a seat), 0.9, TP 2, 1024 seats: 34.6 GiB; logged 34.49.
        """
        taken = self.weights_gib / tensor_parallel_size + self.fixed_gib + self.per_seat_mib * max_num_seqs / 1024
        return gpu_memory_utilization * self.total_gib - taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model on a GPU. The defaults are Llama-3.1-8B in bf16 on one H100."""

    step: StepTimes = field(default_factory=StepTimes)
    gpu_blocks: int = 26_304
    """KV blocks at tensor parallel size 1, 16-bit KV and the default utilization: 420,864 tokens measured."""
    block_size: int = 16
    """Tokens per block, unless `--block-size` says otherwise."""
    weights_to_pool: float = 0.29
    """Memory of the weights against that of the pool: 14.99 / 51.38 GiB. What a higher TP frees per GPU."""
    memory_to_pool: float = 1.54
    """Memory of the GPU against that of the pool: 79.18 / 51.38 GiB. What a utilization of 1.0 more would add."""
    memory: GpuMemory | None = None
    """When it is known, the pool follows from it and not from the three figures above: a model that needs a higher TP
    to fit at all has no pool at TP 1 to compare with."""
    attention_heads: int = 32
    kv_heads: int = 8
    model_max_len: int = 131_072
    kv_bytes_per_token: int = 131_072
    """At 16 bit, all GPUs together. For `memory`, and for the GiB in messages."""
    max_num_seqs: int = 1024
    """When the flag is not given: 1024 on H100 and H200, 256 on smaller GPUs."""
    max_num_batched_tokens: int = 8192
    """When the flag is not given: 8192 on H100 and H200, 2048 on smaller GPUs."""
    prefix_hit_ratio: float = 0.0
    """Part of each prompt that the prefix cache holds, 0..1, when caching is on. Those blocks are not shared here."""
    cold_requests: int = 0
    """So many requests find the prefix cache cold after a start: how many prefixes there are to be seen once each."""

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=(
                "gpu_blocks", "block_size", "attention_heads", "kv_heads", "model_max_len", "kv_bytes_per_token",
                "max_num_seqs", "max_num_batched_tokens",
            ),
            not_negative=("weights_to_pool", "memory_to_pool", "cold_requests"),
            fractions=("prefix_hit_ratio",),
        )  # fmt: skip

    def blocks(
        self, *, tensor_parallel_size: int, kv_cache_dtype: str, gpu_memory_utilization: float, max_num_seqs: int
    ) -> int:
        """Return the blocks of the pool. The seats cost memory only where `memory` is known.

        A higher TP frees part of the weights and splits the KV heads while there are any; fp8 halves a token's bytes.
        Worked with the defaults: TP 2 gives 26,304 * (1 + 0.29 / 2) * 2 = 60,236; fp8 gives 52,608.
        """
        tokens_per_byte = min(tensor_parallel_size, self.kv_heads) * (2 if kv_cache_dtype.startswith("fp8") else 1)
        if self.memory is not None:
            gib = self.memory.pool_gib(
                gpu_memory_utilization=gpu_memory_utilization,
                tensor_parallel_size=tensor_parallel_size,
                max_num_seqs=max_num_seqs,
            )
            return max(0, int(gib * 2**30 * tokens_per_byte / (self.kv_bytes_per_token * self.block_size)))
        freed = self.weights_to_pool * (1 - 1 / tensor_parallel_size)
        more = self.memory_to_pool * (gpu_memory_utilization - DEFAULT_GPU_MEMORY_UTILIZATION)
        return max(0, int(self.gpu_blocks * (1 + freed + more) * tokens_per_byte + 1e-6))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that a running engine is set to. Raises CoreRefused when the pool cannot hold one longest sequence."""

    max_num_seqs: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    async_scheduling: bool = False
    """Plan a step while the one before runs. vLLM's own default on GPUs since 0.14; on CPUs it is always off."""
    law: StepLaw = field(default_factory=lambda: step_law(StepTimes(), tensor_parallel_size=1, kv_heads=8))
    jitter: float = 0.0
    model_name: str = "simulated"
    """The served name: the `model_name` label."""
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = DEFAULT_GPU_MEMORY_UTILIZATION
    enable_prefix_caching: bool = True
    prefix_hit_ratio: float = 0.0
    cold_requests: int = 0
    num_gpu_blocks_override: int | None = None
    user_specified_block_size: bool = False
    kv_bytes_per_token: int = 131_072

    def __post_init__(self) -> None:
        sizes = ("max_num_seqs", "max_model_len", "block_size", "max_num_batched_tokens", "tensor_parallel_size")
        check_numbers(
            self,
            positive=(*sizes, "gpu_memory_utilization", "kv_bytes_per_token"),
            not_negative=("num_gpu_blocks", "jitter", "cold_requests"),
            fractions=("prefix_hit_ratio",),
        )
        if self.max_num_batched_tokens < self.max_model_len and not self.enable_chunked_prefill:
            message = (
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is smaller than max_model_len "
                f"({self.max_model_len}). This effectively limits the maximum sequence length to "
                "max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
                "max_num_batched_tokens or decrease max_model_len."
            )
            raise ConfigRefused(message, config="SchedulerConfig")
        if self.max_num_batched_tokens < self.max_num_seqs:
            message = (
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be greater than or equal to "
                f"max_num_seqs ({self.max_num_seqs})."
            )
            raise ConfigRefused(message, config="SchedulerConfig")
        usable_tokens = (self.num_gpu_blocks - 1) * self.block_size
        if usable_tokens <= 0:
            raise CoreRefused(
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                "the engine."
            )
        if usable_tokens < self.max_model_len:
            gib = self.kv_bytes_per_token / 2**30
            raise CoreRefused(
                f"To serve at least one request with the model's max seq len ({self.max_model_len}), "
                f"({round(self.max_model_len * gib, 2)} GiB KV cache is needed, which is larger than the available KV "
                f"cache memory ({round(usable_tokens * gib, 2)} GiB). Based on the available memory, the estimated "
                f"maximum model length is {usable_tokens}. Try increasing `gpu_memory_utilization` or decreasing "
                "`max_model_len` when initializing the engine."
            )


def configure(flags: EngineFlags, *, profile: Profile) -> EngineConfig:
    """Return the configuration that these flags give on this model and GPU. Raises StartupRefused as vLLM would."""
    tp = flags.tensor_parallel_size or 1
    if profile.attention_heads % tp:
        message = (
            f"Total number of attention heads ({profile.attention_heads}) must be divisible by tensor parallel size "
            f"({tp})."
        )
        raise ConfigRefused(message, config="VllmConfig")
    if flags.max_model_len is not None and flags.max_model_len > profile.model_max_len:
        message = (
            f"User-specified max_model_len ({flags.max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={float(profile.model_max_len)} or model_max_length=None in model's "
            "config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
        raise ConfigRefused(message, config="ModelConfig")
    dtype = flags.kv_cache_dtype or "auto"
    utilization = flags.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
    block_size = flags.block_size or profile.block_size
    max_num_seqs = flags.max_num_seqs or profile.max_num_seqs
    blocks = flags.num_gpu_blocks_override
    if blocks is None:
        of_profile = profile.blocks(
            tensor_parallel_size=tp,
            kv_cache_dtype=dtype,
            gpu_memory_utilization=utilization,
            max_num_seqs=max_num_seqs,
        )
        blocks = of_profile * profile.block_size // block_size
    max_model_len = flags.max_model_len or profile.model_max_len
    if flags.max_model_len_auto:
        max_model_len = max(1, min(profile.model_max_len, (blocks - 1) * block_size))
    prefix_caching = flags.enable_prefix_caching is not False
    chunked = flags.enable_chunked_prefill is not False
    # vLLM raises its own default to the seats, and without chunks to the longest prompt, but never a value given.
    default_budget = max(profile.max_num_batched_tokens, max_num_seqs, 0 if chunked else max_model_len)
    return EngineConfig(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        num_gpu_blocks=blocks,
        block_size=block_size,
        max_num_batched_tokens=flags.max_num_batched_tokens or default_budget,
        enable_chunked_prefill=chunked,
        scheduling_policy=SchedulingPolicy(flags.scheduling_policy or SchedulingPolicy.FCFS),
        async_scheduling=flags.async_scheduling is True,
        law=step_law(profile.step, tensor_parallel_size=tp, kv_heads=profile.kv_heads, fp8_kv=dtype.startswith("fp8")),
        jitter=profile.step.jitter,
        model_name=flags.served_model_name or flags.model or "simulated",
        kv_cache_dtype=dtype,
        tensor_parallel_size=tp,
        gpu_memory_utilization=utilization,
        enable_prefix_caching=prefix_caching,
        prefix_hit_ratio=profile.prefix_hit_ratio if prefix_caching else 0.0,
        cold_requests=profile.cold_requests,
        num_gpu_blocks_override=flags.num_gpu_blocks_override,
        user_specified_block_size=flags.block_size is not None,
        kv_bytes_per_token=profile.kv_bytes_per_token // (2 if dtype.startswith("fp8") else 1),
    )
