"""The result of one diagnosis rule: the class holds, fails, or cannot be evaluated."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence

__all__ = ["Fails", "Finding", "Holds", "Rule", "Unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The class holds; `message` is one sentence with the figures."""

    message: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence = Confidence.HIGH
    primary: bool = True
    """False: it can contribute, but is not a bottleneck by itself."""


@dataclass(frozen=True, slots=True)
class Fails:
    """The class does not hold."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The class cannot be evaluated; `why` names the missing input."""

    why: str


Finding: TypeAlias = Holds | Fails | Unknown


class Rule(Protocol):
    """One rule per class: thresholds are fields, `judge` is pure."""

    diagnosis: ClassVar[DiagnosisClass]

    def judge(self, case: Case) -> Finding:
        """Evaluate the class on one case."""
        ...
