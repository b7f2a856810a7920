"""The shape of a model that determines memory and speed: layers, heads, sizes.

Separate from the formulas that use it (`performance.kv_capacity`), because a shape is a fact about the model.
Read from a Hugging Face `config.json`, or from the small table of `KNOWN` by the model's name.
Must not: guess. A model whose KV cache is not "two vectors per layer, KV head and token" (latent attention, sliding
windows, state spaces, encoders) is UnknownGeometry with the reason: the formulas do not apply to it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

__all__ = ["KNOWN", "Experts", "Geometry", "ModelShape", "UnknownGeometry", "geometry_from_config", "geometry_named"]


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of each layer of a mixture of experts."""

    total: int
    per_token: int
    """Fewer than there are."""

    @property
    def unread(self) -> float:
        """Share (0..1) of the experts that one token does not read. Worked: 8 of 128, 0.9375."""
        return 1 - self.per_token / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A decoder with full attention in every layer: multi-head, grouped-query or multi-query."""

    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int | None = None
    """The longest sequence it was made for, tokens; None when the configuration does not say."""
    parameters: float | None = None
    """All weights, computed from the sizes; None for shapes whose weights we cannot count (mixtures of experts)."""
    embedding_parameters: float = 0.0
    """Those of them that map tokens to vectors and back: quantised models keep them in 16 bit."""
    experts: Experts | None = None
    """None where every token reads all weights."""

    def kv_bytes_per_token(self, *, bytes_per_value: int) -> int:
        """Return the bytes that one token holds in the KV cache, all GPUs together."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value

    def weight_bytes(self, *, bytes_per_weight: float = 2) -> float | None:
        """Return the memory of the weights, all GPUs together. Worked: Llama-70B in 8 bit, 67.7 GiB (logged 67.8)."""
        if self.parameters is None:
            return None
        inner = self.parameters - self.embedding_parameters
        return inner * bytes_per_weight + self.embedding_parameters * 2


@dataclass(frozen=True, slots=True)
class UnknownGeometry:
    """No shape that the formulas hold for, and this is why."""

    why: str
    experts: Experts | None = None
    """As in `Geometry`: which experts a step reads does not depend on the kind of KV cache."""


ModelShape: TypeAlias = Geometry | UnknownGeometry


def _dense(
    layers: int, hidden: int, intermediate: int, heads: tuple[int, int, int], vocabulary: int, positions: int | None,
    *, tied: bool = False,
) -> Geometry:  # fmt: skip
    """`heads` are attention heads, KV heads and the dimension of a head."""
    attention, kv, dim = heads
    embedding = vocabulary * hidden * (1 if tied else 2)
    per_layer = 2 * hidden * attention * dim + 2 * hidden * kv * dim + 3 * hidden * intermediate
    return Geometry(
        layers=layers,
        attention_heads=attention,
        kv_heads=kv,
        head_dim=dim,
        vocabulary=vocabulary,
        max_positions=positions,
        parameters=float(layers * per_layer + embedding),
        embedding_parameters=float(embedding),
    )


_LLAMA_3_8B: Final = _dense(32, 4096, 14336, (32, 8, 128), 128256, 131072)
_LLAMA_3_70B: Final = _dense(80, 8192, 28672, (64, 8, 128), 128256, 131072)
_MIXTRAL_8X7B: Final = Geometry(
    layers=32, attention_heads=32, kv_heads=8, head_dim=128, vocabulary=32000, max_positions=32768,
    experts=Experts(8, 2),
)  # fmt: skip
_QWEN3_4B: Final = _dense(36, 2560, 9728, (32, 8, 128), 151936, 40960, tied=True)
_QWEN3_30B_A3B: Final = Geometry(
    layers=48, attention_heads=32, kv_heads=4, head_dim=128, vocabulary=151936, max_positions=40960,
    experts=Experts(128, 8),
)  # fmt: skip


def _longer(shape: Geometry) -> Geometry:
    """Return the shape as published in July 2025 for longer sequences."""
    return replace(shape, max_positions=262144)


KNOWN: Final[Mapping[str, Geometry]] = {
    "llama-2-7b": _dense(32, 4096, 11008, (32, 32, 128), 32000, 4096),
    "llama-2-13b": _dense(40, 5120, 13824, (40, 40, 128), 32000, 4096),
    "llama-2-70b": _dense(80, 8192, 28672, (64, 8, 128), 32000, 4096),
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3.1-8b": _LLAMA_3_8B,
    "llama-3-70b": _LLAMA_3_70B,
    "llama-3.1-70b": _LLAMA_3_70B,
    "llama-3.3-70b": _LLAMA_3_70B,
    "llama-3.1-405b": _dense(126, 16384, 53248, (128, 8, 128), 128256, 131072),
    "llama-3.2-1b": _dense(16, 2048, 8192, (32, 8, 64), 128256, 131072, tied=True),
    "llama-3.2-3b": _dense(28, 3072, 8192, (24, 8, 128), 128256, 131072, tied=True),
    "mixtral-8x7b-v0.1": _MIXTRAL_8X7B,
    "mixtral-8x7b-instruct-v0.1": _MIXTRAL_8X7B,
    "mistral-small-3.2-24b": _dense(40, 5120, 32768, (32, 8, 128), 131072, 131072),
    "mistral-nemo": _dense(40, 5120, 14336, (32, 8, 128), 131072, 131072),
    "qwen2.5-0.5b": _dense(24, 896, 4864, (14, 2, 64), 151936, 32768, tied=True),
    "qwen2.5-1.5b": _dense(28, 1536, 8960, (12, 2, 128), 151936, 32768, tied=True),
    "qwen2.5-7b": _dense(28, 3584, 18944, (28, 4, 128), 152064, 32768),
    "qwen2.5-14b": _dense(48, 5120, 13824, (40, 8, 128), 152064, 32768),
    "qwen2.5-32b": _dense(64, 5120, 27648, (40, 8, 128), 152064, 32768),
    "qwen2.5-72b": _dense(80, 8192, 29568, (64, 8, 128), 152064, 32768),
    "qwen3-0.6b": _dense(28, 1024, 3072, (16, 8, 128), 151936, 40960, tied=True),
    "qwen3-4b": _QWEN3_4B,
    "qwen3-4b-instruct-2507": _longer(_QWEN3_4B),
    "qwen3-4b-thinking-2507": _longer(_QWEN3_4B),
    "qwen3-8b": _dense(36, 4096, 12288, (32, 8, 128), 151936, 40960),
    "qwen3-14b": _dense(40, 5120, 17408, (40, 8, 128), 151936, 40960),
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    "qwen3-30b-a3b-instruct-2507": _longer(_QWEN3_30B_A3B),
    "qwen3-30b-a3b-thinking-2507": _longer(_QWEN3_30B_A3B),
    "qwen3-32b": _dense(64, 5120, 25600, (64, 8, 128), 151936, 40960),
    "yi-34b": _dense(60, 7168, 20480, (56, 8, 128), 64000, 4096),
}
"""Source: the `config.json` of each model on Hugging Face."""

