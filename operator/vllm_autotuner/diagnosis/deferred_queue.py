"""DeferredQueue: requests wait, but not for capacity."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.wording import told_waiting
from vllm_autotuner.diagnosis.case import Case, Sustained, queues
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds

__all__ = ["DeferredQueue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredQueue:
    """Requests wait, but the engine reports that they do not wait for capacity (reason "deferred")."""

    diagnosis: ClassVar = DiagnosisClass.DEFERRED_QUEUE
    sustained: Sustained = Sustained()

    def judge(self, case: Case) -> Finding:
        """Hold when deferred requests last and no engine has requests that wait for capacity: those have a remedy."""
        if queues(case.observation, sustained=self.sustained):
            return Fails()
        limit = self.sustained.limit(holding=self.diagnosis in case.holding)
        for engine in case.engines:
            deferred = [moment.deferred for moment in engine.moments if moment.deferred is not None]
            share = sum(count > 0 for count in deferred) / len(deferred) if deferred else 0.0
            if share >= limit:
                most = max(deferred)
                seen = Evidence(name="deferred requests, maximum", value=most, unit="requests", threshold=0)
                message = (
                    f"Up to {told_waiting(most)}, but not for capacity: for grammar compilation, KV transfer or "
                    "LoRA slots. More replicas or a larger max-num-seqs do not help."
                )
                return Holds(message=message, evidence=(seen,))
        return Fails()
