"""Wedged: work is there and no token moves. Looks like overload to every queue-driven scaler, and is not."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds

__all__ = ["Wedged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wedged:
    """Requests run or wait in a Ready engine and neither prompt nor output tokens have been counted for minutes."""

    diagnosis: ClassVar = DiagnosisClass.WEDGED
    stalled: Threshold = Threshold(
        limit=120, unit="s", reason="no prefill and no decode step takes this long", source="design, diagnosis.md"
    )
    stalled_queue: Threshold = Threshold(
        limit=30,
        unit="s",
        reason="requests wait and none runs: a healthy scheduler admits at once",
        source="peers 0.6 (scheduler deadlocks with health 200)",
    )

    def judge(self, case: Case) -> Finding:
        """Hold when an engine with work has moved no token for longer than the limit."""
        for engine in case.engines:
            stalled = engine.stalled_for
            if stalled is None:
                continue
            working = all(moment.running > 0 or moment.waiting > 0 for moment in engine.moments)
            none_runs = all(moment.running == 0 for moment in engine.moments)
            limit = self.stalled_queue.limit if none_runs else self.stalled.limit
            if working and stalled >= limit:
                last = engine.moments[-1]
                message = (
                    f"{last.running:.0f} running and {last.waiting:.0f} waiting, but no token for {stalled:.0f} s "
                    f"({engine.key.pod or 'the engine'}). The engine hangs: restart it; more replicas do not help."
                )
                seen = Evidence(name="no token for", value=round(stalled), unit="s", threshold=limit)
                return Holds(message=message, evidence=(seen,))
        return Fails()
