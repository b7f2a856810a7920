"""Evaluates the rules on one observation and names the bottleneck, with hysteresis. Pure: no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Confidence, Measurement
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.finding import Holds, Unknown
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.diagnosis.rules import RULES
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.step_time import StepTime, fit_step_time

__all__ = ["Contribution", "Diagnosis", "History", "case_of", "diagnose"]

CONFIRMATIONS: Final = 2
"""Consecutive evaluations that must agree before the named class changes. Design choice."""

MOST_CONTRADICTIONS: Final = 4
"""Consecutive evaluations that contradict the named class without agreeing on another one, after which the newest is
named: a stale class is worse than an unsteady one. Our choice: twice a confirmation."""

AT_ONCE: Final = frozenset({DiagnosisClass.METRICS_BLIND, DiagnosisClass.STARTUP_FAILURE, DiagnosisClass.COLD_START})
"""Classes that need no confirmation: missing metrics, a pod's age and a pod's status are not noisy."""

ALONE: Final = frozenset({DiagnosisClass.HEALTHY, DiagnosisClass.UNDERUTILIZED, DiagnosisClass.OVERLOADED})
"""Classes that never contribute beside another one. Overloaded: a queue without another explanation."""


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
    alike_since: float = -inf
    """Since when (Unix seconds) class, confidence and contributing classes are the same."""

    def is_like(self, other: "Diagnosis") -> bool:
        """Whether only figures differ."""
        one, two = ([part.diagnosis for part in each.contributing] for each in (self, other))
        return (self.primary, self.confidence, one) == (other.primary, other.confidence, two)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the next evaluation needs of the earlier ones."""

    named: Diagnosis | None = None
    candidate: DiagnosisClass | None = None
    """A class that was seen, but is not confirmed yet."""
    seen: int = 0
    """Consecutive evaluations that saw the candidate."""
    contradictions: int = 0
    """Consecutive evaluations that saw a class other than the named one."""
    learned: Mapping[int, StepTime] = field(default_factory=dict)
    """Tensor-parallel degree -> the step-time model last fitted at it. Lost at a restart and then fitted again."""
    measured: tuple[Measurement, ...] = ()
    """The last windows of the service as it runs, newest last; used to compare changes, not by the diagnosis.
    `diagnose` returns none. Lost at a restart: a change is then compared with fewer windows."""


@dataclass(frozen=True, slots=True)
class _Seen:
    primary: DiagnosisClass
    holds: Holds
    contributing: tuple[Contribution, ...] = field(default=())


def case_of(observation: Observation, *, targets: Targets, knobs: EngineKnobs, history: History) -> Case:
    """Build the input of the rules from an observation and the history of earlier evaluations.

    `knobs`: the flags of the engines that the metrics come from.
    """
    held = history.named
    holding = frozenset({held.primary, *(part.diagnosis for part in held.contributing)}) if held else frozenset()
    learned = _learned(history.learned, observation=observation, degree=knobs.tensor_parallel_size)
    return Case(observation=observation, targets=targets, knobs=knobs, holding=holding, learned=learned)


def diagnose(case: Case, *, history: History) -> tuple[Diagnosis, History]:
    """Name the bottleneck, and return the history for the next evaluation.

    A change of class must be seen `CONFIRMATIONS` times in a row; until then the named class stands. After
    `MOST_CONTRADICTIONS` evaluations that disagree with it and among themselves, the newest class is named. The first
    evaluation of a service needs no confirmation.
    """
    held, observation, learned = history.named, case.observation, case.learned
    seen = _judge(case)
    fresh = Diagnosis(
        primary=seen.primary,
        confidence=_lowered(seen, observation=observation),
        since=observation.at,
        message=seen.holds.message,
        evidence=seen.holds.evidence,
        contributing=seen.contributing,
        alike_since=observation.at,
    )
    if held is not None and fresh.is_like(held):
        fresh = replace(fresh, alike_since=held.alike_since)
    if held is None or seen.primary in AT_ONCE or held.primary in AT_ONCE:
        since = held.since if held is not None and held.primary is seen.primary else observation.at
        named = replace(fresh, since=since)
        return named, History(named=named, learned=learned)
    if seen.primary is held.primary:
        named = replace(fresh, since=held.since)
        return named, History(named=named, learned=learned)
    if held.primary is DiagnosisClass.IDLE:
        # A burst that is over before a class is confirmed has ended the time without requests all the same.
        held = replace(held, since=observation.at)
    count = history.seen + 1 if history.candidate is seen.primary else 1
    contradictions = history.contradictions + 1
    if count >= CONFIRMATIONS or contradictions >= MOST_CONTRADICTIONS:
        return fresh, History(named=fresh, learned=learned)
    doubt = History(named=held, candidate=seen.primary, seen=count, contradictions=contradictions, learned=learned)
    return held, doubt


def _learned(known: Mapping[int, StepTime], *, observation: Observation, degree: int | None) -> Mapping[int, StepTime]:
    """Remember the step time at the current tensor-parallel degree, to compare it with other degrees later."""
    model = fit_step_time(observation.steps) if degree is not None and observation.steps else None
    return {**known, degree: model} if degree is not None and isinstance(model, StepTime) else known


def _judge(case: Case) -> _Seen:
    holding: list[tuple[DiagnosisClass, Holds]] = []
    unknown: list[str] = []
    unasked = 0
    for rule in RULES:
        match rule.judge(case):
            case Holds() as finding:
                if finding.primary and not any(found.primary for _, found in holding):
                    unasked = len(unknown)
                holding.append((rule.diagnosis, finding))
                if rule.diagnosis is DiagnosisClass.METRICS_BLIND:
                    break  # without data no other class can contribute
            case Unknown(why):
                unknown.append(why)
            case _:
                pass
    primaries = [found for found in holding if found[1].primary]
    if not primaries:
        why = "; ".join(unknown) or "no diagnosis class matches and no input is missing"
        finding = Holds(message=f"Unclear: {why}.", evidence=_levels(case), confidence=Confidence.LOW)
        return _Seen(DiagnosisClass.UNCLEAR, finding, _beside(holding, DiagnosisClass.UNCLEAR))
    primary, finding = primaries[0]
    if unasked and finding.confidence is Confidence.HIGH:
        # A rule of higher precedence lacked its input: it might have been the better explanation.
        finding = replace(finding, confidence=Confidence.MEDIUM)
    return _Seen(primary, finding, _beside(holding, primary))


def _beside(holding: list[tuple[DiagnosisClass, Holds]], primary: DiagnosisClass) -> tuple[Contribution, ...]:
    return tuple(
        Contribution(diagnosis=other, message=also.message)
        for other, also in holding
        if other is not primary and other not in ALONE
    )


def _levels(case: Case) -> tuple[Evidence, ...]:
    return (case.ttft_evidence(), case.tpot_evidence())


def _lowered(seen: _Seen, *, observation: Observation) -> Confidence:
    """The confidence of a finding, lower where engines are silent; that metrics are missing is all the surer then."""
    sure = seen.holds.confidence is Confidence.HIGH
    if observation.silent and sure and seen.primary is not DiagnosisClass.METRICS_BLIND:
        return Confidence.MEDIUM
    return seen.holds.confidence
