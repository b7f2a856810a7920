"""Verifies that the running engines really use the new value, before anything is measured.

Three sources per pod: its arguments (the requested value), the engine's start-up log line (the parsed value) and, for
kvCacheDtype and maxModelLen, its exported cache metrics. An entrypoint that overrides flags passes the first check and
fails the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.wording import counted
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.observation.observation import KVPool
from vllm_autotuner.planning.bounds import value_of

__all__ = ["Confirmed", "NotEffective", "Undecided", "Verification", "Witness", "knobs_in", "verify"]


UNLISTED_DEFAULTS: Final[Mapping[Knob, tuple[int | str, ...]]] = {
    Knob.KV_CACHE_DTYPE: ("auto",),
    Knob.TENSOR_PARALLEL_SIZE: (1,),
}
"""What an engine runs with where its start-up log lists no value of the knob: vLLM lists only what differs."""


LENGTH_ROUNDING: Final = 0.05
"""Relative. The exported length is a quotient of two rounded figures; a step of this knob is larger. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The evidence of one ready pod. None: unknown (arguments in another container, log rotated or unreadable)."""

    pod: str
    asked: EngineFlags | None
    started_with: EngineFlags | None
    pool: KVPool | None = None
    """Its exported KV-cache configuration (`vllm:cache_config_info`); None: not scraped yet."""


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
    """The evidence is incomplete."""

    why: str


Verification: TypeAlias = Confirmed | NotEffective | Undecided


def verify(knob: Knob, wanted: EngineKnobs, *, witnesses: Sequence[Witness]) -> Verification:
    """Compare the evidence of the pods with the wanted value of one knob."""
    if not witnesses:
        return Undecided("no ready pod")
    value = value_of(knob, wanted)
    silent = []
    for witness in witnesses:
        if witness.asked is not None and (asked := _of_flags(knob, witness.asked)) != value:
            return NotEffective(f"{witness.pod} has {knob.value}={asked} in its arguments, not {value}")
        if witness.pool is not None and (other := _exported_instead(knob, value, pool=witness.pool)) is not None:
            return NotEffective(f"{witness.pod} exports {knob.value}={other} in its metrics, not {value}")
        if witness.asked is None or witness.started_with is None:
            silent.append(witness.pod)
            continue
        started = _of_flags(knob, witness.started_with)
        # The engine logs only values that differ from its defaults: for these two a missing value means the default.
        if started != value and not (started is None and value in UNLISTED_DEFAULTS.get(knob, ())):
            return NotEffective(f"{witness.pod} reports {knob.value}={started} at start-up, not {value}")
    if silent:
        return Undecided(f"arguments or start-up log of {', '.join(silent[:3])} are not readable")
    report = "reports" if len(witnesses) == 1 else "report"
    return Confirmed(f"{counted(len(witnesses), 'pod')} {report} {knob.value}={value} at start-up")


def _exported_instead(knob: Knob, value: int | str | None, *, pool: KVPool) -> int | str | None:
    """The exported value if it contradicts the wanted one; None if it agrees or this knob is not exported.

    `auto` may resolve to fp8 from the model's own files, so only an explicit type can be contradicted.
    """
    if knob is Knob.KV_CACHE_DTYPE and isinstance(value, str) and value != "auto" and pool.cache_dtype is not None:
        return pool.cache_dtype if pool.cache_dtype.startswith("fp8") != value.startswith("fp8") else None
    if knob is Knob.MAX_MODEL_LEN and isinstance(value, int) and pool.max_model_len is not None:
        return pool.max_model_len if abs(pool.max_model_len - value) > LENGTH_ROUNDING * value else None
    return None


def knobs_in(flags: EngineFlags) -> EngineKnobs:
    """The tuned values among the flags of an engine."""
    return EngineKnobs(
        max_num_seqs=flags.max_num_seqs,
        max_model_len=flags.max_model_len,
        kv_cache_dtype=flags.kv_cache_dtype,
        tensor_parallel_size=flags.tensor_parallel_size,
    )


def _of_flags(knob: Knob, flags: EngineFlags) -> int | str | None:
    return value_of(knob, knobs_in(flags))
