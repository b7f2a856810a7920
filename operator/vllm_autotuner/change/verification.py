"""Does the running engine really have the value? Asked before any judgement: a change that did not happen is no result.

Two witnesses per pod: its arguments (what was asked for) and the engine's own start-up line (what it understood). An
entrypoint that overrides flags passes the first and fails the second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.engine.flags import EngineFlags

__all__ = ["Confirmed", "NotEffective", "Undecided", "Verification", "Witness", "verify"]


UNLISTED_DEFAULTS: Final[Mapping[Knob, tuple[int | str, ...]]] = {
    Knob.KV_CACHE_DTYPE: ("auto",),
    Knob.TENSOR_PARALLEL_SIZE: (1,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What one ready pod says. None: not known (arguments not ours to read, log rotated or unreadable)."""

    pod: str
    asked: EngineFlags | None
    started_with: EngineFlags | None


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Every pod runs the value."""

    how: str


@dataclass(frozen=True, slots=True)
class NotEffective:
    """A pod runs something else."""

    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """A witness is missing."""

    why: str


Verification: TypeAlias = Confirmed | NotEffective | Undecided


def verify(knob: Knob, wanted: EngineKnobs, *, witnesses: Sequence[Witness]) -> Verification:
    """Compare what the pods say with the wanted value of one knob."""
    if not witnesses:
        return Undecided("no ready pod")
    value = _of_knobs(knob, wanted)
    silent = []
    for witness in witnesses:
        if witness.asked is not None and (asked := _of_flags(knob, witness.asked)) != value:
            return NotEffective(f"{witness.pod} was asked for {knob.value}={asked}, not {value}")
        if witness.asked is None or witness.started_with is None:
            silent.append(witness.pod)
            continue
        started = _of_flags(knob, witness.started_with)
        # The engine lists only what differs from its defaults: silence about these two values is agreement.
        if started != value and not (started is None and value in UNLISTED_DEFAULTS.get(knob, ())):
            return NotEffective(f"{witness.pod} reports {knob.value}={started} at start-up, not {value}")
    if silent:
        return Undecided(f"arguments or start-up log of {', '.join(silent[:3])} are not readable")
    return Confirmed(f"{len(witnesses)} pod(s) report {knob.value}={value} in their start-up log")


def _of_knobs(knob: Knob, knobs: EngineKnobs) -> int | str | None:
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
        case unreachable:
            assert_never(unreachable)


def _of_flags(knob: Knob, flags: EngineFlags) -> int | str | None:
    return _of_knobs(
        knob,
        EngineKnobs(
            max_num_seqs=flags.max_num_seqs,
            max_model_len=flags.max_model_len,
            kv_cache_dtype=flags.kv_cache_dtype,
            tensor_parallel_size=flags.tensor_parallel_size,
        ),
    )
