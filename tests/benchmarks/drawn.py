"""One small case for tests of the closed loop: an engine with round figures under a load that fits or does not."""

from dataclasses import replace
from typing import Any

from benchmarks.closedloop.scenario import COMPRESSED, Hardware, Objectives, Scenario
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.lengths import Fixed
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.step_duration import StepTimes
from vllm_autotuner.simulation.traffic import Content, Mix

PROFILE = Profile(
    step=StepTimes(base_ms=20, per_sequence_ms=0.1, per_ktoken_ms=0.05, prefill_per_token_ms=0.02), gpu_blocks=20_000
)
"""Steps of 20 ms alone and about 25 ms at 32 sequences of 400 tokens."""


def case(*, rate: float = 1.0, seconds: float = 600.0, **changes: Any) -> Scenario:
    """One replica that serves prompts of 300 and outputs of 200 tokens; everything fits but for what is named."""
    scenario = Scenario(
        name="case",
        seed=1,
        story="a case",
        duration=seconds,
        hardware=Hardware(name="model", profile=PROFILE, tensor_parallel_size=1, max_model_len=4096),
        rate=RateCurve.steps([(0.0, rate), (seconds, 0.0)]),
        content=Content(Mix(prompt=Fixed(300), output=Fixed(200))),
        burstiness=1.0,
        objectives=Objectives(ttft=2.0, tpot=0.04),
        seats=64,
        replicas=1,
        min_replicas=1,
        max_replicas=4,
        seat_bounds=(4, 256),
        startup=60.0,
        patience=60.0,
        routing=Routing.LEAST_OUTSTANDING,
        grace=65,
        rhythm=COMPRESSED,
    )
    return replace(scenario, **changes)
