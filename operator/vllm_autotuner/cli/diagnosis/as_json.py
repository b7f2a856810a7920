"""The answer of `diagnose` as JSON. The keys are API: added to, never renamed.

Times are given twice, as Unix seconds (`time`, `sinceTime`) and as RFC 3339 in UTC (`at`, `since`); latencies are
seconds and shares 0..1; null means "unknown", never zero.
"""

import math
from collections.abc import Sequence
from typing import Any

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.cli.evaluate.evaluation import Evaluated, ServiceReport
from vllm_autotuner.cli.evaluate.moments import Span, rfc3339
from vllm_autotuner.cli.evaluate.worst import worst_of
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.objectives import Target
from vllm_autotuner.engine.flags import render_flags
from vllm_autotuner.planning.advice import ADVICE
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["as_json", "flag_of"]


def as_json(reports: Sequence[ServiceReport], *, at: float, span: Span | None, notes: Sequence[str]) -> dict[str, Any]:
    """Return plain values only: no NaN, no infinity. `span`: what a recording covers."""
    services = [_service(report, span=span) for report in reports]
    answer: dict[str, Any] = {
        "time": at,
        "at": rfc3339(at),
        "span": None if span is None else {"from": rfc3339(span.first), "to": rfc3339(span.last)},
        "services": services,
        "notes": list(notes),
    }
    if len(services) == 1 and "timeline" in services[0]:
        answer["timeline"] = services[0]["timeline"]
    return answer


def _service(report: ServiceReport, *, span: Span | None) -> dict[str, Any]:
    observation = report.observation
    answer = {
        "namespace": report.service.namespace,
        "service": report.service.name,
        "model": report.model,
        "objectives": {"ttft": _target(report.targets.ttft), "tpot": _target(report.targets.tpot)},
        "engines": [
            {
                "pod": engine.key.pod,
                "engine": engine.key.engine,
                "running": engine.moments[-1].running,
                "waiting": engine.moments[-1].waiting,
                "kvUsage": engine.moments[-1].kv,
            }
            for engine in observation.engines
        ],
        "silent": list(observation.silent),
        "diagnosis": _diagnosis(report.diagnosis),
        "recommendation": None if report.plan.proposal is None else _recommendation(report.plan.proposal),
        "passedOver": list(report.plan.passed_over),
        "advice": list(ADVICE[report.diagnosis.primary]),
    }
    if report.timeline:
        answer["timeline"] = [_point(point, span=span) for point in report.timeline]
        worst = worst_of(report.levels)
        answer["worst"] = None if worst is None else {"class": worst.named.value, "share": worst.share}
    return answer


def _target(target: Target) -> dict[str, Any]:
    return {"quantile": target.quantile, "seconds": target.seconds, "default": target.defaulted}


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "class": diagnosis.primary.value,
        "confidence": diagnosis.confidence.value,
        "since": rfc3339(diagnosis.since),
        "sinceTime": diagnosis.since,
        "message": diagnosis.message,
        "evidence": [_evidence(one) for one in diagnosis.evidence],
        "contributing": [{"class": one.diagnosis.value, "message": one.message} for one in diagnosis.contributing],
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "name": evidence.name,
        "value": _finite(evidence.value),
        "unit": evidence.unit,
        "threshold": _finite(evidence.threshold),
        "window": evidence.window,
        "note": evidence.note,
    }


def _point(point: Evaluated, *, span: Span | None) -> dict[str, Any]:
    diagnosis = point.diagnosis
    return {
        "time": point.time,
        "at": rfc3339(point.time),
        "offset": None if span is None else round(point.time - span.first, 3),
        "class": diagnosis.primary.value,
        "confidence": diagnosis.confidence.value,
        "contributing": [one.diagnosis.value for one in diagnosis.contributing],
    }


def _recommendation(proposal: Proposal) -> dict[str, Any]:
    return {
        "knob": proposal.knob.value,
        "current": proposal.current,
        "value": proposal.value,
        "maxModelLen": proposal.max_model_len,
        "maxNumSeqs": proposal.max_num_seqs,
        "flag": flag_of(proposal),
        "target": proposal.target.value,
        "reason": proposal.reason,
        "confidence": proposal.confidence.value,
        "limitedBy": proposal.limited_by,
        "predicted": [
            {"name": one.name, "unit": one.unit, "current": _finite(one.current), "predicted": _finite(one.predicted)}
            for one in proposal.predicted
        ],
        "extraReplicas": proposal.extra_replicas,
    }


def flag_of(proposal: Proposal) -> str | None:
    """The command-line arguments that do what is proposed; None for what is no flag of the engine."""
    if proposal.knob is Knob.REPLICAS:
        return None
    knobs = EngineKnobs.model_validate({knob.value: value for knob, value in proposal.values.items()})
    flags = render_flags(
        max_num_seqs=knobs.max_num_seqs,
        max_model_len=knobs.max_model_len,
        kv_cache_dtype=knobs.kv_cache_dtype,
        tensor_parallel_size=knobs.tensor_parallel_size,
    )
    return " ".join(flags)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
