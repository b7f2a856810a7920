"""From a diagnosis to at most one proposal, and the reasons why the others lost.

Each class asks only for what its row in the design allows; the order inside a class is the ladder, cheapest in GPUs
first. Must not: know whether the proposal may happen now (guardrails), or how (change).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.replicas import add_replicas
from vllm_autotuner.planning.seats import NothingToGain, fit_seats_to_pool, lower_seats, raise_seats
from vllm_autotuner.planning.situation import Situation

__all__ = ["Plan", "plan"]

Candidate = Callable[[Situation], Proposal | NothingToGain]

LADDER: Final[Mapping[DiagnosisClass, tuple[Candidate, ...]]] = {
    DiagnosisClass.CONCURRENCY_CAPPED: (raise_seats, add_replicas),
    DiagnosisClass.PAST_TPOT_KNEE: (lower_seats,),
    DiagnosisClass.PREEMPTION_THRASH: (fit_seats_to_pool, add_replicas),
    DiagnosisClass.KV_CACHE_SATURATED: (add_replicas,),
    DiagnosisClass.PREFILL_BOUND: (add_replicas,),
    DiagnosisClass.OVERLOADED: (add_replicas,),
}
"""Classes that are not here propose nothing: waiting, restarting or looking elsewhere is what helps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is proposed, and what was considered and why it lost."""

    proposal: Proposal | None = None
    passed_over: tuple[str, ...] = ()


def plan(situation: Situation) -> Plan:
    """Propose the first candidate of the ladder that gains something."""
    if not situation.observation.engines:
        return Plan()
    passed_over: list[str] = []
    for candidate in LADDER.get(situation.diagnosis.primary, ()):
        match candidate(situation):
            case NothingToGain(why):
                passed_over.append(why)
            case Proposal() as found:
                return Plan(proposal=found, passed_over=tuple(passed_over))
    return Plan(passed_over=tuple(passed_over))
