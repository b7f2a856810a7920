"""What an admin may add, and what is refused with its place."""

import pytest

from vllm_autotuner.engine.catalogue import Catalogue, CatalogueError, read_catalogue
from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry
from vllm_autotuner.engine.weights import bytes_per_weight

ROW = {"label": "MI300X", "memoryGiB": 191, "bandwidthTBs": 5.3, "teraflops": 1307}
CONFIG = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 512,
}  # fmt: skip


def test_own_rows_come_first() -> None:
    found = read_catalogue({"gpus": [ROW, {**ROW, "label": "H100", "memoryGiB": 64, "computeCapability": "9.0"}]})
    amd, h100 = found.gpu("AMD-Instinct-MI300X-OAM"), found.gpu("NVIDIA-H100-80GB-HBM3")
    assert amd is not None
    assert (amd.memory_gib, amd.bandwidth, amd.compute_capability) == (191, 5.3e12, None)
    assert h100 is not None
    assert (h100.memory_gib, h100.compute_capability) == (64, (9, 0))


def test_a_model_by_its_config() -> None:
    found = read_catalogue({"models": {"me/mine": CONFIG, "meta-llama/Llama-3.1-8B": {"kv_lora_rank": 512}}})
    mine, replaced = found.shape("me/mine"), found.shape("meta-llama/Llama-3.1-8B")
    assert isinstance(mine, Geometry)
    assert (mine.layers, mine.kv_heads, mine.head_dim) == (2, 2, 16)
    assert isinstance(replaced, UnknownGeometry)
    assert isinstance(found.shape("meta-llama/Llama-3.3-70B-Instruct"), Geometry)


def test_nothing_is_the_built_in_tables() -> None:
    assert read_catalogue(None) == read_catalogue({}) == Catalogue()
    assert Catalogue().gpu(None) is None


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "expected a mapping with the keys gpus"),
        ({"gpu": []}, "expected a mapping with the keys gpus"),
        ({"gpus": {}}, "gpus: expected a list"),
        ({"gpus": ["H100"]}, "gpus[0]: expected"),
        ({"gpus": [ROW, {**ROW, "memory": 1}]}, "gpus[1]: unknown field memory"),
        ({"gpus": [{**ROW, "label": " - "}]}, "gpus[0].label"),
        ({"gpus": [{**ROW, "bandwidthTBs": 0}]}, "gpus[0].bandwidthTBs: 0 is not a positive number"),
        ({"gpus": [{**ROW, "memoryGiB": float("nan")}]}, "gpus[0].memoryGiB"),
        ({"gpus": [{**ROW, "teraflops": True}]}, "gpus[0].teraflops"),
        ({"gpus": [{**ROW, "computeCapability": "9"}]}, "gpus[0].computeCapability"),
        ({"models": []}, "models: expected a mapping"),
        ({"models": {"a": "b"}}, "models: expected a mapping"),
    ],
)
def test_what_is_refused(document: object, says: str) -> None:
    with pytest.raises(CatalogueError) as refused:
        read_catalogue(document)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("model", "args", "size"),
    [
        ("Qwen/Qwen3-32B", (), 2.0),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", (), 1.0),
        ("TheBloke/Llama-2-7B-AWQ", (), 0.56),
        ("nm/Model-w4a16", (), 0.56),
        ("nm/Model-quantized.w8a8", (), 1.0),
        ("/models/plain", ("--quantization", "fp8"), 1.0),
        ("/models/plain-awq", ("--quantization=fp8",), 1.0),
        ("/models/plain", ("-q", "gptq"), 0.56),
        ("/models/plain", ("--quantization", "somethingnew"), None),
        ("/models/plain", ("--quantization",), None),
    ],
)
def test_the_type_of_the_weights(model: str, args: tuple[str, ...], size: float | None) -> None:
    assert bytes_per_weight(model, args) == size


def test_prices_are_by_words_of_the_label_the_longest_first() -> None:
    found = read_catalogue({"prices": {"A100": 1.2, "A100 80GB": 1.9, "h100": 2}, "currency": "EUR"})
    assert found.price("NVIDIA-A100-SXM4-80GB") == 1.9
    assert found.price("NVIDIA-A100-PCIE-40GB") == 1.2
    assert found.price("NVIDIA-H100-80GB-HBM3") == 2
    assert (found.price("Tesla-T4"), found.price(""), found.price(None)) == (None, None, None)
    assert (found.currency, Catalogue().currency) == ("EUR", "")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"prices": [2.5]}, "prices: expected a mapping"),
        ({"prices": {"H100": 0}}, "prices.H100: 0 is not a positive number"),
        ({"prices": {"H100": "2.49"}}, "prices.H100: '2.49' is not a positive number"),
        ({"prices": {"-": 1}}, "prices.-: expected words"),
        ({"currency": "pieces of eight"}, "is not a currency"),
    ],
)
def test_prices_that_are_refused(document: object, says: str) -> None:
    with pytest.raises(CatalogueError) as refused:
        read_catalogue(document)
    assert says in str(refused.value)
