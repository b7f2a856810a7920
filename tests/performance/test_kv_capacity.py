"""What a pool holds: arithmetic against made-up models, forecasts against logged start-ups (tests/benchmarks)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry
from vllm_autotuner.engine.hardware import Gpu
from vllm_autotuner.performance.kv_capacity import (
    Pool,
    PoolEstimate,
    PoolForecast,
    UnknownPool,
    first_pool,
    kv_bytes_per_token_per_gpu,
    kv_value_bytes,
    pool_after,
)

SHAPE = Geometry(
    layers=30, attention_heads=24, kv_heads=6, head_dim=128, vocabulary=100_000, parameters=10e9,
    embedding_parameters=0.5e9,
)  # fmt: skip
GPU = Gpu(name="GPU", words=("GPU",), memory_gib=60, bandwidth=2e12, flops=4e14, compute_capability=(9, 0))
RUNNING = Pool(tokens=200_000, tensor_parallel_size=2, gpu_memory_utilization=0.9, max_num_seqs=256)
PER_TOKEN = 2 * 30 * 3 * 128 * 2  # two GPUs: three of six heads each


def known(forecast: PoolForecast) -> PoolEstimate:
    assert isinstance(forecast, PoolEstimate), forecast
    return forecast


@pytest.mark.parametrize(
    ("size", "heads"), [(1, 6), (2, 3), (3, 2), (6, 1), (12, 1)], ids=["all", "half", "third", "one", "copied"]
)
def test_heads_are_split_until_each_gpu_has_one(size: int, heads: int) -> None:
    assert kv_bytes_per_token_per_gpu(SHAPE, tensor_parallel_size=size) == 2 * 30 * heads * 128 * 2


@pytest.mark.parametrize(
    ("dtype", "size"), [(None, 2), ("auto", 2), ("bfloat16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_fp8_is_half(dtype: str | None, size: int) -> None:
    assert kv_value_bytes(dtype) == size


def test_the_kv_type_alone_is_carried_over_exactly() -> None:
    after = known(pool_after(RUNNING, replace(RUNNING, kv_cache_dtype="fp8"), shape=SHAPE, gpu=None))
    assert (after.low, after.tokens, after.high) == (400_000, 400_000, 400_000)


def test_more_utilization_adds_its_share_of_the_gpu() -> None:
    after = known(pool_after(RUNNING, replace(RUNNING, gpu_memory_utilization=0.95), shape=SHAPE, gpu=GPU))
    assert after.tokens == pytest.approx(200_000 + 0.05 * 60 * 2**30 / PER_TOKEN)
    assert after.low < after.tokens < after.high


def test_a_higher_tp_frees_weights_and_splits_heads() -> None:
    after = known(pool_after(RUNNING, replace(RUNNING, tensor_parallel_size=6), shape=SHAPE, gpu=GPU))
    freed = 20e9 * (1 / 2 - 1 / 6)
    assert after.tokens == pytest.approx((200_000 * PER_TOKEN + freed) / (PER_TOKEN / 3))


def test_a_tp_beyond_the_heads_only_frees_weights() -> None:
    at_6 = replace(RUNNING, tensor_parallel_size=6)
    after = known(pool_after(at_6, replace(at_6, tensor_parallel_size=12), shape=SHAPE, gpu=GPU))
    assert after.tokens == pytest.approx(200_000 + 20e9 * (1 / 6 - 1 / 12) / (PER_TOKEN / 3))


def test_a_model_that_no_longer_fits_holds_nothing() -> None:
    after = known(pool_after(RUNNING, replace(RUNNING, gpu_memory_utilization=0.2), shape=SHAPE, gpu=GPU))
    assert (after.tokens, after.high) == (0, 0)


@pytest.mark.parametrize("seats", [512, 128], ids=["more seats", "fewer seats"])
def test_slots_cost_what_the_sampler_is_profiled_with_or_nothing(seats: int) -> None:
    after = known(pool_after(RUNNING, replace(RUNNING, max_num_seqs=seats), shape=SHAPE, gpu=GPU))
    moved = 200_000 - (seats - 256) * 39 * 100_000 / PER_TOKEN
    assert after.tokens == pytest.approx(moved)
    assert after.low == pytest.approx(min(moved, 200_000))
    assert after.high == pytest.approx(max(moved, 200_000))


@pytest.mark.parametrize(
    ("shape", "gpu", "wanted", "why"),
    [
        pytest.param(UnknownGeometry("MLA"), GPU, RUNNING, "MLA", id="another cache"),
        pytest.param(SHAPE, None, replace(RUNNING, gpu_memory_utilization=0.95), "GPU is not known", id="GPU"),
        pytest.param(
            replace(SHAPE, parameters=None), GPU, replace(RUNNING, tensor_parallel_size=4), "weights", id="weights"
        ),
    ],
)
def test_what_is_missing_is_named(shape: Geometry, gpu: Gpu | None, wanted: Pool, why: str) -> None:
    forecast = pool_after(RUNNING, wanted, shape=shape, gpu=gpu)
    assert isinstance(forecast, UnknownPool)
    assert why in forecast.why


def test_utilization_alone_does_not_need_the_weights() -> None:
    wanted = replace(RUNNING, gpu_memory_utilization=0.95)
    without = pool_after(RUNNING, wanted, shape=replace(SHAPE, parameters=None), gpu=GPU)
    assert without == pool_after(RUNNING, wanted, shape=SHAPE, gpu=GPU)


def test_a_first_pool_is_what_memory_leaves() -> None:
    wanted = Pool(tokens=0, gpu_memory_utilization=0.9, max_num_seqs=1024)
    found = known(first_pool(wanted, shape=SHAPE, gpu=GPU))
    left = (0.9 * 60 - 0.5) * 2**30 - 20e9 - 1024 * 39 * 100_000
    assert found.tokens == pytest.approx(left / (2 * PER_TOKEN))
    assert found.high - found.low == pytest.approx(2 * 0.6 * 2**30 / (2 * PER_TOKEN))


@pytest.mark.parametrize(
    ("shape", "gpu"),
    [(UnknownGeometry("MLA"), GPU), (SHAPE, None), (replace(SHAPE, parameters=None), GPU)],
    ids=["shape", "GPU", "weights"],
)
def test_no_first_pool_without_shape_gpu_and_weights(shape: Geometry, gpu: Gpu | None) -> None:
    assert isinstance(first_pool(RUNNING, shape=shape, gpu=gpu), UnknownPool)


@given(
    st.floats(1e3, 1e7), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8, 16]),
    st.floats(0.3, 0.99), st.floats(0.3, 0.99),
)  # fmt: skip
def test_there_and_back_is_where_it_was(tokens: float, one: int, other: int, little: float, much: float) -> None:
    here = Pool(tokens=tokens, tensor_parallel_size=one, gpu_memory_utilization=little)
    there = Pool(tokens=0, tensor_parallel_size=other, gpu_memory_utilization=much)
    moved = known(pool_after(here, there, shape=SHAPE, gpu=GPU))
    assert moved.low <= moved.tokens <= moved.high
    if moved.tokens > 0:
        back = known(pool_after(replace(there, tokens=moved.tokens), here, shape=SHAPE, gpu=GPU))
        assert back.tokens == pytest.approx(tokens, rel=1e-6, abs=1)
