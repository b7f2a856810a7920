"""The engines that scenarios run on. Must not: hold a fitted figure of its own where a profile file has it."""

from typing import Final

from benchmarks.closedloop.scenario import Hardware
from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.step_time import StepTimes

__all__ = ["HARDWARE"]

HARDWARE: Final = {
    hardware.name: hardware
    for hardware in (
        Hardware(name="llama-3.1-8b-h100", profile=Profile(), tensor_parallel_size=1, max_model_len=16_384),
        Hardware(
            name="qwen3-32b-h100-tp2",
            profile=Profile(
                step=StepTimes(
                    base_ms=23.7,
                    per_sequence_ms=0.06,
                    per_ktoken_ms=0.1086,
                    prefill_per_token_ms=0.085,
                    weight_share=0.827,
                ),
                gpu_blocks=1_540,
                weights_to_pool=10.1,
                memory_to_pool=13.1,
                attention_heads=64,
                kv_heads=8,
                model_max_len=40_960,
                kv_bytes_per_token=262_144,
            ),
            tensor_parallel_size=2,
            max_model_len=16_384,
        ),
    )
}
"""By name. Coefficients from measured curves and pool sizes of these models (docs: step-time law, KV capacity)."""
