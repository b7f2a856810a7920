"""From one observation to one named bottleneck. Pure: the same input gives the same diagnosis, here and everywhere."""

from dataclasses import dataclass, field, replace
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.finding import Holds, Unknown
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.diagnosis.rules import RULES
from vllm_autotuner.observation.observation import Observation

__all__ = ["Contribution", "Diagnosis", "History", "diagnose"]

CONFIRMATIONS: Final = 2
"""Evaluations in a row that must agree before the named class changes. Design: two consecutive ticks."""

MOST_CONTRADICTIONS: Final = 4
"""Evaluations in a row that may contradict the named class without agreeing on another one. After these the newest is
named: an old verdict that nothing supports any more is worse than an unsteady one. Our choice: twice a confirmation."""

AT_ONCE: Final = frozenset({DiagnosisClass.METRICS_BLIND})
"""Classes that need no confirmation: not knowing is never too early to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A class that holds beside the primary one."""

    diagnosis: DiagnosisClass
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One primary class with its evidence, and what contributes. `since`: Unix seconds."""

    primary: DiagnosisClass
    confidence: Confidence
    since: float
    message: str
    evidence: tuple[Evidence, ...] = ()
    contributing: tuple[Contribution, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the next evaluation needs of the earlier ones."""

    named: Diagnosis | None = None
    candidate: DiagnosisClass | None = None
    """A class that was seen, but is not confirmed yet."""
    seen: int = 0
    """Evaluations in a row that saw the candidate."""
    contradictions: int = 0
    """Evaluations in a row that saw anything but the named class."""


@dataclass(frozen=True, slots=True)
class _Seen:
    primary: DiagnosisClass
    holds: Holds
    contributing: tuple[Contribution, ...] = field(default=())


def diagnose(
    observation: Observation, *, targets: Targets, knobs: EngineKnobs, history: History
) -> tuple[Diagnosis, History]:
    """Name the bottleneck, and return the history to pass the next time.

    A change of class must be seen `CONFIRMATIONS` times in a row; until then the named class stands, but not against
    `MOST_CONTRADICTIONS` that disagree among themselves. The first evaluation of a service names what it sees.
    """
    held = history.named
    holding = frozenset({held.primary, *(part.diagnosis for part in held.contributing)}) if held else frozenset()
    seen = _judge(Case(observation=observation, targets=targets, knobs=knobs, holding=holding))
    fresh = Diagnosis(
        primary=seen.primary,
        confidence=_lowered(seen.holds.confidence, observation=observation),
        since=observation.at,
        message=seen.holds.message,
        evidence=seen.holds.evidence,
        contributing=seen.contributing,
    )
    if held is None or seen.primary in AT_ONCE or held.primary in AT_ONCE:
        since = held.since if held is not None and held.primary is seen.primary else observation.at
        named = replace(fresh, since=since)
        return named, History(named=named)
    if seen.primary is held.primary:
        named = replace(fresh, since=held.since)
        return named, History(named=named)
    count = history.seen + 1 if history.candidate is seen.primary else 1
    contradictions = history.contradictions + 1
    if count >= CONFIRMATIONS or contradictions >= MOST_CONTRADICTIONS:
        return fresh, History(named=fresh)
    return held, History(named=held, candidate=seen.primary, seen=count, contradictions=contradictions)


def _judge(case: Case) -> _Seen:
    holding: list[tuple[DiagnosisClass, Holds]] = []
    unknown: list[str] = []
    unasked = 0
    for rule in RULES:
        match rule.judge(case):
            case Holds() as finding:
                unasked = len(unknown) if not holding else unasked
                holding.append((rule.diagnosis, finding))
                if rule.diagnosis is DiagnosisClass.METRICS_BLIND:
                    break  # nothing said about data that is not there can contribute
            case Unknown(why):
                unknown.append(why)
            case _:
                pass
    if not holding:
        why = "; ".join(unknown) or "no rule holds and none lacks an input"
        finding = Holds(message=f"Unclear: {why}.", evidence=_levels(case), confidence=Confidence.LOW)
        return _Seen(DiagnosisClass.UNCLEAR, finding)
    primary, finding = holding[0]
    if unasked and finding.confidence is Confidence.HIGH:
        # A rule that comes first could not be asked: it might have explained the same better.
        finding = replace(finding, confidence=Confidence.MEDIUM)
    # Overloaded says "a queue that nothing else explains": beside a class that explains it, it says nothing.
    rest = tuple(
        Contribution(diagnosis=other, message=also.message)
        for other, also in holding[1:]
        if other not in (DiagnosisClass.HEALTHY, DiagnosisClass.OVERLOADED)
    )
    return _Seen(primary, finding, rest)


def _levels(case: Case) -> tuple[Evidence, ...]:
    return (case.ttft_evidence(), case.tpot_evidence())


def _lowered(confidence: Confidence, *, observation: Observation) -> Confidence:
    if observation.silent and confidence is Confidence.HIGH:
        return Confidence.MEDIUM
    return confidence
