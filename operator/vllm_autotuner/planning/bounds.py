"""Checks values against the bounds in the spec, for the planner, the guardrails, the rollback and the renderer.

Must not: judge whether a value is useful or feasible.
"""

from collections.abc import Mapping

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Scaling, Tuning

__all__ = ["opted_in", "outside", "value_of", "void", "with_value", "with_values"]


def opted_in(knob: Knob, *, tuning: Tuning, scaling: Scaling | None) -> bool:
    """Whether the spec sets bounds for a knob, which allows the operator to change it."""
    return _bounds(knob, tuning=tuning, scaling=scaling) is not None


def outside(knob: Knob, value: int | str | None, *, tuning: Tuning, scaling: Scaling | None) -> str:
    """Say why the bounds forbid the value; empty when they allow it, or when there are none."""
    match _bounds(knob, tuning=tuning, scaling=scaling):
        case IntBounds(min=low, max=high):
            inside, allowed = isinstance(value, int) and low <= value <= high, f"{low} to {high}"
        case Scaling(min_replicas=low, max_replicas=high):
            inside, allowed = isinstance(value, int) and low <= value <= high, f"{low} to {high}"
        case AllowedInts(allowed=listed) | AllowedStrings(allowed=listed):
            inside, allowed = value in listed, ", ".join(map(str, listed))
        case None:
            return ""
    return "" if inside else f"{value} is outside {_field(knob)} ({allowed})"


def void(knobs: EngineKnobs, *, tuning: Tuning) -> str:
    """Say why the bounds do not allow one of these values; empty when they do. A knob that is not set is allowed."""
    values = ((knob, value_of(knob, knobs)) for knob in Knob if knob is not Knob.REPLICAS)
    broken = (outside(knob, value, tuning=tuning, scaling=None) for knob, value in values if value is not None)
    return next(filter(None, broken), "")


def value_of(knob: Knob, knobs: EngineKnobs) -> int | str | None:
    """Return the value of one knob; None for the engine's default, and for replicas, which are no setting of it."""
    match knob:
        case Knob.MAX_NUM_SEQS:
            return knobs.max_num_seqs
        case Knob.MAX_MODEL_LEN:
            return knobs.max_model_len
        case Knob.KV_CACHE_DTYPE:
            return knobs.kv_cache_dtype
        case Knob.TENSOR_PARALLEL_SIZE:
            return knobs.tensor_parallel_size
        case Knob.REPLICAS:
            return None


def with_value(knobs: EngineKnobs, knob: Knob, value: int | str) -> EngineKnobs:
    """Return the knobs with this value. Raises ValueError for replicas, and for a value that is none of the knob's."""
    return with_values(knobs, {knob: value})


def with_values(knobs: EngineKnobs, values: Mapping[Knob, int | str]) -> EngineKnobs:
    """Return the knobs with all of these values. Raises ValueError as `with_value`."""
    if Knob.REPLICAS in values:
        raise ValueError("replicas are not an engine setting")
    # By the names of the API, which are the values of `Knob`. Validated, unlike `model_copy`: what is written to status
    # must be readable again.
    return EngineKnobs.model_validate({**knobs.model_dump(), **{knob.value: value for knob, value in values.items()}})


def _field(knob: Knob) -> str:
    return "spec.scaling" if knob is Knob.REPLICAS else f"spec.tuning.{knob.value}"


def _bounds(
    knob: Knob, *, tuning: Tuning, scaling: Scaling | None
) -> IntBounds | AllowedInts | AllowedStrings | Scaling | None:
    match knob:
        case Knob.MAX_NUM_SEQS:
            return tuning.max_num_seqs
        case Knob.MAX_MODEL_LEN:
            return tuning.max_model_len
        case Knob.KV_CACHE_DTYPE:
            return tuning.kv_cache_dtype
        case Knob.TENSOR_PARALLEL_SIZE:
            return tuning.tensor_parallel_size
        case Knob.REPLICAS:
            return scaling
