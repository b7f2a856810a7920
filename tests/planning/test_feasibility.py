"""What cannot start, each check alone."""

from typing import Any

import pytest

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry, geometry_named
from vllm_autotuner.engine.hardware import Gpu, gpu_named
from vllm_autotuner.performance.kv_capacity import PoolEstimate, UnknownPool
from vllm_autotuner.planning.feasibility import (
    Answer,
    Feasible,
    Infeasible,
    Unsure,
    finds_memory,
    fp8_supported,
    heads_divide,
    holds_lengths,
    not_failed,
    placeable,
    pool_starts,
    verdict,
)
from vllm_autotuner.planning.placement import FreeGpus

QWEN_05B = geometry_named("qwen2.5-0.5b")
LLAMA = geometry_named("llama-3.1-8b")
MLA = UnknownGeometry("latent attention (MLA)")
AMD = Gpu(name="MI300X", words=("MI300X",), memory_gib=191, bandwidth=5.3e12, flops=1.3e15, compute_capability=None)


SCARCE = EngineKnobs(max_num_seqs=128, max_model_len=8192, tensor_parallel_size=2)
"""Found too little memory."""


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        pytest.param({}, Infeasible, id="the same"),
        pytest.param({"max_num_seqs": 256}, Infeasible, id="more sequences"),
        pytest.param({"max_num_seqs": 127}, Feasible, id="fewer"),
        pytest.param({"max_model_len": 16_384}, Infeasible, id="longer ones"),
        pytest.param({"max_model_len": 8191}, Feasible, id="shorter ones"),
        pytest.param({"max_num_seqs": 256, "max_model_len": 4096}, Feasible, id="more, but shorter: nobody knows"),
        pytest.param({"max_num_seqs": None}, Feasible, id="the engine's default may be anything"),
        pytest.param({"kv_cache_dtype": "fp8_e5m2"}, Feasible, id="half the bytes"),
        pytest.param({"kv_cache_dtype": "auto"}, Infeasible, id="auto is no narrower"),
        pytest.param({"tensor_parallel_size": 4}, Feasible, id="more GPUs"),
        pytest.param({"tensor_parallel_size": None}, Infeasible, id="one GPU"),
    ],
)
def test_what_needs_as_much_as_what_was_not_there(changed: dict[str, Any], kind: type[Answer]) -> None:
    assert isinstance(finds_memory([SCARCE], SCARCE.updated(**changed)), kind)


def test_a_narrow_cache_that_found_too_little_speaks_for_a_wide_one_too() -> None:
    narrow = EngineKnobs(max_num_seqs=128, kv_cache_dtype="fp8")
    assert finds_memory([narrow], EngineKnobs(max_num_seqs=128)) == Infeasible(
        "not enough memory for maxNumSeqs=128, kvCacheDtype=fp8"
    )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(heads_divide(QWEN_05B, 2), Feasible, id="14 heads, 2 KV heads over 2"),
        pytest.param(heads_divide(QWEN_05B, 4), Infeasible, id="14 heads over 4"),
        pytest.param(heads_divide(QWEN_05B, 7), Infeasible, id="2 KV heads over 7"),
        pytest.param(heads_divide(QWEN_05B, 14), Feasible, id="2 KV heads copied over 14"),
        pytest.param(heads_divide(LLAMA, 16), Feasible, id="8 KV heads copied over 16"),
        pytest.param(heads_divide(MLA, 2), Unsure, id="an unknown shape"),
        pytest.param(fp8_supported(LLAMA, gpu_named("NVIDIA-L40S")), Feasible, id="Ada"),
        pytest.param(fp8_supported(LLAMA, gpu_named("NVIDIA-H100-80GB-HBM3")), Feasible, id="Hopper"),
        pytest.param(fp8_supported(LLAMA, gpu_named("NVIDIA-A10")), Infeasible, id="Ampere"),
        pytest.param(fp8_supported(LLAMA, gpu_named("Tesla-T4")), Infeasible, id="Turing"),
        pytest.param(fp8_supported(LLAMA, AMD), Unsure, id="another vendor"),
        pytest.param(fp8_supported(LLAMA, None), Unsure, id="no GPU named"),
        pytest.param(fp8_supported(MLA, gpu_named("NVIDIA-H100-80GB-HBM3")), Unsure, id="another cache"),
        pytest.param(fp8_supported(MLA, gpu_named("Tesla-T4")), Infeasible, id="what is impossible is not unsure"),
        pytest.param(pool_starts(UnknownPool("?"), longest=9), Unsure, id="an unknown pool"),
        pytest.param(pool_starts(PoolEstimate(tokens=90, low=80, high=100), longest=80), Feasible, id="just enough"),
        pytest.param(pool_starts(PoolEstimate(tokens=90, low=80, high=100), longest=81), Unsure, id="too close"),
        pytest.param(pool_starts(PoolEstimate(tokens=90, low=80, high=100), longest=101), Infeasible, id="too small"),
        pytest.param(pool_starts(PoolEstimate(tokens=0, low=0, high=0), longest=None), Infeasible, id="no room"),
        pytest.param(pool_starts(PoolEstimate(tokens=9, low=0, high=20), longest=None), Unsure, id="perhaps no room"),
        pytest.param(pool_starts(PoolEstimate(tokens=9, low=1, high=20), longest=None), Feasible, id="some room"),
        pytest.param(holds_lengths(4096, longest_seen=4096, shape=LLAMA), Feasible, id="as long as needed"),
        pytest.param(holds_lengths(4095, longest_seen=4096, shape=LLAMA), Infeasible, id="would refuse requests"),
        pytest.param(holds_lengths(4096, longest_seen=None, shape=LLAMA), Unsure, id="no lengths"),
        pytest.param(holds_lengths(200_000, longest_seen=1, shape=LLAMA), Infeasible, id="longer than the model"),
        pytest.param(placeable(None, devices=1), Unsure, id="nobody looked"),
        pytest.param(placeable(FreeGpus(free=(0,), largest_node=8), devices=8), Infeasible, id="all taken"),
        pytest.param(placeable(FreeGpus(free=(8,), largest_node=8), devices=8), Feasible, id="a whole node"),
        pytest.param(not_failed([("maxModelLen", "8")], knob="maxNumSeqs", value=8), Feasible, id="another knob"),
        pytest.param(not_failed([("maxNumSeqs", "8")], knob="maxNumSeqs", value=8), Infeasible, id="tried"),
    ],
)
def test_each_check(answer: Answer, kind: type[Answer]) -> None:
    assert isinstance(answer, kind)


def test_impossible_is_stricter_than_unsure_than_nothing_against_it() -> None:
    no, unsure = Infeasible("no"), Unsure("?")
    assert verdict([Feasible(), unsure, no]) is no
    assert verdict([Feasible(), unsure]) is unsure
    assert isinstance(verdict([Feasible()]), Feasible)
    assert isinstance(verdict([]), Feasible)


def test_the_table_is_about_plain_decoders() -> None:
    assert isinstance(LLAMA, Geometry)
    assert isinstance(QWEN_05B, Geometry)
