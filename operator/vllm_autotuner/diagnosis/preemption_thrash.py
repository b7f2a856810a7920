"""PreemptionThrash: more sequences run than the KV cache holds, so the engine preempts and recomputes requests."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import counted
from vllm_autotuner.diagnosis.case import Case, Sustained, kv_mean
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.diagnosis.pool import MEAN, PREEMPTED, pool_evidence
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["PreemptionThrash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionThrash:
    """More sequences run than the KV cache holds: the engine preempts and recomputes requests.

    No token counter shows the recomputation. The KV cache must be full on average, not only at a peak: a burst that
    preempts a few requests clears by itself.
    """

    diagnosis: ClassVar = DiagnosisClass.PREEMPTION_THRASH
    sustained: Sustained = Sustained()
    preempted: Threshold = PREEMPTED
    stay: Threshold = Threshold(
        limit=0.005,
        unit="of finished requests",
        reason="hysteresis: clears only when clearly below the threshold",
        source="our choice",
    )
    near_full: Threshold = MEAN
    half_full: Threshold = Threshold(
        limit=0.5,
        unit="of the KV cache",
        reason="hysteresis: below this the backlog that filled the cache has drained",
        source="our choice",
    )

    def judge(self, case: Case) -> Finding:
        """Hold when most of the engines that queue or preempt do preempt."""
        holding = self.diagnosis in case.holding
        thrashing = [engine for engine in case.engines if self._thrashes(engine, holding=holding)]
        queueing = case.queueing(holding=holding, sustained=self.sustained)
        troubled = {engine.key for engine in (*thrashing, *queueing)}
        if 2 * len(thrashing) <= len(troubled):
            return Fails()
        worst = max(thrashing, key=lambda engine: engine.preemptions or 0.0)
        preempted, finished = worst.preemptions or 0.0, worst.finished or 0.0
        usage, (preempts, full) = kv_mean(worst), self._limits(holding=holding)
        told = "usage is not exported" if usage is None else f"mean usage is {usage:.0%}"
        happened = f"{counted(round(preempted), 'request')} {'was' if round(preempted) == 1 else 'were'} preempted"
        message = (
            f"{happened} and recomputed while {finished:.0f} finished: more sequences run than the KV cache holds "
            f"({told})."
        )
        return Holds(
            message=message,
            evidence=(
                Evidence(
                    name="preemptions per finished request",
                    value=round(preempted / finished, 4) if finished else None,
                    unit="share",
                    threshold=preempts.limit,
                    window=case.observation.window,
                    note=f"{preempted:.0f} of {finished:.0f}",
                ),
                *pool_evidence(worst, case, near_full=full),
                case.tpot_evidence(),
            ),
            confidence=Confidence.MEDIUM if usage is None else Confidence.HIGH,
        )

    def _limits(self, *, holding: bool) -> tuple[Threshold, Threshold]:
        """Of preemptions per finished request, and of the mean usage."""
        return (self.stay, self.half_full) if holding else (self.preempted, self.near_full)

    def _thrashes(self, engine: EngineWindow, *, holding: bool) -> bool:
        if engine.preemptions is None or engine.finished is None:
            return False
        usage, (preempts, full) = kv_mean(engine), self._limits(holding=holding)
        # vLLM preempts only when the KV cache is full: where usage is not exported, preemptions prove it.
        return engine.preemptions > preempts.limit * engine.finished and (usage is None or usage >= full.limit)
