"""More replicas: what helps when no setting of one engine does, and requests wait for capacity."""

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
"""What limits a number of replicas that no node takes."""


def add_replicas(situation: Situation) -> Proposal | NothingToGain:
    """One replica more, as a recommendation; `scaling` decides how many and when.

    Not for outputs that run to their limit, whatever else holds: that is for a person to see, not for GPUs to hide.
    Not for prompts that are slow without waiting, in a queue or for each other: another replica computes each of them
    just as slowly.
    """
    diagnosis = situation.diagnosis
    if DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in diagnosis.contributing):
        return NothingToGain("outputs run to their token limit: no GPUs are spent on that")
    alone = not queues(situation.observation) and not prompts_contend(situation.case)
    if diagnosis.primary is DiagnosisClass.PREFILL_BOUND and alone:
        return NothingToGain("nothing waits: one more replica computes a prompt no faster")
    scaling, now = situation.scaling, situation.replicas
    if scaling is not None and now >= scaling.max_replicas:
        return NothingToGain(f"already at scaling.maxReplicas ({scaling.max_replicas})")
    proposal = Proposal(
        knob=Knob.REPLICAS,
        current=now,
        value=now + 1,
        target=ChangeTarget.TTFT,
        reason=f"{situation.diagnosis.message} No setting of one engine removes this wait.",
        confidence=situation.diagnosis.confidence,
        extra_replicas=1,
        recommend_only="" if scaling is not None else "spec.scaling is not set: replicas are yours to change",
    )
    return _within_room(proposal, situation)


def end_queue(situation: Situation) -> Proposal | NothingToGain:
    """One replica more against a queue that makes first tokens late, beside whatever makes tokens slow."""
    if not first_tokens_wait(situation.case):
        return NothingToGain("first tokens do not wait for capacity: replicas are no answer to slow tokens alone")
    return add_replicas(situation)


def spread_batch(situation: Situation) -> Proposal | NothingToGain:
    """More replicas against slow tokens, or against the queue that they hide."""
    found = _smaller_batch(situation)
    hides_queue = isinstance(found, NothingToGain) and first_tokens_wait(situation.case)
    return end_queue(situation) if hides_queue else found


def _smaller_batch(situation: Situation) -> Proposal | NothingToGain:
    """Fewer sequences on each engine, where some batch meets the objective.

    Where the load keeps one batch or tokens wait for prompts, no model comes by waiting, however long the objective is
    missed. One replica more changes both, and goes again when it is of no use: the cheapest way to know.
    """
    if not room_for_replicas(situation):
        return NothingToGain("a smaller batch on more replicas is not ours to have: spec.scaling leaves no room")
    if (why := not_slow_now(situation)) is not None:
        return why
    known = knee_of(situation) is not None or met_before(situation)
    if not known and not _would_tell(situation):
        return NothingToGain("no batch is known to meet the TPOT objective: replicas might not help")
    proposal = add_replicas(situation)
    if isinstance(proposal, NothingToGain):
        return proposal
    aim = "Fewer seats would leave requests waiting." if known else "One more tells what less load on each does."
    reason = f"{situation.diagnosis.message} {aim}"
    scaling, now = situation.scaling, situation.replicas
    most = min(now * LARGEST_STEP, now + 1 if scaling is None else scaling.max_replicas)
    count = max(now + 1, min(most, replicas_at_knee(situation)))
    spread = replace(proposal, value=count, extra_replicas=count - now, target=ChangeTarget.TPOT, reason=reason)
    return _within_room(spread, situation)


def needed_for_pace(situation: Situation) -> int | None:
    """How many replicas bring slow tokens inside their objective, by what those that serve now were seen to do.

    None where tokens are not late, or no batch is known to meet the objective. It is no step from what has been asked
    for: while replicas start it stays what it is, so that asking again adds nothing by itself.
    """
    slow = situation.diagnosis.primary is DiagnosisClass.PAST_TPOT_KNEE and not_slow_now(situation) is None
    return replicas_at_knee(situation) if slow and knee_of(situation) is not None else None


def _would_tell(situation: Situation) -> bool:
    """Whether one replica more is worth it to learn from: no line can tell, and a small batch should be in time.

    No line can, where the batch has not moved, or where tokens wait for prompts half of the time: the line of that load
    is far too slow for a single sequence, and fewer prompts on each engine turn it. Should: for engines in general
    (`engines_in_general`). Both end by themselves: once the batch has moved far enough, and once prompts leave time.
    """
    model, case = step_time(situation.observation), situation.case
    unmoved = isinstance(model, NoFit) and model.unmoved
    alone = seconds_alone(situation)
    if alone is None or not (unmoved or prompts_contend(case)):
        return False
    return alone <= situation.targets.tpot.seconds * (1 - HEADROOM)


def _within_room(proposal: Proposal, situation: Situation) -> Proposal:
    """As many replicas as find GPUs. Where none does, it is still what helps: a person can get some."""
    free_gpus, now = situation.platform.free_gpus, situation.replicas
    if free_gpus is None or situation.scaling is not None:
        # Replicas that are ours to add are asked for all the same: pods that wait are what brings nodes.
        return proposal
    if isinstance(lacking := placeable(free_gpus, devices=free_gpus.devices), Infeasible):
        return replace(proposal, limited_by=FREE_GPUS, recommend_only=proposal.recommend_only or lacking.why)
    most = now + free_gpus.pods(free_gpus.devices)
    if proposal.count <= most:
        return proposal
    return replace(proposal, value=most, extra_replicas=most - now, limited_by=FREE_GPUS)
