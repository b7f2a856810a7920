"""StartupFailure: pods crash before they serve, or do not become ready."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.engine.startup_log import StartupReason

__all__ = ["StartupFailure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFailure:
    """More pods fail to start than serve. If at least as many pods serve, the class only contributes.

    The cause comes from the pod's status and log, so the class needs Kubernetes.
    """

    diagnosis: ClassVar = DiagnosisClass.STARTUP_FAILURE

    def judge(self, case: Case) -> Finding:
        """Hold when a pod fails to start; primary if more pods fail than are ready."""
        pods = case.observation.pods
        if pods is None or not pods.failing:
            return Fails()
        first = pods.failing[0]
        assert first.failure is not None
        reason, failing = first.failure.reason, len(pods.failing)
        message = f"{failing} of {len(pods.pods)} pod(s) fail to start. {reason.value}: {first.failure.message}"
        length = first.failure.suggested_max_model_len
        facts = [
            Evidence(name="pods that fail to start", value=failing, unit="pods", threshold=0, note=reason.value),
            Evidence(name="ready pods", value=len(pods.ready), unit="pods"),
        ]
        if length is not None:
            facts.append(Evidence(name="largest max-model-len that the engine accepts", value=length, unit="tokens"))
        return Holds(
            message=message,
            evidence=tuple(facts),
            confidence=Confidence.MEDIUM if reason is StartupReason.UNKNOWN else Confidence.HIGH,
            primary=failing > len(pods.ready),
        )
