"""The shape of a model: from its config.json, or from its name; and what is not such a shape says so."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_autotuner.engine.geometry import (
    KNOWN,
    Experts,
    Geometry,
    UnknownGeometry,
    geometry_from_config,
    geometry_named,
)

MADE_UP: dict[str, Any] = {
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 6,
    "vocab_size": 100_000,
    "max_position_embeddings": 65_536,
}


def config(**changes: Any) -> dict[str, Any]:
    """A dense model with grouped queries but for what is named; None takes a key out."""
    return {name: value for name, value in {**MADE_UP, **changes}.items() if value is not None}


def read(**changes: Any) -> Geometry:
    shape = geometry_from_config(config(**changes))
    assert isinstance(shape, Geometry), shape
    return shape


@pytest.mark.parametrize(
    ("changes", "kv_heads", "head_dim"),
    [
        pytest.param({}, 6, 128, id="grouped queries"),
        pytest.param({"num_key_value_heads": None}, 24, 128, id="no KV heads named: as many as attention heads"),
        pytest.param({"num_key_value_heads": 1}, 1, 128, id="one KV head"),
        pytest.param({"num_key_value_heads": None, "multi_query": True}, 1, 128, id="multi-query by a flag"),
        pytest.param({"head_dim": 96}, 6, 96, id="a head of its own size"),
        pytest.param({"sliding_window": 4096, "use_sliding_window": False}, 6, 128, id="a window that is not used"),
        pytest.param({"sliding_window": 65_536}, 6, 128, id="a window as long as the model"),
        pytest.param({"layer_types": ["full_attention"] * 30}, 6, 128, id="full attention in every layer"),
    ],
)
def test_reads_what_decides_the_cache(changes: dict[str, Any], kv_heads: int, head_dim: int) -> None:
    shape = read(**changes)
    assert (shape.layers, shape.attention_heads, shape.kv_heads, shape.head_dim) == (30, 24, kv_heads, head_dim)
    assert shape.kv_bytes_per_token(bytes_per_value=2) == 2 * 30 * kv_heads * head_dim * 2


def test_a_model_with_eyes_is_read_by_its_text_part() -> None:
    assert geometry_from_config({"text_config": MADE_UP, "vision_config": {"hidden_size": 1}}) == read()


def test_weights_are_counted_where_they_follow_from_the_sizes() -> None:
    # Per layer: queries and outputs 2 * 3072 * 3072, keys and values 2 * 3072 * 768, three times 3072 * 9216.
    layers = 30 * (2 * 3072 * 3072 + 2 * 3072 * 768 + 3 * 3072 * 9216)
    embedding = 100_000 * 3072
    assert read().parameters == layers + 2 * embedding
    assert read(tie_word_embeddings=True).parameters == layers + embedding
    assert read().weight_bytes(bytes_per_weight=1) == layers + 4 * embedding
    assert read(num_local_experts=8).parameters is None
    assert read(num_local_experts=8).weight_bytes() is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"kv_lora_rank": 512}, "latent attention", id="MLA"),
        pytest.param({"sliding_window": 4096}, "a sliding window of 4096 tokens", id="sliding window"),
        pytest.param({"layer_types": ["full_attention", "sliding_attention"]}, "different kinds", id="hybrid"),
        pytest.param({"attention_chunk_size": 8192}, "chunked", id="chunks"),
        pytest.param({"mamba_d_state": 16}, "state-space", id="state space"),
        pytest.param({"is_encoder_decoder": True}, "an encoder", id="encoder and decoder"),
        pytest.param({"num_hidden_layers": None}, "no num_hidden_layers", id="incomplete"),
        pytest.param({"num_attention_heads": 0}, "num_attention_heads is 0", id="no heads"),
        pytest.param({"hidden_size": "wide"}, "is incomplete", id="text"),
    ],
)
def test_another_cache_is_unknown_and_says_why(changes: dict[str, Any], why: str) -> None:
    shape = geometry_from_config(config(**changes))
    assert isinstance(shape, UnknownGeometry)
    assert why in shape.why


@pytest.mark.parametrize(
    ("changes", "experts"),
    [
        pytest.param({"num_experts": 128, "num_experts_per_tok": 8}, Experts(128, 8), id="Qwen3-30B-A3B"),
        pytest.param({"num_local_experts": 8, "num_experts_per_tok": 2}, Experts(8, 2), id="Mixtral-8x7B"),
        pytest.param({"n_routed_experts": 256, "num_experts_per_tok": 8}, Experts(256, 8), id="DeepSeek-V3"),
        pytest.param({"num_local_experts": 128, "experts_per_token": 4}, Experts(128, 4), id="gpt-oss-120b"),
        pytest.param({"num_local_experts": 0, "num_experts_per_tok": 2}, None, id="none, as Granite writes it"),
        pytest.param({"num_experts": 1, "num_experts_per_tok": 1}, None, id="one, which every token reads"),
        pytest.param({"num_experts": 4, "num_experts_per_tok": 8}, None, id="more a token than there are"),
        pytest.param({"num_experts": -4, "num_experts_per_tok": -8}, None, id="negative"),
        pytest.param({"num_experts": 10**12, "num_experts_per_tok": 8}, None, id="too many"),
        pytest.param({"num_experts": 128}, None, id="not told how many a token reads"),
    ],
)
def test_the_experts_of_a_mixture(changes: dict[str, Any], experts: Experts | None) -> None:
    assert read(**changes).experts == experts


@pytest.mark.parametrize("number", ["many", [8], {"a": 1}, float("nan"), float("inf"), 7.5, True])
@pytest.mark.parametrize("name", ["num_experts", "num_experts_per_tok"])
def test_experts_that_are_no_number_cost_nothing_but_themselves(name: str, number: object) -> None:
    """One number for each layer, as some configurations have it, took the KV cache with it."""
    found = read(**{"num_experts": 128, "num_experts_per_tok": 8, name: number})
    assert found.experts is None
    assert found.parameters is None
    assert found.kv_bytes_per_token(bytes_per_value=2) == read().kv_bytes_per_token(bytes_per_value=2)


def test_experts_are_known_whatever_the_cache_is() -> None:
    found = geometry_from_config(config(kv_lora_rank=512, n_routed_experts=384, num_experts_per_tok=8))
    assert isinstance(found, UnknownGeometry)
    assert found.experts == Experts(384, 8)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("/models/Yi-34B/", "yi-34b"),
        ("Qwen/Qwen3-30B-A3B-FP8", "qwen3-30b-a3b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b-instruct-v0.1"),
    ],
)
def test_a_name_is_known_by_what_it_is_called_without_training_and_type(name: str, known: str) -> None:
    assert geometry_named(name) is KNOWN[known]


@pytest.mark.parametrize("size", ["4B", "30B-A3B"])
@pytest.mark.parametrize("training", ["Instruct", "Thinking"])
def test_a_later_date_may_hold_longer_sequences(size: str, training: str) -> None:
    """Their max-model-len was refused: "the model supports at most 40960 tokens"."""
    first, later = (geometry_named(f"Qwen/Qwen3-{size}{what}") for what in ("", f"-{training}-2507-FP8"))
    assert isinstance(first, Geometry)
    assert isinstance(later, Geometry)
    assert (first.max_positions, later.max_positions) == (40_960, 262_144)
    assert later == replace(first, max_positions=262_144)


@pytest.mark.parametrize("name", ["tiny", "some/Llama-3.1-70B-Eagle", "Qwen3-32B-with-a-tail", "", "gpt-oss-20b"])
def test_a_name_that_only_resembles_one_is_unknown(name: str) -> None:
    found = geometry_named(name)
    assert isinstance(found, UnknownGeometry)
    assert "add its config.json under `models` to --catalogue FILE" in found.why


@pytest.mark.parametrize("shape", KNOWN.values(), ids=KNOWN.keys())
def test_every_known_shape_can_exist(shape: Geometry) -> None:
    assert shape.attention_heads % shape.kv_heads == 0
    if shape.experts is None:
        assert shape.parameters is not None
        assert shape.parameters > shape.embedding_parameters > 0
    else:
        assert shape.parameters is None, "weights of mixtures are not counted"
        assert 0 < shape.experts.per_token < shape.experts.total


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-3.1-70b", 70.55), ("qwen3-32b", 32.76), ("qwen2.5-7b", 7.62), ("yi-34b", 34.39)],
)
def test_the_count_of_weights_is_that_of_the_model_cards(name: str, billions: float) -> None:
    assert KNOWN[name].parameters == pytest.approx(billions * 1e9, rel=0.002)
