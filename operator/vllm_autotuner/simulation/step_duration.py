"""The duration of one engine step: t = a + cb * batch + ck * thousands of KV tokens + p * prefill tokens.

Separate from the scheduler, so that another formula changes one file only.
Must not: use requests, queues or the clock.
Source of the form and of the defaults: measured curves of vLLM 0.9 to 0.12 on H100 and H200 (docs: step-time law).
"""

import math
from dataclasses import dataclass

from vllm_autotuner.simulation.plausible import check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The coefficients at tensor parallel size 1. The defaults are Llama-3.1-8B in bf16 on an H100."""

    base_ms: float = 7.0
    """One step of an almost empty batch: reading the weights, plus work per layer and on the host. Measured 7.0-7.4."""
    per_sequence_ms: float = 0.03
    """Sampling and scheduling of one sequence. Measured 0-0.03 for 8B models, about 0.06 for 32B and 70B."""
    per_ktoken_ms: float = 0.054
    """Reading the KV cache of 1,000 tokens: 131,072 bytes per token at 0.72 of 3.35 TB/s."""
    prefill_per_token_ms: float = 0.026
    """Computing one prompt token: 38,700 tokens/s measured."""
    weight_share: float = 0.69
    """Part of `base_ms` that divides by the tensor parallel size (4.8 of 7.0 ms here); the rest does not."""
    all_reduce_ms: float = 0.1
    """What each doubling of the tensor parallel size adds to a step over fast links. Slow links: several ms."""
    prefill_scaling: float = 0.8
    """Prefill per token divides by TP to this power; measured 0.57-0.59 per doubling, so 0.76-0.81."""
    fp8_kv_read: float = 1.0
    """What fp8 KV makes of `per_ktoken_ms`: 1 where it buys capacity only (measured: vLLM 0.10 on H100 and H200), 0.5
    where attention reads half the bytes in half the time."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a random factor on steps, whose mean is 1; 0 makes steps exact."""

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=("base_ms",),
            not_negative=(
                "per_sequence_ms", "per_ktoken_ms", "prefill_per_token_ms", "all_reduce_ms", "prefill_scaling",
                "fp8_kv_read", "jitter",
            ),
            fractions=("weight_share",),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """The coefficients of one running engine, in seconds.

    The scheduler relies on this: while the batch stays, a step grows by the same amount with each token held.
    """

    base: float
    per_sequence: float
    per_held_token: float
    per_prefill_token: float

    def __post_init__(self) -> None:
        coefficients = ("per_sequence", "per_held_token", "per_prefill_token")
        check_numbers(self, positive=("base",), not_negative=coefficients)

    def seconds(self, *, batch: int, held_tokens: int, prefill_tokens: int) -> float:
        """Return the duration of a step with `batch` sequences that hold `held_tokens` of KV between them."""
        return (
            self.base
            + self.per_sequence * batch
            + self.per_held_token * held_tokens
            + self.per_prefill_token * prefill_tokens
        )


def step_law(times: StepTimes, *, tensor_parallel_size: int, kv_heads: int, fp8_kv: bool = False) -> StepLaw:
    """Return the law at this tensor parallel size and KV type.

    Worked with the defaults: TP 2 gives a = 7.0 * (0.69 / 2 + 0.31) + 0.1 = 4.69 ms, not the half of 7.0; measured
    elsewhere x0.63 to x0.66 per doubling. KV heads are copied, not split, beyond one per GPU.
    """
    share = times.weight_share / tensor_parallel_size + 1 - times.weight_share
    base = times.base_ms * share + times.all_reduce_ms * math.log2(tensor_parallel_size)
    per_ktoken = times.per_ktoken_ms * (times.fp8_kv_read if fp8_kv else 1.0)
    return StepLaw(
        base=base / 1e3,
        per_sequence=times.per_sequence_ms / 1e3,
        per_held_token=per_ktoken / min(tensor_parallel_size, kv_heads) / 1e6,
        per_prefill_token=times.prefill_per_token_ms / tensor_parallel_size**times.prefill_scaling / 1e3,
    )