_SUFFIX: Final = re.compile(
    r"[-_](instruct|chat|base|hf|it|fp8|dynamic|static|kv|awq|gptq|int4|int8|w4a16|w8a8|bf16|nvfp4|quantized|\d{4})$"
)
"""What follows a name without changing the shape: training, weight type, date."""


def geometry_named(model: str) -> ModelShape:
    """Return the shape of a model by its name, such as `org/Llama-3.3-70B-Instruct-FP8-dynamic`."""
    name = model.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
    while name not in KNOWN and (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return KNOWN.get(name) or UnknownGeometry(
        f"the geometry of {model} is not known: add its config.json under `models` to --catalogue FILE "
        "(chart value `catalogue`)"
    )


LARGEST: Final = 10**9
"""Of any size in a configuration: a thousand times those of the largest models."""

_OTHER_CACHES: Final[Mapping[str, str]] = {
    "kv_lora_rank": "latent attention (MLA)",
    "attention_chunk_size": "chunked local attention in some layers",
    "ssm_cfg": "a state-space model",
    "mamba_d_state": "a state-space model in some layers",
    "layers_block_type": "different kinds of layers",
    "hybrid_override_pattern": "different kinds of layers",
    "linear_num_value_heads": "linear attention in some layers",
}
"""Keys of `config.json` by which a model shows that its cache is another one."""


def geometry_from_config(config: Mapping[str, Any]) -> ModelShape:
    """Read a Hugging Face `config.json`; of a multimodal model, its text part. Never raises."""
    if isinstance(text := config.get("text_config"), Mapping):
        config = {**text, "architectures": config.get("architectures")}
    experts = _experts(config)
    try:
        if (other := _other_cache(config)) is not None:
            return UnknownGeometry(f"{other}: KV cache bytes per token cannot be computed from the heads", experts)
        return replace(_read_dense(config), experts=experts)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        return UnknownGeometry(f"config.json is incomplete: {str(error)[:200]}", experts)


_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Qwen; Mixtral, gpt-oss, MiniMax and Llama 4; DeepSeek, Kimi and GLM."""
_EXPERTS_PER_TOKEN: Final = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
"""The first in all of these; gpt-oss has the second, too."""


def _experts(config: Mapping[str, Any]) -> Experts | None:
    """The experts of a mixture; None where the configuration names none that a token could choose among.

    What is no number is none, and no more: the KV cache does not depend on it.
    """
    total, per_token = (_first_whole(config, names) for names in (_EXPERTS, _EXPERTS_PER_TOKEN))
    return Experts(total, per_token) if 0 < per_token < total <= LARGEST else None


def _first_whole(config: Mapping[str, Any], names: Sequence[str]) -> int:
    """The first of these that is there; 0 where it is no whole number."""
    found = next((config[name] for name in names if config.get(name)), 0)
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _other_cache(config: Mapping[str, Any]) -> str | None:
    for key, what in _OTHER_CACHES.items():
        if config.get(key):
            return what
    if config.get("is_encoder_decoder"):
        return "an encoder and a decoder"
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        return "different kinds of attention in different layers"
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True) and window < (config.get("max_position_embeddings") or 0):
        return f"a sliding window of {window} tokens"
    return None


def _read_dense(config: Mapping[str, Any]) -> Geometry:
    def number(*names: str) -> int:
        for name in names:
            if (value := optional(name)) is not None:
                return value
        raise KeyError(f"no {names[0]}")

    def optional(name: str) -> int | None:
        if config.get(name) is None:
            return None
        if not 0 < (value := int(config[name])) <= LARGEST:
            raise ValueError(f"{name} is {str(config[name])[:40]}")
        return value

    heads = number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    one_kv_head = config.get("multi_query") and not config.get("new_decoder_architecture")
    kv_heads = 1 if one_kv_head else number("num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head")
    geometry = Geometry(
        layers=number("num_hidden_layers", "n_layer"),
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=optional("head_dim") or hidden // heads,
        vocabulary=number("vocab_size"),
        max_positions=optional("max_position_embeddings"),
    )
    intermediate = config.get("intermediate_size")
    if any(config.get(name) for name in _EXPERTS) or not intermediate:
        return geometry
    return _dense(
        geometry.layers, hidden, int(intermediate), (heads, kv_heads, geometry.head_dim), geometry.vocabulary,
        geometry.max_positions, tied=bool(config.get("tie_word_embeddings")),
    )  # fmt: skip
