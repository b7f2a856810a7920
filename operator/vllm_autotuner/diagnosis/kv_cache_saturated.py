"""KVCacheSaturated: admission is closed by the KV-cache pool, not by seats and not by speed."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case, Sustained, kv_max, kv_mean, seats_taken_share
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.pool import HIGHEST, MEAN, PREEMPTED, is_full, pool_evidence
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["KVCacheSaturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSaturated:
    """Requests wait while seats are free, and the pool is what stops them.

    A full pool does not read 1.0 all the time: after each preemption the gauge dips (recording kv-saturation: mean
    0.91, at or above 0.9 in 69 % of scrapes), so the maximum, the mean and preemptions each suffice.
    """

    diagnosis: ClassVar = DiagnosisClass.KV_CACHE_SATURATED
    sustained: Sustained = Sustained()
    highest: Threshold = HIGHEST
    mean: Threshold = MEAN
    preempted: Threshold = PREEMPTED
    seats: Threshold = Threshold(
        limit=0.5, unit="of scrapes", reason="with every seat taken the seats are the nearer limit", source="our choice"
    )

    def judge(self, case: Case) -> Finding:
        """Hold when most of the queueing engines have a full pool and free seats."""
        limit = self.sustained.limit(holding=self.diagnosis in case.holding)
        queueing = case.queueing(holding=self.diagnosis in case.holding, sustained=self.sustained)
        if not queueing:
            return Fails()
        if all(kv_max(engine) is None and engine.preemptions is None for engine in queueing):
            return Unknown("requests wait, but the engine exports neither KV usage nor preemptions")
        full = [engine for engine in queueing if is_full(engine) and not self._seats_bind(engine, case)]
        if 2 * len(full) <= len(queueing):
            return Fails()
        worst = max(full, key=lambda engine: kv_mean(engine) or 0.0)
        usage = "unknown" if kv_max(worst) is None else f"{kv_mean(worst):.0%} on average, {kv_max(worst):.0%} at most"
        seats = f" of {case.knobs.max_num_seqs} seats" if case.knobs.max_num_seqs else ""
        running = max(moment.running for moment in worst.moments)
        message = (
            f"The KV cache is full ({usage}): {worst.moments[-1].waiting:.0f} requests wait "
            f"although at most {running:.0f}{seats} are taken."
        )
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

    def _seats_bind(self, engine: EngineWindow, case: Case) -> bool:
        """With all seats taken *and* a full pool, preemptions decide: the engine evicts, so it is the pool."""
        seats = case.knobs.max_num_seqs
        if seats is None or seats_taken_share(engine, seats=seats, exactly=True) < self.seats.limit:
            return False
        return (engine.preemptions or 0) <= self.preempted.limit * (engine.finished or 0)
