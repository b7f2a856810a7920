"""Healthy: objectives are met, there is no lasting queue and the KV cache has room."""

from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import (
    Case,
    Sustained,
    kv_mean,
    makes_no_token,
    tpot_reading,
    ttft_reading,
    waiting_share,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.pool import HIGHEST
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.reading import Measured

__all__ = ["Healthy"]

QUIET_SCRAPES: Final = 3
"""Consecutive scrapes without waiting requests after which a queue counts as drained. Our choice: one or two also
occur within a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """No lasting queue, KV below 90 %, and every objective that can be measured is met."""

    diagnosis: ClassVar = DiagnosisClass.HEALTHY
    sustained: Sustained = Sustained()
    kv: Threshold = HIGHEST

    def judge(self, case: Case) -> Finding:
        """Hold, or name the objective that is missed without a visible cause."""
        if case.queueing(holding=False, sustained=self.sustained):
            return Fails()
        if building := case.queueing(holding=True, sustained=self.sustained):
            share = max(waiting_share(engine) for engine in building)
            return Unknown(
                f"the queue is not steady: requests wait in {share:.0%} of scrapes "
                f"(threshold {self.sustained.enter.limit:.0%})"
            )
        if rejected := sum(engine.rejected or 0.0 for engine in case.engines):
            return Unknown(f"{rejected:.0f} request(s) were rejected by the engine's queue limit")
        window = case.observation.window
        if still := [engine for engine in case.engines if _stands_still(engine, window=window)]:
            seconds = max(engine.stalled_for or 0.0 for engine in still)
            return Unknown(f"requests run, but no token was computed for {seconds:.0f} s")
        usage = max((kv_mean(engine) or 0.0 for engine in case.engines), default=0.0)
        if usage >= self.kv.limit:
            return Unknown(f"no requests wait, but mean KV cache usage is {usage:.0%} (threshold {self.kv.limit:.0%})")
        missed = self._missed(case)
        drained = missed == ["TTFT"] and _queue_is_gone(case.engines)
        if missed and not drained:
            return Unknown(f"{' and '.join(missed)} over the objective, but no lasting queue for capacity")
        message = "Objectives are met, there is no lasting queue and the KV cache has room."
        if drained:
            message = "A queue has just drained and no requests wait; TTFT still reflects the queue."
        latencies = (("TTFT", case.ttft_evidence()), ("TPOT", case.tpot_evidence()))
        unknown = [name for name, evidence in latencies if evidence.value is None]
        if unknown:
            what = "latencies are" if len(unknown) == len(latencies) else f"{unknown[0]} is"
            message = f"There is no lasting queue and the KV cache has room; {what} not measured."
        return Holds(
            message=message,
            evidence=(
                case.ttft_evidence(),
                case.tpot_evidence(),
                Evidence(name="KV usage, mean", value=usage, unit="share", threshold=self.kv.limit, window=window),
            ),
            confidence=Confidence.MEDIUM if drained or case.observation.silent else Confidence.HIGH,
        )

    def _missed(self, case: Case) -> list[str]:
        readings = (
            ("TTFT", ttft_reading(case), case.targets.ttft.seconds),
            ("TPOT", tpot_reading(case), case.targets.tpot.seconds),
        )
        return [name for name, reading, limit in readings if isinstance(reading, Measured) and reading.value > limit]


def _stands_still(engine: EngineWindow, *, window: float) -> bool:
    """Whether requests ran in every scrape but no token was computed: the engine may hang, or compute a huge prompt."""
    working = all(moment.running > 0 for moment in engine.moments)
    return working and makes_no_token(engine, window=window)


def _queue_is_gone(engines: tuple[EngineWindow, ...]) -> bool:
    """Whether requests waited in this window and none does now, so that a late TTFT is of the past."""
    waited = any(moment.waiting > 0 for engine in engines for moment in engine.moments)
    quiet = all(moment.waiting == 0 for engine in engines for moment in engine.moments[-QUIET_SCRAPES:])
    return waited and quiet
