"""Chooses at most one proposal: the best configuration one step away, with all forecasts and why the others lost.

Every knob is asked in every situation that a setting can change. Each class has a ladder of candidates that its cause
suggests, the cheapest to undo first; the other knobs follow. Must not: decide whether the proposal may be applied now
(guardrails), or how (change).

Candidates that may be applied come before those that may only be recommended, and those that add no GPUs before those
that do. Among them the best forecast wins (`worth.order`): fewest requests that miss their objectives, then fewest
GPUs, then most capacity; then the ladder's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_autotuner.api.knobs import Knob, knob_value
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.case import Case, is_late, tpot_reading, ttft_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.planning.bounds import with_values
from vllm_autotuner.planning.context_length import shorter_context, shorter_to_start
from vllm_autotuner.planning.feasibility import Infeasible, finds_memory
from vllm_autotuner.planning.forecast import (
    Outlook,
    current_setting,
    is_known_for_long,
    outlook,
    predicted,
    setting_with,
)
from vllm_autotuner.planning.kv_type import smaller_kv_values
from vllm_autotuner.planning.max_num_seqs import (
    fit_to_kv_cache,
    lower_max_num_seqs,
    raise_max_num_seqs,
)
from vllm_autotuner.planning.more_replicas import add_replicas
from vllm_autotuner.planning.parallelism import larger_degree, smaller_degree
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.planning.unused_slots import memory_of_unused_slots
from vllm_autotuner.planning.worth import MET, comes_closer, not_worth, order, saves

__all__ = ["LADDER", "Considered", "Plan", "plan"]

Candidate = Callable[[Situation], Proposal | NothingToGain]


def _length_that_starts(situation: Situation) -> Proposal | NothingToGain:
    pods = situation.observation.pods
    failures = [pod.failure for pod in pods.failing if pod.failure is not None] if pods is not None else []
    lengths = [each.suggested_max_model_len for each in failures if each.suggested_max_model_len is not None]
    return shorter_to_start(situation, suggested=min(lengths, default=None))


_MORE_CACHE: Final = (smaller_kv_values, add_replicas, larger_degree)
_SAVING: Final = (raise_max_num_seqs, memory_of_unused_slots, smaller_kv_values, smaller_degree, larger_degree)
LADDER: Final[Mapping[DiagnosisClass, tuple[Candidate, ...]]] = {
    DiagnosisClass.STARTUP_FAILURE: (_length_that_starts,),
    DiagnosisClass.CONCURRENCY_CAPPED: (raise_max_num_seqs, add_replicas),
    DiagnosisClass.PAST_TPOT_KNEE: (lower_max_num_seqs, add_replicas),
    DiagnosisClass.PREEMPTION_THRASH: (fit_to_kv_cache, *_MORE_CACHE),
    DiagnosisClass.KV_CACHE_SATURATED: _MORE_CACHE,
    DiagnosisClass.PREFILL_BOUND: (add_replicas, larger_degree),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: (larger_degree, add_replicas),
    DiagnosisClass.COMMUNICATION_BOUND: (smaller_degree, add_replicas),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: (shorter_context,),
    DiagnosisClass.OVERLOADED: (add_replicas,),
    DiagnosisClass.HEALTHY: _SAVING,
    DiagnosisClass.UNDERUTILIZED: _SAVING,
}
"""Other classes propose nothing: they need waiting, a restart or a fix elsewhere."""
_NO_SEARCH: Final = frozenset(
    {DiagnosisClass.STARTUP_FAILURE, DiagnosisClass.HEAD_OF_LINE_BLOCKING, DiagnosisClass.OVERLOADED}
)
"""Classes that no other knob helps: nothing of a replica is measured, the cause is a few requests, or no setting of an
engine ends the queue."""


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
    not_worth: tuple[Considered, ...] = ()
    """Candidates with a forecast that is not worth a change, the best first."""
    before: Outlook | None = None
    """The current configuration, by the same forecast."""


def plan(situation: Situation) -> Plan:
    """Propose the best candidate that is worth it."""
    primary, serves = situation.diagnosis.primary, bool(situation.observation.engines)
    ladder = LADDER.get(primary, ())
    if not ladder or (not serves and primary is not DiagnosisClass.STARTUP_FAILURE):
        return Plan()
    others = () if primary in _NO_SEARCH else tuple(each for each in _SAVING if each not in ladder)
    answers = [(candidate, candidate(situation)) for candidate in (*ladder, *others)]
    passed_over = [answer.why for candidate, answer in answers if isinstance(answer, NothingToGain)]
    proposals = []
    for candidate, answer in answers:
        if not isinstance(answer, Proposal):
            continue
        if why := _known_infeasible(answer, situation):
            passed_over.append(why)
        else:
            proposals.append((answer, candidate in ladder))
    if not proposals or not serves:
        found = tuple(Considered(proposal=each) for each, _ in proposals)
        return Plan(proposal=proposals[0][0] if proposals else None, passed_over=tuple(passed_over), considered=found)
    before, judged = _judged(proposals, situation)
    for each in judged:
        if each.lost:
            passed_over.append(f"{each.proposal.knob.value} {each.proposal.value}: {each.lost}")
    ranked = _ranked([each for each in judged if not each.lost], before=before)
    return Plan(
        proposal=ranked[0].proposal if ranked else None,
        passed_over=tuple(passed_over),
        considered=ranked,
        not_worth=tuple(sorted((each for each in judged if each.lost), key=lambda each: order(each.after))),
        before=before,
    )


def _known_infeasible(proposal: Proposal, situation: Situation) -> str:
    """Return why it would run out of memory, as a similar configuration has; empty if none has."""
    if proposal.knob is Knob.REPLICAS or not situation.infeasible:
        return ""
    answer = finds_memory(situation.infeasible, with_values(situation.knobs, proposal.values))
    return f"{proposal.knob.value} {proposal.value}: {answer.why}" if isinstance(answer, Infeasible) else ""


def _judged(proposals: Sequence[tuple[Proposal, bool]], situation: Situation) -> tuple[Outlook, list[Considered]]:
    """Forecast each proposal, and note why it is not worth it if it is not. With each: whether the ladder names it."""
    now = current_setting(situation)
    met = situation.diagnosis.primary in MET
    # While objectives are missed they are what a change is for, and not the replica that came for them.
    too_few = situation.too_few if met else 0
    before = outlook(now, situation=situation, runs=True, too_few=too_few)
    saving = situation.tuning.save_gpus and is_known_for_long(situation)
    judged = []
    for proposal, named in proposals:
        setting = setting_with(now, proposal.knob, proposal.value, situation=situation)
        after = outlook(setting, situation=situation, too_few=too_few)
        lost = ""
        # Steps are at most to twice the size: what needs four GPUs would never be begun.
        towards = not met and proposal.knob is Knob.TENSOR_PARALLEL_SIZE and comes_closer(before, after)
        if not (named and (towards or _is_blind(proposal, situation, before=before))):
            lost = not_worth(
                before, after, met=met, saving=saving, fixed=situation.scaling is None, targets=situation.targets
            )
            if not lost and not named and after.capacity is None:
                lost = "its effect is not known"
        if not lost and _was_left(proposal, situation) and saves(before, after):
            lost = (
                "a change that was kept has left this value within a week: the way back would save nothing that lasts"
            )
        judged.append(Considered(proposal=_with_effect(proposal, before, after, situation), after=after, lost=lost))
    return before, judged


def _was_left(proposal: Proposal, situation: Situation) -> bool:
    """Whether a kept change has left this value lately; of numbers, one that is the same within noise."""
    values = [value for knob, value in situation.left if knob == proposal.knob.value]
    if isinstance(proposal.value, str):
        return proposal.value in values
    numbers = (number for value in values if isinstance(number := knob_value(value), int))
    return any(abs(proposal.value - one) <= NOISE * one for one in numbers)


def _is_blind(proposal: Proposal, situation: Situation, *, before: Outlook) -> bool:
    """Whether the forecast leaves out what the proposal is about, so that only its trial can judge it.

    No forecast knows the cost of preemptions, or the time that tokens wait for prompts. Fewer slots past the knee keep
    TPOT in time whatever the load; what they cost is what `lower_max_num_seqs` has looked at. And a forecast by which
    everything is served while an objective is missed does not tell what replicas are worth.
    """
    match proposal.knob:
        case Knob.MAX_NUM_SEQS:
            return situation.diagnosis.primary in (DiagnosisClass.PREEMPTION_THRASH, DiagnosisClass.PAST_TPOT_KNEE)
        case Knob.REPLICAS:
            return prompts_contend(situation.case) or situation.scaling is not None or before.missing == 0
        case Knob.MAX_MODEL_LEN:
            return True
        case _:
            return False


def _with_effect(proposal: Proposal, before: Outlook, after: Outlook, situation: Situation) -> Proposal:
    """The proposal with what it is expected to do, and what it is judged by.

    One that saves GPUs, or that comes while every objective is met, is judged by doing no harm, or by ending a missed
    objective: no trial can show the load that it is for.
    """
    effects, saved = predicted(before, after), saves(before, after)
    harmless = proposal.knob is not Knob.REPLICAS and proposal.target is not ChangeTarget.START
    if harmless and (saved or _all_in_time(situation.case)):
        proposal = replace(proposal, target=ChangeTarget.GPUS)
    if not saved or before.needed_gpus is None or before.capacity is None or after.capacity is None:
        return replace(proposal, predicted=effects)
    if before.needed_gpus > before.gpus:
        # Those that are to come: what a load that rises would ask for next is not in use.
        what = f"the load needs {after.needed_gpus} GPUs and not {before.needed_gpus} ({before.gpus} are in use)"
    else:
        what = f"saves {saved} of {before.needed_gpus} GPUs ({saved * 24} GPU-hours a day)"
    told = (
        f"{proposal.reason} A replica would serve {after.capacity:.2f} requests/s within the objectives instead of "
        f"{before.capacity:.2f}: {what}."
    )
    return replace(proposal, predicted=effects, reason=told)


def _all_in_time(case: Case) -> bool:
    """Whether both latencies are measured, and within their objectives."""
    pairs = ((ttft_reading(case), case.targets.ttft), (tpot_reading(case), case.targets.tpot))
    return all(isinstance(reading, Measured) and not is_late(reading, target) for reading, target in pairs)


def _ranked(candidates: Sequence[Considered], *, before: Outlook) -> tuple[Considered, ...]:
    """Order the candidates, the best first, and note for each other one why it lost."""
    # The sort is stable: among equals the ladder's order stays.
    ordered = sorted(candidates, key=lambda each: _place(each, before))
    return tuple(
        replace(each, lost=_why_lost(each, against=ordered[0], before=before)) if index else each
        for index, each in enumerate(ordered)
    )


def _place(candidate: Considered, before: Outlook) -> tuple[bool, bool, tuple[float, float, float]]:
    """What may be applied first; of that what adds no GPUs to those of now; then the best forecast."""
    return _only_shown(candidate.proposal), _adds_gpus(candidate, before), order(candidate.after)


def _adds_gpus(candidate: Considered, before: Outlook) -> bool:
    """Whether it needs more GPUs than run now, and than the load needs without it.

    Not a larger size of which so few replicas are needed that GPUs become free, though its pods come beside the others.
    """
    proposal, there = candidate.proposal, max(before.gpus, before.needed_gpus or 0)
    needed = None if candidate.after is None else candidate.after.needed_gpus
    return proposal.extra_replicas > 0 or (proposal.extra_gpus > 0 and (needed is None or needed > there))


def _only_shown(proposal: Proposal) -> bool:
    """Whether it may only be recommended: low confidence is not applied (guardrail `confident`). Not for replicas."""
    guess = proposal.confidence is Confidence.LOW and proposal.knob is not Knob.REPLICAS
    return bool(proposal.recommend_only) or guess


def _why_lost(candidate: Considered, *, against: Considered, before: Outlook) -> str:
    best, own = against.proposal, candidate.proposal
    if _only_shown(own) and not _only_shown(best):
        return f"recommended only: {own.recommend_only or 'confidence is Low'}"
    if _adds_gpus(candidate, before) and not _adds_gpus(against, before):
        return f"it adds GPUs; {best.knob.value} {best.value} adds none"
    theirs, ours = against.after, candidate.after
    if theirs is None or ours is None or theirs.missing is None or ours.missing is None:
        return f"{best.knob.value} {best.value} is cheaper to undo, and the effect of this candidate is not known"
    if order(ours)[0] > order(theirs)[0]:
        return f"{ours.missing:.0%} of the requests would miss their objectives; {theirs.missing:.0%} with the best"
    if order(ours)[1] > order(theirs)[1]:
        return f"it needs more GPUs than {best.knob.value} {best.value}"
    return f"no better than {best.knob.value} {best.value}"
