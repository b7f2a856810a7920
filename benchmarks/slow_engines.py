"""An engine whose steps take longer, whatever is in them: a GPU that is throttled or shared."""

from dataclasses import replace

from vllm_autotuner.simulation.configuration import EngineConfig

__all__ = ["slower"]


def slower(engine: EngineConfig, *, factor: float) -> EngineConfig:
    """Return the engine with every step `factor` times as long."""
    law = engine.law
    slow = replace(
        law,
        base=law.base * factor,
        per_sequence=law.per_sequence * factor,
        per_held_token=law.per_held_token * factor,
        per_prefill_token=law.per_prefill_token * factor,
    )
    return replace(engine, law=slow)
