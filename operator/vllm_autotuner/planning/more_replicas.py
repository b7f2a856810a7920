"""Proposals for more replicas, where no setting of a single engine helps."""

from dataclasses import replace
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.case import queues, step_time
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.overloaded import first_tokens_wait
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.performance.step_time import NoFit
from vllm_autotuner.planning.capped_value import HEADROOM, LARGEST_STEP
from vllm_autotuner.planning.engines_in_general import seconds_alone
from vllm_autotuner.planning.feasibility import Infeasible, placeable
from vllm_autotuner.planning.max_num_seqs import (
    NothingToGain,
    knee_of,
    met_before,
    not_slow_now,
    replicas_at_knee,
    room_for_replicas,
)
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["FREE_GPUS", "add_replicas", "end_queue", "needed_for_pace", "spread_batch"]

FREE_GPUS: Final = "free GPUs"
"""The `limitedBy` text of a number of replicas that free GPUs limit."""


def add_replicas(situation: Situation) -> Proposal | NothingToGain:
    """One more replica, as a recommendation; `scaling` decides how many and when.

    Not for outputs that run to their token limit: a user has to fix that, and GPUs would only hide it. Not for slow
    prompts that wait neither in a queue nor for each other: another replica computes each of them just as slowly.
    """
    diagnosis = situation.diagnosis
    if DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in diagnosis.contributing):
        return NothingToGain("outputs run to their token limit: more GPUs do not help")
    alone = not queues(situation.observation) and not prompts_contend(situation.case)
    if diagnosis.primary is DiagnosisClass.PREFILL_BOUND and alone:
        return NothingToGain("no requests wait: one more replica does not compute a prompt faster")
    scaling, now = situation.scaling, situation.replicas
    if scaling is not None and now >= scaling.max_replicas:
        return NothingToGain(f"already at scaling.maxReplicas ({scaling.max_replicas})")
    proposal = Proposal(
        knob=Knob.REPLICAS,
        current=now,
        value=now + 1,
        target=ChangeTarget.TTFT,
        reason=f"{situation.diagnosis.message} No setting of a single engine removes this wait.",
        confidence=situation.diagnosis.confidence,
        extra_replicas=1,
        recommend_only="" if scaling is not None else "spec.scaling is not set, so the operator does not scale",
    )
    return _within_room(proposal, situation)


def end_queue(situation: Situation) -> Proposal | NothingToGain:
    """One more replica against a queue that makes TTFT late, in addition to the cause of slow tokens."""
    if not first_tokens_wait(situation.case):
        return NothingToGain("requests do not wait for capacity: replicas do not help against slow tokens alone")
    return add_replicas(situation)


def spread_batch(situation: Situation) -> Proposal | NothingToGain:
    """More replicas against slow tokens, or against the queue behind them."""
    found = _smaller_batch(situation)
    hides_queue = isinstance(found, NothingToGain) and first_tokens_wait(situation.case)
    return end_queue(situation) if hides_queue else found


def _smaller_batch(situation: Situation) -> Proposal | NothingToGain:
    """Fewer sequences on each engine, where some batch size meets the objective.

    If the batch size does not vary or tokens wait for prompts, no model can be fitted, however long the objective is
    missed. One more replica changes both and can be removed again: the cheapest way to find out.
    """
    if not room_for_replicas(situation):
        return NothingToGain("a smaller batch needs more replicas, but spec.scaling allows no more")
    if (why := not_slow_now(situation)) is not None:
        return why
    known = knee_of(situation) is not None or met_before(situation)
    if not known and not _would_tell(situation):
        return NothingToGain("no batch size is known to meet the TPOT objective: replicas might not help")
    proposal = add_replicas(situation)
    if isinstance(proposal, NothingToGain):
        return proposal
    aim = (
        "A lower max-num-seqs would make requests wait." if known else "One more replica shows the effect of less load."
    )
    reason = f"{situation.diagnosis.message} {aim}"
    scaling, now = situation.scaling, situation.replicas
    most = min(now * LARGEST_STEP, now + 1 if scaling is None else scaling.max_replicas)
    count = max(now + 1, min(most, replicas_at_knee(situation)))
    spread = replace(proposal, value=count, extra_replicas=count - now, target=ChangeTarget.TPOT, reason=reason)
    return _within_room(spread, situation)


def needed_for_pace(situation: Situation) -> int | None:
    """The number of replicas at which TPOT meets its objective, from the measurements of those that serve now.

    None if TPOT is not late, or no batch size is known to meet the objective. The number does not depend on replicas
    that are starting, so evaluating it again adds nothing.
    """
    slow = situation.diagnosis.primary is DiagnosisClass.PAST_TPOT_KNEE and not_slow_now(situation) is None
    return replicas_at_knee(situation) if slow and knee_of(situation) is not None else None


def _would_tell(situation: Situation) -> bool:
    """Whether one more replica is worthwhile as an experiment: no fit is possible, and a small batch should be in time.

    No fit is possible if the batch size has not varied, or if tokens wait for prompts half of the time: that load's fit
    is far too slow for a single sequence, and fewer prompts per engine change it. "Should" is an estimate from typical
    engines (`engines_in_general`). Both conditions end by themselves once the batch size has varied or prompts take
    less of the time.
    """
    model, case = step_time(situation.observation), situation.case
    unmoved = isinstance(model, NoFit) and model.unmoved
    alone = seconds_alone(situation)
    if alone is None or not (unmoved or prompts_contend(case)):
        return False
    return alone <= situation.targets.tpot.seconds * (1 - HEADROOM)


def _within_room(proposal: Proposal, situation: Situation) -> Proposal:
    """Limit the replicas to the free GPUs. Without a free GPU the proposal stays, as recommended only."""
    free_gpus, now = situation.platform.free_gpus, situation.replicas
    if free_gpus is None or situation.scaling is not None:
        # With spec.scaling the replicas are requested anyway: pending pods make a node autoscaler add nodes.
        return proposal
    if isinstance(lacking := placeable(free_gpus, devices=free_gpus.devices), Infeasible):
        return replace(proposal, limited_by=FREE_GPUS, recommend_only=proposal.recommend_only or lacking.why)
    most = now + free_gpus.pods(free_gpus.devices)
    if proposal.count <= most:
        return proposal
    return replace(proposal, value=most, extra_replicas=most - now, limited_by=FREE_GPUS)
