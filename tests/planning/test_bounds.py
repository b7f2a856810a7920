"""What the user's bounds allow."""

import pytest

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Scaling, Tuning
from vllm_autotuner.planning.bounds import opted_in, outside, value_of, void, with_value

ALL = Tuning(
    max_num_seqs=IntBounds(min=16, max=256),
    max_model_len=IntBounds(min=4096, max=8192),
    kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")),
    tensor_parallel_size=AllowedInts(allowed=(1, 4)),
)
SCALING = Scaling(min_replicas=2, max_replicas=3)


@pytest.mark.parametrize(
    ("knob", "value", "inside"),
    [
        (Knob.MAX_NUM_SEQS, 16, True),
        (Knob.MAX_NUM_SEQS, 257, False),
        (Knob.MAX_MODEL_LEN, 4095, False),
        (Knob.MAX_MODEL_LEN, "8192", False),
        (Knob.KV_CACHE_DTYPE, "fp8", True),
        (Knob.KV_CACHE_DTYPE, "fp8_e5m2", False),
        (Knob.TENSOR_PARALLEL_SIZE, 4, True),
        (Knob.TENSOR_PARALLEL_SIZE, 2, False),
        (Knob.REPLICAS, 3, True),
        (Knob.REPLICAS, 1, False),
        (Knob.REPLICAS, None, False),
    ],
)
def test_inside_or_the_field_that_forbids(knob: Knob, value: int | str | None, inside: bool) -> None:
    why = outside(knob, value, tuning=ALL, scaling=SCALING)
    assert (why == "") is inside
    assert inside or ("spec.scaling" if knob is Knob.REPLICAS else f"spec.tuning.{knob.value}") in why


@pytest.mark.parametrize("knob", list(Knob))
def test_without_bounds_nothing_is_ours_and_nothing_is_outside(knob: Knob) -> None:
    assert not opted_in(knob, tuning=Tuning(), scaling=None)
    assert outside(knob, 7, tuning=Tuning(), scaling=None) == ""
    assert opted_in(knob, tuning=ALL, scaling=SCALING)


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (EngineKnobs(), None),
        (EngineKnobs(max_num_seqs=64, tensor_parallel_size=4), None),
        (EngineKnobs(max_num_seqs=8), Knob.MAX_NUM_SEQS),
        (EngineKnobs(max_num_seqs=64, kv_cache_dtype="fp8_e5m2"), Knob.KV_CACHE_DTYPE),
        (EngineKnobs(tensor_parallel_size=2), Knob.TENSOR_PARALLEL_SIZE),
        (EngineKnobs(max_model_len=9000), Knob.MAX_MODEL_LEN),
    ],
)
def test_a_setting_is_void_by_any_of_its_values(knobs: EngineKnobs, names: Knob | None) -> None:
    why = void(knobs, tuning=ALL)
    assert (why == "") if names is None else (f"spec.tuning.{names.value}" in why)


def test_the_value_of_each_knob() -> None:
    knobs = EngineKnobs(max_num_seqs=1, max_model_len=2, kv_cache_dtype="fp8", tensor_parallel_size=4)
    assert [value_of(knob, knobs) for knob in Knob] == [1, 2, "fp8", 4, None]


@pytest.mark.parametrize(
    ("knob", "changed"),
    [
        (Knob.MAX_NUM_SEQS, EngineKnobs(max_num_seqs=4)),
        (Knob.MAX_MODEL_LEN, EngineKnobs(max_model_len=4)),
        (Knob.TENSOR_PARALLEL_SIZE, EngineKnobs(tensor_parallel_size=4)),
    ],
)
def test_only_the_proposed_knob_moves(knob: Knob, changed: EngineKnobs) -> None:
    assert with_value(EngineKnobs(), knob, 4) == changed


def test_the_kv_type_is_a_word() -> None:
    assert with_value(EngineKnobs(), Knob.KV_CACHE_DTYPE, "fp8") == EngineKnobs(kv_cache_dtype="fp8")


def test_replicas_are_no_setting_of_the_engine() -> None:
    with pytest.raises(ValueError, match="replicas are not an engine setting"):
        with_value(EngineKnobs(), Knob.REPLICAS, 2)


@pytest.mark.parametrize(
    ("knob", "value"),
    [(Knob.KV_CACHE_DTYPE, 4), (Knob.MAX_NUM_SEQS, "fp8"), (Knob.TENSOR_PARALLEL_SIZE, 0), (Knob.MAX_MODEL_LEN, 0)],
)
def test_a_value_of_another_kind_never_reaches_a_status(knob: Knob, value: int | str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        with_value(EngineKnobs(), knob, value)
