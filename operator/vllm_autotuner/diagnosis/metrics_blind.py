"""MetricsBlind: too few engines report fresh metrics. First rule, because missing metrics do not mean idle."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.observation import Observation

__all__ = ["MetricsBlind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsBlind:
    """Too few engines report fresh metrics, or the metrics source gave no usable answer."""

    diagnosis: ClassVar = DiagnosisClass.METRICS_BLIND
    fresh: Threshold = Threshold(
        limit=0.5,
        unit="of ready pods",
        reason="the silent pods may be the saturated ones: more than half must report",
        source="our choice, unmeasured",
    )

    def judge(self, case: Case) -> Finding:
        """Hold on an error of the metrics source, without a fresh engine, or if at most half of the ready pods report.

        Fails if no pod is ready: then the next rules say why.
        """
        observation = case.observation
        if observation.problem is not None:
            return Holds(message=f"The metrics source failed: {observation.problem.why}.", evidence=())
        pods = observation.pods.pods if observation.pods is not None else ()
        if pods and not observation.engines and not observation.expected:
            return Fails()  # no pod is expected to report yet: the next rules say why none serves
        reporting = len(observation.reporting)
        expected = observation.expected
        known = expected if expected is not None else reporting + len(observation.silent)
        evidence = Evidence(
            name="pods with fresh metrics",
            value=reporting,
            unit="pods",
            threshold=None if not known else known * self.fresh.limit,
            window=observation.window,
            note=_who_is_silent(observation),
        )
        if not observation.engines and observation.unreadable:
            pod, why = next(iter(observation.unreadable.items()))
            message = f"No vLLM engine reports metrics that can be true: {pod or 'the engine'}: {why}."
            return Holds(message=message, evidence=(evidence,))
        if not observation.engines:
            # Who is silent stands in the evidence: while a loss lasts, the source forgets one engine after the other.
            message = "No vLLM engine reports fresh metrics. Check the scraping of the pods' /metrics."
            return Holds(message=message, evidence=(evidence,))
        if expected is not None and reporting <= expected * self.fresh.limit:
            message = f"Only {reporting} of {expected} ready pods report fresh metrics. {_check(observation)}"
            return Holds(message=message, evidence=(evidence,))
        return Fails()


def _who_is_silent(observation: Observation) -> str:
    if observation.silent:
        return f"silent: {', '.join(observation.silent[:5])}"
    return "" if observation.engines else "no series"


def _check(observation: Observation) -> str:
    for pod, why in observation.unreadable.items():
        return f"Check {pod}: {why}."
    return "Check the scraping of the others."
