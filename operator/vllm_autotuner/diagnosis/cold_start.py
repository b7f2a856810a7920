"""ColdStart: every serving pod is still warming up, or no pod has finished starting. Latencies are not meaningful."""

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
    """All serving pods are younger than their warm-up time, or no pod serves yet.

    The age counts from the pod's Ready condition. Outside Kubernetes it counts from the start of the engine's process,
    which is earlier than readiness: there the class clears sooner, never later.
    """

    diagnosis: ClassVar = DiagnosisClass.COLD_START
    warm_up: Threshold = Threshold(
        limit=60,
        unit="s",
        reason="compilation, empty caches and the startup backlog distort latencies",
        source="our choice, unmeasured; spec.tuning.strategy.warmUp overrides it",
    )

    def judge(self, case: Case) -> Finding:
        """Hold while no pod has completed its warm-up."""
        pods = case.observation.pods
        if not case.engines:
            if pods is None or not pods.pods:
                return Fails()
            message = f"0 of {len(pods.pods)} pod(s) are ready; {len(pods.starting)} still starting."
            fact = Evidence(name="ready pods", value=len(pods.ready), unit="pods", threshold=1)
            return Holds(message=message, evidence=(fact,))
        limit = self.warm_up.limit if pods is None or pods.warm_up is None else pods.warm_up
        ages = [self._age(engine, case) for engine in case.engines]
        known = [age for age in ages if age is not None]
        if len(known) < len(ages) or max(known) >= limit:
            return Fails()
        message = (
            f"All {len(ages)} engine(s) are warming up; the oldest is {max(known):.0f} s old (warm-up {limit:g} s)."
        )
        fact = Evidence(name="age of the oldest engine", value=round(max(known)), unit="s", threshold=limit)
        return Holds(message=message, evidence=(fact,))

    def _age(self, engine: EngineWindow, case: Case) -> float | None:
        """Seconds since it became ready; None if not known, and then it does not count as warming up."""
        if case.observation.pods is not None:
            ready = {pod.name: pod.ready_for for pod in case.observation.pods.pods}
            return ready.get(engine.key.pod)
        return None if engine.started is None else max(0.0, case.observation.at - engine.started)
