"""Scale-out during a change: which diagnosis class may add replicas while which change is in progress.

A change takes minutes, and a queue that the change neither causes nor removes must not wait for its end. In place, new
replicas run the value under test, and the analysis restarts once they are ready (`change.analysis`). Beside a canary
they run the old one, and the change is held until they are ready (`change.machine`).
Apart from `proposing`, because the classes per change are a table. Must not: scale in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ActiveChange, ChangeState, ChangeTarget
from vllm_autotuner.change.world import raises_slots
from vllm_autotuner.diagnosis.case import Case, Sustained, waiting_share
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.scaling.desired_replicas import hides_queue

__all__ = ["may_scale_during"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Classes for which replicas may be added during a change. Any other class may be caused by the change itself."""

    at_once: frozenset[DiagnosisClass]
    """Classes unrelated to the change: at any time."""
    untouched: frozenset[DiagnosisClass] = frozenset()
    """Classes that the change is meant to remove: only if they still hold while the change is measured."""


_FEWER_SLOTS: Final = _Beside(
    at_once=frozenset({DiagnosisClass.OVERLOADED, DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.PREFILL_BOUND}),
    untouched=frozenset({DiagnosisClass.PREEMPTION_THRASH, DiagnosisClass.PAST_TPOT_KNEE}),
)
_MORE_SLOTS: Final = _Beside(
    at_once=frozenset({DiagnosisClass.OVERLOADED, DiagnosisClass.PREFILL_BOUND}),
    untouched=frozenset({DiagnosisClass.CONCURRENCY_CAPPED}),
)
_MORE_CACHE: Final = _Beside(
    at_once=frozenset({DiagnosisClass.OVERLOADED, DiagnosisClass.PREFILL_BOUND}),
    untouched=frozenset({DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.PREEMPTION_THRASH}),
)
"""Fewer slots, for the memory that they take from the KV cache."""
_BESIDE: Final[Mapping[Knob, _Beside]] = {
    Knob.KV_CACHE_DTYPE: _Beside(
        at_once=frozenset({DiagnosisClass.CONCURRENCY_CAPPED}),
        untouched=frozenset({DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.PREEMPTION_THRASH}),
    ),
    Knob.MAX_MODEL_LEN: _Beside(
        at_once=frozenset(
            {
                DiagnosisClass.OVERLOADED,
                DiagnosisClass.KV_CACHE_SATURATED,
                DiagnosisClass.PREEMPTION_THRASH,
                DiagnosisClass.PREFILL_BOUND,
                DiagnosisClass.CONCURRENCY_CAPPED,
                DiagnosisClass.PAST_TPOT_KNEE,
            }
        )
    ),
}
"""max-num-seqs depends on what it is for; a tensor-parallel change moves every limit, so it has no entry."""


def may_scale_during(change: ActiveChange, diagnosed: DiagnosisClass, *, case: Case) -> bool:
    """Whether replicas may be added for this class while the change is in progress.

    A queue that comes and goes, because the running-sequence slots are nearly enough, gets no replica: the effect of
    the replica could not be told from that of the slots, and the change would be rolled back for it.
    """
    if change.state is ChangeState.BAKING:
        # The verdict is good already; requests must not wait for the half hour of bake time.
        return True
    beside = _beside(change)
    if beside is None or change.state is ChangeState.HELD:
        return False
    measured = change.state in (ChangeState.ANALYZING, ChangeState.ROLLING_BACK)
    # A queue that is hidden behind slow tokens may be ended by more slots.
    answered = {diagnosed, DiagnosisClass.CONCURRENCY_CAPPED} if hides_queue(diagnosed, case=case) else {diagnosed}
    if not _lasts(case.observation):
        answered.discard(DiagnosisClass.CONCURRENCY_CAPPED)
    return bool(answered & (beside.at_once | (beside.untouched if measured else frozenset())))


def _lasts(observation: Observation) -> bool:
    return any(waiting_share(engine) >= Sustained().enter.limit for engine in observation.engines)


def _beside(change: ActiveChange) -> _Beside | None:
    if change.knob == Knob.MAX_NUM_SEQS:
        if change.target is ChangeTarget.TPOT:
            return _FEWER_SLOTS
        return _MORE_SLOTS if raises_slots(change) else _MORE_CACHE
    return next((beside for knob, beside in _BESIDE.items() if change.knob == knob), None)
