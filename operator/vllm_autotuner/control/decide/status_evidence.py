"""The figures that a status gives as its reasons: facts with their limits, and what is foreseen.

Apart from the texts, because the ledger of changes keeps them too. Must not: name a class, or foresee anything.
"""

from datetime import timedelta

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.status import Evidence, Grounds, Prediction
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["evidence_of", "grounds_of", "predicted_of"]


def grounds_of(proposal: Proposal, diagnosis: Diagnosis) -> Grounds:
    """What a change is decided on, for the ledger: written once, when it begins."""
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
    """What the change is foreseen to do."""
    return tuple(
        Prediction(name=each.name, unit=each.unit, current=_short(each.current), predicted=_short(each.predicted))
        for each in proposal.predicted
    )


def _short(value: float | None) -> float | None:
    """Three significant digits: enough to judge by, and the same text for the same state."""
    return None if value is None else float(f"{value:.3g}")
