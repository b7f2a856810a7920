"""ColdStart: every pod that serves is fresh, or none is done starting. Late first tokens mean nothing yet."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["ColdStart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """All serving pods are younger than their warm-up.

    Kubernetes tells since when a pod is ready. Elsewhere the start of the engine's process stands in: it lies before
    readiness, so a cold start is seen for less long, never for longer.
    """

    diagnosis: ClassVar = DiagnosisClass.COLD_START
    warm_up: Threshold = Threshold(
        limit=60,
        unit="s",
        reason="compilation, empty caches and the backlog of the start distort latencies",
        source="our choice, unmeasured; default of spec.tuning.strategy.warmUp, which wins where it is set",
    )

    def judge(self, case: Case) -> Finding:
        """Hold while no pod is old enough to be judged."""
        pods = case.observation.pods
        if not case.engines:
            if pods is None or not pods.pods:
                return Fails()
            message = f"None of {len(pods.pods)} pod(s) serves yet; {len(pods.starting)} still start(s)."
            fact = Evidence(name="pods that serve", value=len(pods.ready), unit="pods", threshold=1)
            return Holds(message=message, evidence=(fact,))
        limit = self.warm_up.limit if pods is None or pods.warm_up is None else pods.warm_up
        ages = [self._age(engine, case) for engine in case.engines]
        known = [age for age in ages if age is not None]
        if len(known) < len(ages) or max(known) >= limit:
            return Fails()
        message = f"All {len(ages)} engine(s) are fresh (the oldest for {max(known):.0f} s): wait before judging."
        fact = Evidence(name="age of the oldest engine", value=round(max(known)), unit="s", threshold=limit)
        return Holds(message=message, evidence=(fact,))

    def _age(self, engine: EngineWindow, case: Case) -> float | None:
        """Seconds that it has served; None where nobody knows, and then it does not count as fresh."""
        if case.observation.pods is not None:
            ready = {pod.name: pod.ready_for for pod in case.observation.pods.pods}
            return ready.get(engine.key.pod)
        return None if engine.started is None else max(0.0, case.observation.at - engine.started)
