"""Overloaded: requests wait for capacity, and no rule above knows a setting that removes the wait."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case, Sustained, kv_max
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds

__all__ = ["Overloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overloaded:
    """Capacity waiting lasts while tokens move. Asked here too, because a hang must never look like load."""

    diagnosis: ClassVar = DiagnosisClass.OVERLOADED
    sustained: Sustained = Sustained()

    def judge(self, case: Case) -> Finding:
        """Hold when any engine queues lastingly and is not standing still."""
        holding = self.diagnosis in case.holding
        queueing = case.queueing(holding=holding, sustained=self.sustained)
        moving = [e for e in queueing if e.stalled_for is None or e.stalled_for < case.observation.window]
        if not moving:
            return Fails()
        engine = max(moving, key=lambda one: one.moments[-1].waiting)
        waiting = sum(one.moments[-1].waiting for one in moving)
        away = sum(one.rejected or 0.0 for one in moving)
        turned = f", {away:.0f} were turned away" if away else ""
        window, usage = case.observation.window, kv_max(engine)
        return Holds(
            message=f"{waiting:.0f} requests wait for capacity in {len(moving)} of {len(case.engines)} engine(s)"
            f"{turned}.",
            evidence=(
                case.waiting_evidence(engine, limit=self.sustained.limit(holding=holding)),
                Evidence(name="KV usage, maximum", value=usage, unit="share", window=window, note=absence(usage)),
                Evidence(
                    name="running, maximum",
                    value=max(moment.running for moment in engine.moments),
                    unit="sequences",
                    threshold=case.knobs.max_num_seqs,
                    window=window,
                ),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
        )
