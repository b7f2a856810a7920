"""Healthy: what is measured is inside its objectives, nothing waits for long, the pool has room."""

from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case, Sustained, kv_mean, tpot_reading, ttft_reading, waiting_share
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.pool import HIGHEST
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.reading import Measured

__all__ = ["Healthy"]

QUIET_SCRAPES: Final = 3
"""Empty scrapes in a row that show that a queue is gone. Our choice: one or two happen inside a queue, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """No lasting queue, KV below 90 %, and every objective that can be measured is met."""

    diagnosis: ClassVar = DiagnosisClass.HEALTHY
    sustained: Sustained = Sustained()
    kv: Threshold = HIGHEST

    def judge(self, case: Case) -> Finding:
        """Hold, or say which objective is missed although no cause is visible."""
        if case.queueing(holding=False, sustained=self.sustained):
            return Fails()
        if building := case.queueing(holding=True, sustained=self.sustained):
            share = max(waiting_share(engine) for engine in building)
            return Unknown(f"a queue comes or goes: requests wait in {share:.0%} of scrapes, lasting is 80 %")
        if rejected := sum(engine.rejected or 0.0 for engine in case.engines):
            return Unknown(f"{rejected:.0f} request(s) were turned away by a limit of the queue")
        window = case.observation.window
        if still := [engine for engine in case.engines if _stands_still(engine, window=window)]:
            seconds = max(engine.stalled_for or 0.0 for engine in still)
            return Unknown(f"requests run, but no token was counted for {seconds:.0f} s")
        usage = max((kv_mean(engine) or 0.0 for engine in case.engines), default=0.0)
        if usage >= self.kv.limit:
            return Unknown(f"nothing waits, yet the KV cache is used to {usage:.0%} on average")
        missed = self._missed(case)
        drained = missed == ["TTFT"] and _queue_is_gone(case.engines)
        if missed and not drained:
            return Unknown(f"{' and '.join(missed)} over the objective without a lasting queue for capacity")
        message = "Objectives are met, nothing waits for long, the KV cache has room."
        if drained:
            message = "A queue has just drained; TTFT still shows it. Nothing waits any more."
        if all(evidence.value is None for evidence in (case.ttft_evidence(), case.tpot_evidence())):
            message = "Nothing waits for long, the KV cache has room; latencies are not measured."
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
    """Whether it had work in every scrape and computed nothing all the while: it may hang, or chew on a huge prompt."""
    working = all(moment.running > 0 for moment in engine.moments)
    return working and engine.stalled_for is not None and engine.stalled_for >= window


def _queue_is_gone(engines: tuple[EngineWindow, ...]) -> bool:
    """Whether somebody waited in this window and nobody does now: the TTFT of that time is over, not a state."""
    waited = any(moment.waiting > 0 for engine in engines for moment in engine.moments)
    quiet = all(moment.waiting == 0 for engine in engines for moment in engine.moments[-QUIET_SCRAPES:])
    return waited and quiet
