"""The class that a span of evaluations is remembered for: a service that is calm again may have been slow for an hour.

Must not: judge a moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm_autotuner.cli.evaluate.levels import Levels
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.overview.class_looks import Severity, look_of

__all__ = ["Worst", "worst_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The most severe class of a span; of several, the one that held longest."""

    named: DiagnosisClass
    share: float
    """Of the span (0..1)."""


def worst_of(levels: Sequence[Levels]) -> Worst | None:
    """Return the worst class of all evaluations, each of which stands for the time since the one before.

    None for a single one, which is no span.
    """
    lengths: dict[DiagnosisClass, float] = {}
    for before, one in pairwise(levels):
        lengths[one.named] = lengths.get(one.named, 0.0) + one.time - before.time
    total = sum(lengths.values())
    if not total:
        return None
    named = max(lengths, key=lambda each: (_severity(each), lengths[each]))
    return Worst(named=named, share=lengths[named] / total)


def _severity(named: DiagnosisClass) -> Severity:
    # A gap in the metrics is an alarm while it lasts. Once it is over, what the engine did in the rest counts.
    return Severity.UNSURE if named is DiagnosisClass.METRICS_BLIND else look_of(named).severity
