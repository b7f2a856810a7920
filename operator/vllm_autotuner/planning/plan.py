"""Chooses at most one proposal for a diagnosis, with the predicted effect of each candidate and why the others lost.

Each class has a ladder of candidates, the cheapest to undo first. Must not: decide whether the proposal may be applied
now (guardrails), or how (change).

Candidates that may be applied come before those that may only be recommended, and those that add no GPUs before those
that do. Among equals the first of the ladder is chosen, unless a later one is predicted to be clearly better
(`ranking`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.planning.bounds import with_value
from vllm_autotuner.planning.context_length import shorter_context, shorter_to_start
from vllm_autotuner.planning.demand import demand_of
from vllm_autotuner.planning.feasibility import Infeasible, finds_memory
from vllm_autotuner.planning.forecast import Outlook, current_setting, outlook, predicted, setting_with
from vllm_autotuner.planning.kv_type import smaller_kv_values
from vllm_autotuner.planning.max_num_seqs import (
    NothingToGain,
    fit_to_kv_cache,
    lower_max_num_seqs,
    raise_max_num_seqs,
)
from vllm_autotuner.planning.more_replicas import add_replicas, end_queue, spread_batch
from vllm_autotuner.planning.parallelism import larger_degree, smaller_degree
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.ranking import clearly_better
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.planning.worth import not_worth

__all__ = ["LADDER", "Considered", "Plan", "plan"]

Candidate = Callable[[Situation], Proposal | NothingToGain]


def _length_that_starts(situation: Situation) -> Proposal | NothingToGain:
    pods = situation.observation.pods
    failures = [pod.failure for pod in pods.failing if pod.failure is not None] if pods is not None else []
    lengths = [each.suggested_max_model_len for each in failures if each.suggested_max_model_len is not None]
    return shorter_to_start(situation, suggested=min(lengths, default=None))


def _if_oversized(situation: Situation) -> Proposal | NothingToGain:
    if DiagnosisClass.CONTEXT_OVERSIZED in (part.diagnosis for part in situation.diagnosis.contributing):
        return shorter_context(situation)
    return NothingToGain("max-model-len is not far above what requests need")


_MORE_CACHE: Final = (smaller_kv_values, _if_oversized, add_replicas, larger_degree)
LADDER: Final[Mapping[DiagnosisClass, tuple[Candidate, ...]]] = {
    DiagnosisClass.STARTUP_FAILURE: (_length_that_starts,),
    DiagnosisClass.CONCURRENCY_CAPPED: (raise_max_num_seqs, add_replicas),
    DiagnosisClass.PAST_TPOT_KNEE: (lower_max_num_seqs, spread_batch),
    DiagnosisClass.PREEMPTION_THRASH: (fit_to_kv_cache, *_MORE_CACHE),
    DiagnosisClass.KV_CACHE_SATURATED: _MORE_CACHE,
    DiagnosisClass.PREFILL_BOUND: (add_replicas, larger_degree),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: (larger_degree, end_queue),
    DiagnosisClass.COMMUNICATION_BOUND: (smaller_degree, end_queue),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: (shorter_context,),
    DiagnosisClass.OVERLOADED: (add_replicas,),
}
"""Other classes propose nothing: they need waiting, a restart or a fix elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """One candidate and its forecast; None without traffic."""

    proposal: Proposal
    after: Outlook | None = None
    lost: str = ""
    """Why another one was chosen; empty for the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is proposed, and what was considered and why it lost."""

    proposal: Proposal | None = None
    passed_over: tuple[str, ...] = ()
    """Why candidates have no benefit, or are infeasible."""
    considered: tuple[Considered, ...] = ()
    """The chosen one, then the runner-up, then the others."""
    before: Outlook | None = None
    """The current configuration, by the same forecast."""


