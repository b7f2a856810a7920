"""KVCacheSaturated: admission is closed by the KV-cache pool, not by seats and not by speed."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case, Sustained, kv_max, kv_mean, seats_taken_share
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.observation.observation import EngineWindow

__all__ = ["KVCacheSaturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSaturated:
    """Requests wait while seats are free, and the pool is what stops them.

    A full pool does not read 1.0 all the time: after each preemption the gauge dips (recording kv-saturation: mean
    0.91, at or above 0.9 in 69 % of scrapes), so the maximum, the mean and preemptions each suffice.
    """

    diagnosis: ClassVar = DiagnosisClass.KV_CACHE_SATURATED
    sustained: Sustained = Sustained()
    highest: Threshold = Threshold(
        limit=0.9, unit="of the pool", reason="the gauge dips after each preemption", source="field guide F3; recording"
    )
    mean: Threshold = Threshold(limit=0.8, unit="of the pool", reason="the first sign in F1", source="field guide F1")
    preempted: Threshold = Threshold(
        limit=0.01, unit="of finished requests", reason="each one is computed twice", source="field guide F4"
    )
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
        full = [engine for engine in queueing if self._full(engine) and not self._seats_bind(engine, case)]
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
                *self._evidence(worst, case),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
            confidence=Confidence.HIGH if case.knobs.max_num_seqs else Confidence.MEDIUM,
        )

    def _full(self, engine: EngineWindow) -> bool:
        highest, mean = kv_max(engine), kv_mean(engine)
        by_usage = highest is not None and mean is not None
        return (by_usage and ((highest or 0) >= self.highest.limit or (mean or 0) >= self.mean.limit)) or bool(
            engine.preemptions
        )

    def _seats_bind(self, engine: EngineWindow, case: Case) -> bool:
        """With all seats taken *and* a full pool, preemptions decide: the engine evicts, so it is the pool."""
        seats = case.knobs.max_num_seqs
        if seats is None or seats_taken_share(engine, seats=seats) < self.seats.limit:
            return False
        return (engine.preemptions or 0) <= self.preempted.limit * (engine.finished or 0)

    def _evidence(self, engine: EngineWindow, case: Case) -> tuple[Evidence, ...]:
        highest, mean, window = kv_max(engine), kv_mean(engine), case.observation.window
        unknown_seats = "" if case.knobs.max_num_seqs else "max-num-seqs is not known"
        return (
            Evidence(
                name="KV usage, maximum",
                value=highest,
                unit="share",
                threshold=self.highest.limit,
                window=window,
                note=absence(highest),
            ),
            Evidence(
                name="KV usage, mean",
                value=mean,
                unit="share",
                threshold=self.mean.limit,
                window=window,
                note=absence(mean),
            ),
            Evidence(
                name="preemptions",
                value=engine.preemptions,
                unit="requests",
                threshold=0,
                window=window,
                note=absence(engine.preemptions),
            ),
            Evidence(
                name="running, maximum",
                value=max(moment.running for moment in engine.moments),
                unit="sequences",
                threshold=case.knobs.max_num_seqs,
                window=window,
                note=unknown_seats,
            ),
        )
