"""StartupFailure: pods crash before they serve, or never become ready."""

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
    """More pods fail to start than serve. Where the others still serve, it only contributes.

    Why a pod fails was read by `control` from its status and log; here it is counted. Without Kubernetes nobody knows.
    """

    diagnosis: ClassVar = DiagnosisClass.STARTUP_FAILURE

    def judge(self, case: Case) -> Finding:
        """Hold when a pod cannot start; primary when those outnumber the ready ones."""
        pods = case.observation.pods
        if pods is None or not pods.failing:
            return Fails()
        first = pods.failing[0]
        assert first.failure is not None
        reason, failing = first.failure.reason, len(pods.failing)
        message = f"{failing} of {len(pods.pods)} pod(s) do not start. {reason.value}: {first.failure.message}"
        length = first.failure.suggested_max_model_len
        facts = [
            Evidence(name="pods that do not start", value=failing, unit="pods", threshold=0, note=reason.value),
            Evidence(name="pods that serve", value=len(pods.ready), unit="pods"),
        ]
        if length is not None:
            facts.append(Evidence(name="max-model-len that the engine would accept", value=length, unit="tokens"))
        return Holds(
            message=message,
            evidence=tuple(facts),
            confidence=Confidence.MEDIUM if reason is StartupReason.UNKNOWN else Confidence.HIGH,
            primary=failing > len(pods.ready),
        )