def plan(situation: Situation) -> Plan:
    """Propose the best candidate of the ladder that has a benefit."""
    ladder = LADDER.get(situation.diagnosis.primary, ())
    serves = bool(situation.observation.engines)
    if not ladder or (not serves and situation.diagnosis.primary is not DiagnosisClass.STARTUP_FAILURE):
        return Plan()
    answers = [candidate(situation) for candidate in ladder]
    passed_over = [answer.why for answer in answers if isinstance(answer, NothingToGain)]
    asked = {answer: _known_infeasible(answer, situation) for answer in answers if isinstance(answer, Proposal)}
    passed_over += filter(None, asked.values())
    proposals = [answer for answer, why in asked.items() if not why]
    if not proposals or not serves:
        found = tuple(Considered(proposal=each) for each in proposals)
        return Plan(proposal=proposals[0] if proposals else None, passed_over=tuple(passed_over), considered=found)
    before, judged = _judged(proposals, situation)
    for each in judged:
        if each.lost:
            passed_over.append(f"{each.proposal.knob.value} {each.proposal.value}: {each.lost}")
    ranked = _ranked([each for each in judged if not each.lost], situation)
    return Plan(
        proposal=ranked[0].proposal if ranked else None,
        passed_over=tuple(passed_over),
        considered=ranked,
        before=before,
    )


def _known_infeasible(proposal: Proposal, situation: Situation) -> str:
    """Return why it would run out of memory, as a similar configuration has; empty if none has."""
    if proposal.knob is Knob.REPLICAS:
        return ""
    answer = finds_memory(situation.infeasible, with_value(situation.knobs, proposal.knob, proposal.value))
    return f"{proposal.knob.value} {proposal.value}: {answer.why}" if isinstance(answer, Infeasible) else ""


def _judged(proposals: Iterable[Proposal], situation: Situation) -> tuple[Outlook, list[Considered]]:
    """Forecast each proposal, and note why it is not worth it if it is not."""
    demand = demand_of(situation)
    now = current_setting(situation, demand)
    before = outlook(now, now=now, situation=situation, demand=demand)
    # No forecast includes the cost of preemptions or the time that tokens wait for prompts, so it cannot judge
    # proposals that reduce them.
    evicting = situation.diagnosis.primary is DiagnosisClass.PREEMPTION_THRASH
    contending = prompts_contend(situation.case)
    judged = []
    for proposal in proposals:
        then = setting_with(now, proposal.knob, proposal.value, situation=situation, demand=demand)
        after = outlook(then, now=now, situation=situation, demand=demand)
        blind = evicting or (contending and proposal.knob is Knob.REPLICAS)
        restarts = proposal.knob is not Knob.REPLICAS
        why = not_worth(before, after, target=proposal.target, targets=situation.targets, restarts=restarts)
        lost = "" if blind else why
        judged.append(
            Considered(proposal=replace(proposal, predicted=predicted(before, after)), after=after, lost=lost)
        )
    return before, judged


def _ranked(candidates: Sequence[Considered], situation: Situation) -> tuple[Considered, ...]:
    """Order the candidates, the best first, and note for each other one why it lost."""
    rest, order = list(candidates), list[Considered]()
    while rest:
        tier = min(map(_tier, rest))
        chosen = _best([each for each in rest if _tier(each) == tier], situation)
        rest.remove(chosen)
        order.append(replace(chosen, lost=_why_lost(chosen, against=order[0])) if order else chosen)
    return tuple(order)


def _tier(candidate: Considered) -> tuple[bool, bool]:
    return _only_shown(candidate.proposal), _extra_gpus(candidate) > 0


def _only_shown(proposal: Proposal) -> bool:
    """Whether it may only be recommended: low confidence is not applied (guardrail `confident`). Not for replicas."""
    guess = proposal.confidence is Confidence.LOW and proposal.knob is not Knob.REPLICAS
    return bool(proposal.recommend_only) or guess


def _extra_gpus(candidate: Considered) -> int:
    return candidate.proposal.extra_gpus + candidate.proposal.extra_replicas


def _best(candidates: Sequence[Considered], situation: Situation) -> Considered:
    best = candidates[0]
    for each in candidates[1:]:
        ours, theirs = (one.after.effect if one.after is not None else None for one in (best, each))
        if ours is not None and theirs is not None and clearly_better(theirs, ours, targets=situation.targets):
            best = each
    return best


def _why_lost(candidate: Considered, *, against: Considered) -> str:
    best, own = against.proposal, candidate.proposal
    if _only_shown(own) and not _only_shown(best):
        return f"recommended only: {own.recommend_only or 'confidence is Low'}"
    if _extra_gpus(candidate) > 0 >= _extra_gpus(against):
        return f"it adds GPUs; {best.knob.value} {best.value} adds none"
    if candidate.after is None or candidate.after.effect is None:
        return f"{best.knob.value} {best.value} is cheaper to undo, and the effect of this candidate is not known"
    return f"not clearly better than {best.knob.value} {best.value}, or with more GPUs"
