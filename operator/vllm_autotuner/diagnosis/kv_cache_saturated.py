"""KVCacheSaturated: requests wait because the KV cache is full, although slots (max-num-seqs) are free."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import counted, told_waiting
from vllm_autotuner.diagnosis.case import (
    SLOTS_USED,
    Case,
    Sustained,
    kv_max,
    kv_mean,
    makes_no_token,
    most_waiting,
    slots_used_share,
    undecided,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.pool import HIGHEST, MEAN, PREEMPTED, is_full, pool_evidence
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["KVCacheSaturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSaturated:
    """Requests wait because the KV cache is full, although slots (max-num-seqs) are free.

    The usage of a full KV cache is not constantly 1.0: it dips after each preemption (recording kv-saturation: mean
    0.91, at or above 0.9 in 69 % of scrapes). So the maximum, the mean or preemptions each suffice.
    """

    diagnosis: ClassVar = DiagnosisClass.KV_CACHE_SATURATED
    sustained: Sustained = Sustained()
    highest: Threshold = HIGHEST
    mean: Threshold = MEAN
    preempted: Threshold = PREEMPTED
    slots_used: Threshold = SLOTS_USED

    def judge(self, case: Case) -> Finding:
        """Hold when most queueing engines have a full KV cache and free slots."""
        limit = self.sustained.limit(holding=self.diagnosis in case.holding)
        queueing = case.queueing(holding=self.diagnosis in case.holding, sustained=self.sustained)
        if not queueing:
            return Fails()
        if all(kv_max(engine) is None and engine.preemptions is None for engine in queueing):
            return Unknown("requests wait, but the engine exports neither KV usage nor preemptions")
        full = [engine for engine in queueing if is_full(engine) and not self._slots_bind(engine, case)]
        if 2 * len(full) <= len(queueing):
            return Fails()
        if all(makes_no_token(engine, window=case.observation.window) for engine in full):
            return Unknown(undecided(case, full))
        worst = max(full, key=lambda engine: kv_mean(engine) or 0.0)
        known = kv_max(worst) is not None
        usage = f"mean usage {kv_mean(worst):.0%}, peak {kv_max(worst):.0%}" if known else "usage not exported"
        running = max(moment.running for moment in worst.moments)
        slots = case.knobs.max_num_seqs
        taken = f"{running:.0f} of {slots} slots were in use" if slots else f"{counted(round(running), 'sequence')} ran"
        wait = f"up to {told_waiting(most_waiting(worst))}"
        message = f"The KV cache is full ({usage}): {wait} although at most {taken}."
        return Holds(
            message=message,
            evidence=(
                case.waiting_evidence(worst, limit=limit),
                *pool_evidence(worst, case),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
            confidence=Confidence.HIGH if case.knobs.max_num_seqs else Confidence.MEDIUM,
        )

    def _slots_bind(self, engine: EngineWindow, case: Case) -> bool:
        """With all slots in use and a full KV cache, preemptions decide: they show that the cache is the limit."""
        slots = case.knobs.max_num_seqs
        if slots is None or slots_used_share(engine, slots=slots, exactly=True) < self.slots_used.limit:
            return False
        return (engine.preemptions or 0) <= self.preempted.limit * (engine.finished or 0)
