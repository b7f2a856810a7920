"""The reporting part of a status: diagnosis, conditions, summary and figures.

Apart from `tick`, because nothing is decided here. In steady state nothing is written: figures are refreshed together
with another change of the status, and otherwise only once they have moved for good (`figures_refresh`).
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import (
    ActiveChange,
    Contribution,
    DiagnosisStatus,
    Measurement,
    Summary,
    VLLMServiceStatus,
)
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.decide.figures_refresh import have_moved, latencies, typical_latencies
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.status_conditions import conditions_of
from vllm_autotuner.control.decide.status_evidence import evidence_of
from vllm_autotuner.diagnosis.case import kv_mean
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Target, Targets

__all__ = ["change_text", "described"]


def described(
    status: VLLMServiceStatus,
    *,
    inputs: Inputs,
    diagnosis: Diagnosis,
    targets: Targets,
    ended: tuple[ActiveChange, Ending] | None,
    recent: Sequence[Measurement] = (),
) -> VLLMServiceStatus:
    """Complete a decided status with everything that only reports. `recent`: the last windows in steady state."""
    before = inputs.service.status
    named = _diagnosis(diagnosis)
    lasts = inputs.observation.at - diagnosis.alike_since >= inputs.observation.window
    status = status.updated(
        observed_generation=inputs.service.metadata.generation,
        observed_spec_hash=inputs.service.spec_hash or None,
        diagnosis=named if _is_news(named, before.diagnosis, lasts=lasts) else before.diagnosis,
        replicas=inputs.workload.pods,
        ready_replicas=inputs.workload.rollout.ready,
        selector=inputs.workload.selector,
    )
    status = status.updated(conditions=conditions_of(status, inputs, diagnosis=diagnosis, ended=ended))
    # Figures move with every request.
    if status.updated(summary=before.summary, measured=before.measured) != before:
        measured = latencies(measure(inputs.observation, targets=targets))
    elif inputs.operator.refresh_due and have_moved(before.measured, recent):
        measured = typical_latencies(recent)
    else:
        return before
    summary = _summary(status, inputs, measured=measured, targets=targets)
    return status.updated(summary=summary, measured=measured, diagnosis=named)


def _is_news(named: DiagnosisStatus, before: DiagnosisStatus | None, *, lasts: bool) -> bool:
    """Whether more than figures differ: the class, or what stands beside it, once that `lasts` for a state window.

    A source that loses all series lacks some answers at once, and an engine is silent before that window has passed.
    """
    if before is None or before.class_ != named.class_:
        return True
    one, two = ([part.class_ for part in each.contributing] for each in (named, before))
    return lasts and (named.confidence, one) != (before.confidence, two)


def _diagnosis(diagnosis: Diagnosis) -> DiagnosisStatus:
    contributing = tuple(
        Contribution(class_=part.diagnosis.value, message=part.message) for part in diagnosis.contributing
    )
    return DiagnosisStatus(
        class_=diagnosis.primary.value,
        confidence=diagnosis.confidence,
        since=datetime.fromtimestamp(diagnosis.since, tz=UTC),
        message=diagnosis.message,
        evidence=evidence_of(diagnosis),
        contributing=contributing,
    )


def change_text(change: ActiveChange | None) -> str | None:
    """A change as short text for `kubectl get`."""
    return None if change is None else f"{change.knob}={change.to_value} {change.state.value}"


def _summary(status: VLLMServiceStatus, inputs: Inputs, *, measured: Measurement, targets: Targets) -> Summary:
    usages = [usage for engine in inputs.observation.engines if (usage := kv_mean(engine)) is not None]
    return Summary(
        effective=_knobs_text(effective_knobs(inputs.service.spec, status)),
        ttft=_against(measured.ttft_seconds, targets.ttft),
        tpot=_against(measured.tpot_seconds, targets.tpot),
        kv_usage=f"{max(usages):.0%}" if usages else None,
        change=change_text(status.active_change),
    )


def _knobs_text(knobs: EngineKnobs) -> str:
    parts = (
        ("seqs", knobs.max_num_seqs),
        ("len", knobs.max_model_len),
        ("kv", knobs.kv_cache_dtype),
        ("tp", knobs.tensor_parallel_size),
    )
    return " ".join(f"{name}={value}" for name, value in parts if value is not None) or "engine defaults"


def _against(seconds: float | None, target: Target) -> str | None:
    return None if seconds is None else f"{_duration(seconds)}/{_duration(target.seconds)}"


def _duration(seconds: float) -> str:
    return told_seconds(seconds).replace(" ", "")
