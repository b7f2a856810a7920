"""Replicas while a change is under way: a queue that the change neither removes nor makes is not kept waiting for it.

A change takes minutes, and the load does not wait. New replicas run what the workload is asked to run, so they carry
the value under test, and the verdict is sought anew once they serve (`change.machine`).
Apart from the tick, because which class may be answered beside which change is a table. Must not: scale in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ActiveChange, ChangeState, ChangeTarget
from vllm_autotuner.diagnosis.case import Case, Sustained, waiting_share
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.scaling.scale_out import hides_queue

__all__ = ["answers_beside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Classes that a replica may answer beside a change. What is in neither may be the change's own doing."""

    at_once: frozenset[DiagnosisClass]
    """The change has nothing to do with these."""
    untouched: frozenset[DiagnosisClass] = frozenset()
    """The change is meant to remove these: only while it is measured, when it serves and they are still there."""


_FEWER_SEATS: Final = _Beside(
    at_once=frozenset({DiagnosisClass.OVERLOADED, DiagnosisClass.KV_CACHE_SATURATED, DiagnosisClass.PREFILL_BOUND}),
    untouched=frozenset({DiagnosisClass.PREEMPTION_THRASH, DiagnosisClass.PAST_TPOT_KNEE}),
)
_MORE_SEATS: Final = _Beside(
    at_once=frozenset({DiagnosisClass.OVERLOADED, DiagnosisClass.PREFILL_BOUND}),
    untouched=frozenset({DiagnosisClass.CONCURRENCY_CAPPED}),
)
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
"""max-num-seqs goes by its direction; another tensor-parallel degree moves every limit there is, so nothing is here."""


def answers_beside(change: ActiveChange, diagnosed: DiagnosisClass, *, case: Case) -> bool:
    """Whether replicas may be added against this class although the change is not over.

    Seats that are nearly enough leave a queue that comes and goes. It waits: what more replicas make better can no
    longer be told from what the seats do, and the change would be undone for it.
    """
    if change.state is ChangeState.BAKING:
        # The change was found good: half an hour of watching it is too long to let requests wait.
        return True
    beside = _beside(change)
    if beside is None or change.state is ChangeState.HELD:
        return False
    measured = change.state in (ChangeState.ANALYZING, ChangeState.ROLLING_BACK)
    # A queue beside slow tokens is one that seats may end.
    answered = {diagnosed, DiagnosisClass.CONCURRENCY_CAPPED} if hides_queue(diagnosed, case=case) else {diagnosed}
    if not _lasts(case.observation):
        answered.discard(DiagnosisClass.CONCURRENCY_CAPPED)
    return bool(answered & (beside.at_once | (beside.untouched if measured else frozenset())))


def _lasts(observation: Observation) -> bool:
    return any(waiting_share(engine) >= Sustained().enter.limit for engine in observation.engines)


def _beside(change: ActiveChange) -> _Beside | None:
    if change.knob == Knob.MAX_NUM_SEQS:
        # What the engine's default was is not known, but what the change is for tells the direction.
        return _FEWER_SEATS if change.target is ChangeTarget.TPOT else _MORE_SEATS
    return next((beside for knob, beside in _BESIDE.items() if change.knob == knob), None)
