"""A number that no engine has is refused at once, by name."""

import math
from typing import Any

import pytest
from tests.simulation.virtual import config

from vllm_autotuner.simulation.configuration import GpuMemory, Profile
from vllm_autotuner.simulation.environment import Settings, SettingsError, settings_from
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.step_duration import StepLaw, StepTimes

LAW = {"base": 0.01, "per_sequence": 0.0, "per_held_token": 0.0, "per_prefill_token": 0.0}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (StepTimes, {"base_ms": 0.0}, "StepTimes.base_ms: 0.0 is not a number above 0"),
        (StepTimes, {"per_ktoken_ms": -0.1}, "StepTimes.per_ktoken_ms: -0.1 is not a number 0 or more"),
        (StepTimes, {"prefill_per_token_ms": math.nan}, "StepTimes.prefill_per_token_ms: nan is not"),
        (StepTimes, {"weight_share": 1.5}, "StepTimes.weight_share: 1.5 is not a number from 0 to 1"),
        (StepTimes, {"jitter": math.inf}, "StepTimes.jitter: inf is not"),
        (StepLaw, {**LAW, "base": 0.0}, "StepLaw.base: 0.0 is not a number above 0"),
        (StepLaw, {**LAW, "per_held_token": -1e-9}, "StepLaw.per_held_token: -1e-09 is not"),
        (Profile, {"gpu_blocks": 0}, "Profile.gpu_blocks: 0 is not a number above 0"),
        (Profile, {"kv_bytes_per_token": -1}, "Profile.kv_bytes_per_token: -1 is not"),
        (Profile, {"prefix_hit_ratio": 1.01}, "Profile.prefix_hit_ratio: 1.01 is not"),
        (GpuMemory, {"total_gib": math.nan, "weights_gib": 1.0}, "GpuMemory.total_gib: nan is not"),
        (Faults, {"wedge_after": -1.0}, "Faults.wedge_after: -1.0 is not a number 0 or more"),
        (Faults, {"degrade_factor": 0.0}, "Faults.degrade_factor: 0.0 is not"),
        (Faults, {"slowdown_per_hour": math.nan}, "Faults.slowdown_per_hour: nan is not"),
        (Settings, {"runaway_share": 2.0}, "Settings.runaway_share: 2.0 is not"),
        (config, {"max_num_seqs": 0}, "EngineConfig.max_num_seqs: 0 is not a number above 0"),
        (config, {"block_size": -16}, "EngineConfig.block_size: -16 is not"),
        (config, {"jitter": math.nan}, "EngineConfig.jitter: nan is not"),
    ],
)
def test_names_the_field_and_what_it_may_be(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="is not a number") as refused:
        kind(**fields)
    assert str(refused.value).startswith(message)


def test_what_is_not_given_is_not_checked() -> None:
    assert Faults(wedge_after=None).halts_after == math.inf


def test_an_impossible_environment_is_refused_with_the_field() -> None:
    with pytest.raises(SettingsError, match=r"Profile\.prefix_hit_ratio: 3\.0 is not a number from 0 to 1"):
        settings_from({"SIM_PREFIX_HIT_RATIO": "3"})
