"""Profiles as data files: those that ship, and those that no engine could have."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.configuration import configure
from vllm_autotuner.simulation.profiles import (
    ProfileError,
    load_profile,
    profile_document,
    profile_names,
    profile_text,
)


def some(**changes: Any) -> dict[str, Any]:
    """A file of a possible engine, but for what is named: `step={"base_ms": 0}`."""
    data: dict[str, Any] = {
        "model": "some/model",
        "gpu": "some GPU",
        "tensor_parallel_sizes": [1],
        "step": {"base_ms": 9, "per_sequence_ms": 0.05, "per_ktoken_ms": 0.07, "prefill_per_token_ms": 0.03},
        "memory": {"total_gib": 40, "weights_gib": 12, "fixed_gib": 1, "per_seat_mib": 4},
        "engine": {"attention_heads": 24, "kv_heads": 6, "kv_bytes_per_token": 98304, "model_max_len": 8192},
    }
    for part, change in changes.items():
        data[part] = {**data[part], **change} if isinstance(change, dict) else change
    return data


def written(folder: Path, text: str) -> str:
    path = folder / "mine.json"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_that_ships_starts_where_it_was_measured(name: str) -> None:
    document = profile_document(name)
    assert document.tensor_parallel_sizes
    for size in document.tensor_parallel_sizes:
        flags = EngineFlags(tensor_parallel_size=size, max_model_len=4096, gpu_memory_utilization=0.9)
        assert configure(flags, profile=document.profile).num_gpu_blocks > 256


def test_the_profiles_of_the_measured_models_ship() -> None:
    assert {"llama-3.1-70b-h100", "llama-3.1-70b-h200", "llama-3.1-8b-h100", "qwen3-32b-h100"} <= set(profile_names())


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    document = profile_document(written(tmp_path, json.dumps(some())))
    again = profile_document(written(tmp_path, profile_text(document)))
    assert again == document


def test_the_pool_is_what_the_memory_leaves(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, json.dumps(some())))
    # 0.9 * 40 - 12 / 2 - 1 - 4 MiB * 256 / 1024 = 28 GiB per GPU; 98,304 / 2 bytes per token and GPU, 16 per block.
    assert profile.blocks(
        tensor_parallel_size=2, kv_cache_dtype="auto", gpu_memory_utilization=0.9, max_num_seqs=256
    ) == 28 * 2**30 // (98304 // 2 * 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"step": {"base_ms": 0}}, "StepTimes.base_ms: 0.0 is not a number above 0", id="no step takes no time"
        ),
        pytest.param(
            {"step": {"per_ktoken_ms": -0.1}}, "StepTimes.per_ktoken_ms: -0.1 is not a number 0 or more", id="negative"
        ),
        pytest.param(
            {"step": {"weight_share": 1.2}},
            "StepTimes.weight_share: 1.2 is not a number from 0 to 1",
            id="share above 1",
        ),
        pytest.param({"step": {"base_ms": "fast"}}, "step.base_ms is 'fast', not a number", id="text"),
        pytest.param({"step": {"base_ms": True}}, "step.base_ms is True, not a number", id="truth"),
        pytest.param({"step": {"base_us": 9}}, "step.base_us does not exist", id="unknown name"),
        pytest.param({"step": 3}, "step is not an object", id="a part that is a number"),
        pytest.param({"engine": {"kv_heads": 5}}, "24 attention heads cannot share 5 KV heads", id="heads"),
        pytest.param({"engine": {"kv_heads": 1.5}}, "engine.kv_heads is 1.5, not a whole number", id="half a head"),
        pytest.param({"memory": {"fixed_gib": 50}}, "memory.fixed_gib is 50", id="no memory left"),
        pytest.param({"tensor_parallel_sizes": [0]}, "tensor_parallel_sizes is not", id="TP 0"),
        pytest.param({"engine": {"model_max_len": 10**400}}, "too large", id="a number that no float holds"),
        pytest.param({"provenance": "measured"}, "provenance is not an object", id="provenance in words"),
    ],
)
def test_an_impossible_profile_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"mine\.json: ") as caught:
        load_profile(written(tmp_path, json.dumps(some(**changes))))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "line 1: not JSON", id="empty"),
        pytest.param('{\n"model": }', "line 2: not JSON", id="broken"),
        pytest.param("[" * 20_000, "nested too deeply", id="nested"),
        pytest.param("[]", "not a JSON object", id="a list"),
        pytest.param('{"step": ' + "1" * 5000 + "}", "4300 digits", id="a number that does not end"),
        pytest.param("{}", "'step' is missing", id="nothing in it"),
        pytest.param(json.dumps(some(step={"base_ms": float("nan")})), "step.base_ms is nan", id="not a number"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(written(tmp_path, text))
    assert reason in str(caught.value)
    assert "mine.json" in str(caught.value)


def test_what_a_file_must_say_has_no_default(tmp_path: Path) -> None:
    data = some()
    del data["engine"]["kv_bytes_per_token"]
    with pytest.raises(ProfileError, match=r"engine\.kv_bytes_per_token is missing"):
        load_profile(written(tmp_path, json.dumps(data)))


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ProfileError, match="unknown profile 'gpt-9': use one of llama"):
        load_profile("gpt-9")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProfileError, match=r"/nowhere/mine\.json: "):
        load_profile("/nowhere/mine.json")
