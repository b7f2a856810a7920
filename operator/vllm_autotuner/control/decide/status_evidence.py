"""The figures behind a diagnosis or a change in the status: evidence with thresholds, and predictions.

Apart from `status_report`, because the history of changes keeps them too. Must not: diagnose, or predict.
"""

from datetime import timedelta

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.status import Evidence, Grounds, Prediction
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["evidence_of", "grounds_of", "predicted_of"]


def grounds_of(proposal: Proposal, diagnosis: Diagnosis) -> Grounds:
    """The grounds of a change, for its history entry: recorded once, when it starts."""
    return Grounds(
        diagnosis=diagnosis.primary.value,
        confidence=proposal.confidence,
        evidence=evidence_of(diagnosis),
        predicted=predicted_of(proposal),
    )


def evidence_of(diagnosis: Diagnosis) -> tuple[Evidence, ...]:
    """The facts behind a diagnosis."""
    return tuple(
        Evidence(
            name=each.name,
            value=_short(each.value),
            unit=each.unit,
            threshold=_short(each.threshold),
            window=None if each.window is None else format_duration(timedelta(seconds=each.window)),
            note=each.note or None,
        )
        for each in diagnosis.evidence
    )


def predicted_of(proposal: Proposal) -> tuple[Prediction, ...]:
    """The predicted effects of the change."""
    return tuple(
        Prediction(name=each.name, unit=each.unit, current=_short(each.current), predicted=_short(each.predicted))
        for each in proposal.predicted
    )


def _short(value: float | None) -> float | None:
    """Three significant digits: enough to judge by, and the same text for the same state."""
    return None if value is None else float(f"{value:.3g}")
