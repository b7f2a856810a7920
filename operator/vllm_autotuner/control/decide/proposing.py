"""The proposal part of a tick: which value is recommended, which change starts, and how many replicas are wanted.

Apart from `tick`, which handles the change in progress and combines the parts. Pure, like `tick`.
Must not: move a change that has started, or report anything but the recommendation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Mode, Scaling
from vllm_autotuner.api.status import ActiveChange, Outcome, Recommendation, VLLMServiceStatus
from vllm_autotuner.change.begin import begin
from vllm_autotuner.change.failure_memory import failed_values, infeasible_knobs, left_values
from vllm_autotuner.change.foreseen import lacks_requests
from vllm_autotuner.change.verdict import is_baseline, measure
from vllm_autotuner.control.decide.inputs import Inputs, serves, wanted_replicas
from vllm_autotuner.control.decide.recent_windows import windows_until_now
from vllm_autotuner.control.decide.recommendation import approval_expired, recommended, recommended_value, still_says
from vllm_autotuner.control.decide.scaling_during_change import may_scale_during
from vllm_autotuner.control.decide.scaling_history import (
    failed_scale_ins,
    pods_changed_at,
    replicas_too_few,
    scale_ins_after,
)
from vllm_autotuner.control.decide.status_evidence import grounds_of
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.guardrails.chain import Context, Deny, Hold, objections
from vllm_autotuner.guardrails.cooldown import spent
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason
from vllm_autotuner.planning.forecast import Outlook
from vllm_autotuner.planning.plan import Plan, plan
from vllm_autotuner.planning.platform import platform_of
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.backlog import ends_before_a_trial
from vllm_autotuner.scaling.desired_replicas import desired_replicas
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["Ideas", "change_just_ended", "ideas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideas:
    """The result of the proposal part of a tick."""

    status: VLLMServiceStatus
    desired: int | None = None
    """Replicas wanted for the current load; None where the operator does not set them."""
    at_its_turn: "Ideas | None" = None
    """The result if the queued change of this service may start in this tick; None when no change is queued."""


def ideas(status: VLLMServiceStatus, inputs: Inputs, *, case: Case, diagnosis: Diagnosis, sure: bool) -> Ideas:
    """Recommend, and if every guardrail allows it start a change or scale.

    `sure`: the metrics are present and the diagnosis is confirmed. Otherwise nothing is concluded in this tick.
    """
    if inputs.mode is Mode.OFF:
        return Ideas(status=_without_recommendation(status))
    scaled_by = inputs.workload.scaled_by
    scaling = inputs.service.spec.scaling if not scaled_by else None
    replicas = wanted_replicas(inputs.service, status, scaled_by=scaled_by)
    desired = None if scaling is None else replicas
    shows_trial = status.active_change is not None or change_just_ended(status, inputs)
    if shows_trial:
        # The metrics are about the trial, not the service.
        status = _without_recommendation(status)
    if not sure:
        # Missing metrics and a single outlier neither confirm nor withdraw the current recommendation.
        return Ideas(status=status, desired=desired)
    situation = _situation(status, inputs, case=case, diagnosis=diagnosis, replicas=replicas, scaling=scaling)
    if not shows_trial:
        return _in_steady_state(status, inputs, situation=situation, desired=desired)
    more = _beside_a_change(status, inputs, situation=situation) if replicas is not None else None
    return Ideas(status=status, desired=desired) if more is None else _scaled_to(more, status, inputs=inputs)


def _begun(status: VLLMServiceStatus, change: ActiveChange, *, now: datetime) -> VLLMServiceStatus:
    """The status with this change in progress instead of its recommendation."""
    status = _without_recommendation(status)
    return status.updated(active_change=change, budget=spent(status.budget, now=now))


def _beside_a_change(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation) -> Scale | None:
    """Scale-out while a change is in progress: requests must not wait for its end. Scale-in can wait."""
    change, diagnosed = status.active_change, situation.diagnosis.primary
    if change is None or not may_scale_during(change, diagnosed, case=situation.case):
        return None
    found = _scale(status, inputs, situation=situation)
    return found if found is not None and found.replicas > situation.replicas else None


def _in_steady_state(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation, desired: int | None) -> Ideas:
    """Recommend, start a change or scale while no change is in progress and the diagnosis is confirmed."""
    found, standing = plan(situation), status.recommendation
    proposal, scale = found.proposal, _scale(status, inputs, situation=situation)
    replicas_first = scale is not None and _come_first(scale, found, situation)
    planned = _planned(proposal)
    approved = proposal is not None and standing is not None and _approves(standing, proposal, inputs=inputs)
    if proposal is not None and standing is not None and approved:
        # The approval is for the value in the recommendation, not for a slightly different new one.
        proposal = replace(proposal, value=recommended_value(standing), max_num_seqs=standing.max_num_seqs)
    change = None
    if proposal is not None and proposal.knob is not Knob.REPLICAS:
        change = _change_of(proposal, status, inputs=inputs, situation=situation)
    spare = _spare_replicas(found.before, situation) if _scales(inputs) else 0
    context = _context(status, inputs, situation=situation, change=change, approved=approved, spare_replicas=spare)
    if planned is not None and (_scales(inputs) or (Knob.REPLICAS.value, str(planned)) in situation.failed):
        # With automatic scaling, replicas need no recommendation: an Event announces each step. Without it, a rejected
        # number of replicas is not recommended again; the planner avoids other rejected values itself.
        proposal = None
    held = objections(proposal, context) if proposal is not None else ()
    if change is not None and not held and not replicas_first:
        return Ideas(status=_begun(status, change, now=inputs.now), desired=desired)
    at_its_turn = None
    if change is not None and not replicas_first and [each.reason for each in held] == [HoldReason.QUEUED]:
        at_its_turn = Ideas(status=_begun(status, change, now=inputs.now), desired=desired)
    status = status.updated(
        recommendation=recommended(proposal, held, before=standing, inputs=inputs),
        queued_since=_place_in_queue(held, inputs=inputs),
    )
    wanted = None
    if proposal is not None and proposal.knob is Knob.REPLICAS and approved and not held:
        wanted = Scale(replicas=proposal.count, reason=proposal.reason)
    elif proposal is None or replicas_first or not _setting_starts_soon(proposal, held):
        wanted = scale
    if desired is None or wanted is None:
        return Ideas(status=status, desired=desired, at_its_turn=at_its_turn)
    return replace(_scaled_to(wanted, status, inputs=inputs), at_its_turn=at_its_turn)


def _approves(standing: Recommendation, proposal: Proposal, *, inputs: Inputs) -> bool:
    """Whether the current recommendation is approved and equals the proposal."""
    asked = bool(inputs.approved) and standing.id == inputs.approved
    return asked and still_says(standing, proposal) and not approval_expired(standing, inputs)


def _context(
    status: VLLMServiceStatus,
    inputs: Inputs,
    *,
    situation: Situation,
    change: ActiveChange | None,
    approved: bool,
    spare_replicas: int,
) -> Context:
    """The input of the guardrails."""
    workload, operator, observation = inputs.workload, inputs.operator, inputs.observation
    return Context(
        now=inputs.now,
        spec=inputs.service.spec,
        status=status,
        diagnosis=situation.diagnosis,
        paused=inputs.paused,
        settled=status.effective is not None and serves(status.effective, workload.rollout),
        watching_since=operator.watching_since,
        window=timedelta(seconds=observation.window),
        approved=approved,
        limits=operator.limits,
        locked=workload.adoption.locked if workload.adoption is not None else {},
        measured=is_baseline(measure(observation, targets=situation.targets)),
        too_few_requests=_too_few(change, inputs),
        drains=_ending(inputs),
        trouble=operator.trouble,
        queue=operator.queue,
        free_gpus=inputs.free_gpus,
        spare_replicas=spare_replicas,
        blocked=situation.failed,
        infeasible=situation.infeasible,
        knobs=situation.knobs,
    )


def _without_recommendation(status: VLLMServiceStatus) -> VLLMServiceStatus:
    return status.updated(recommendation=None, queued_since=None)


def _situation(
    status: VLLMServiceStatus,
    inputs: Inputs,
    *,
    case: Case,
    diagnosis: Diagnosis,
    replicas: int | None,
    scaling: Scaling | None,
) -> Situation:
    spec, rollout = inputs.service.spec, inputs.workload.rollout
    return Situation(
        case=case,
        diagnosis=diagnosis,
        tuning=spec.tuning,
        replicas=replicas if replicas is not None else max(1, rollout.replicas),
        scaling=scaling,
        replicas_since=rollout.newest_since,
        too_few=replicas_too_few(status, inputs.observation, scaling=scaling, now=inputs.now),
        failed=failed_values(spec, status, now=inputs.now),
        left=left_values(status, now=inputs.now),
        infeasible=infeasible_knobs(spec, status),
        platform=platform_of(spec, catalogue=inputs.operator.catalogue, free_gpus=inputs.free_gpus),
    )


def _come_first(scale: Scale, found: Plan, situation: Situation) -> bool:
    """Whether the replicas are changed before a setting is tried.

    They come in minutes and undo themselves; a setting that leaves requests late would keep them late for as long as
    its trial takes, and one that saves GPUs would keep a replica for as long that is not needed.
    """
    if scale.replicas > situation.replicas:
        return _needs_more(found, situation)
    return scale.replicas < situation.replicas


def _spare_replicas(before: Outlook | None, situation: Situation) -> int:
    """Replicas beyond those that surely serve the load as it is; 0 if not known."""
    if before is None or before.needed is None:
        return 0
    # Where that many are likely enough, one more surely is.
    return max(0, situation.replicas - before.needed - (0 if before.surely_enough else 1))


def _needs_more(found: Plan, situation: Situation) -> bool:
    """Whether the load of now needs more replicas with what is proposed, too; False if not known."""
    after = found.considered[0].after if found.considered else None
    return after is not None and after.needed is not None and after.needed > situation.replicas


def _planned(proposal: Proposal | None) -> int | None:
    """The number of replicas that the plan proposes; None when it proposes none."""
    return proposal.count if proposal is not None and proposal.knob is Knob.REPLICAS else None


def _too_few(change: ActiveChange | None, inputs: Inputs) -> str:
    """Why the current requests are too few for a verdict on this change; empty when they are enough."""
    if change is None:
        return ""
    return lacks_requests(
        change,
        replicas=max(1, inputs.workload.rollout.replicas),
        window=timedelta(seconds=inputs.observation.window),
    )


def _ending(inputs: Inputs) -> str:
    """Why the backlog will drain before a change would be measured; empty when it will not."""
    newest = inputs.workload.rollout.newest_since
    since = None if newest is None else newest.timestamp()
    return ends_before_a_trial(inputs.observation, since=since, warm_up=inputs.service.spec.tuning.strategy.warm_up)


def _scales(inputs: Inputs) -> bool:
    """Whether the operator scales the replicas automatically."""
    ours = inputs.service.spec.scaling is not None and not inputs.workload.scaled_by
    return ours and inputs.mode is Mode.AUTOMATIC and not inputs.paused


def _scale(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation) -> Scale | None:
    """The replicas wanted for the current load; None where the operator does not set them."""
    if situation.scaling is None or not _scales(inputs):
        return None
    rollout = inputs.workload.rollout
    supply = Supply(
        current=situation.replicas,
        rolled_out=rollout.rolled_out,
        ready=rollout.ready,
        newest_since=rollout.newest_since,
        start_up=rollout.start_up,
        pods_changed_at=pods_changed_at(status),
        failed=failed_scale_ins(status, now=inputs.now),
    )
    return desired_replicas(supply, scaling=situation.scaling, situation=situation, now=inputs.now)


def _place_in_queue(held: Sequence[Hold | Deny], *, inputs: Inputs) -> datetime | None:
    """Since when a change has been queued; None when it is not.

    A queue position survives hold reasons that pass by themselves, such as a new leader's first window, and no others.
    """
    reasons = {objection.reason for objection in held}
    if HoldReason.QUEUED not in reasons or not reasons <= PASSING | {HoldReason.QUEUED}:
        return None
    return inputs.service.status.queued_since or (inputs.now if reasons == {HoldReason.QUEUED} else None)


def _setting_starts_soon(proposal: Proposal, held: Sequence[Hold | Deny]) -> bool:
    """Whether a setting that needs no GPU starts soon: replicas added now would cost GPUs and hide its effect.

    A queued change may wait for hours and does not count.
    """
    others = [objection.reason for objection in held if objection.reason is not HoldReason.QUEUED]
    return proposal.knob is not Knob.REPLICAS and bool(others) and PASSING.issuperset(others)


def _scaled_to(scale: Scale, status: VLLMServiceStatus, *, inputs: Inputs) -> Ideas:
    """Set the number of replicas in the status."""
    if status.effective is not None and status.effective.replicas != scale.replicas:
        effective = status.effective.updated(replicas=scale.replicas, replicas_reason=scale.reason, since=inputs.now)
        status = status.updated(effective=effective, scale_ins=scale_ins_after(status, scale, inputs=inputs))
    return Ideas(status=status, desired=scale.replicas)


def change_just_ended(status: VLLMServiceStatus, inputs: Inputs) -> bool:
    """Whether the metrics window still overlaps with a change that has ended."""
    last = status.history[-1] if status.history else None
    # A successful change leaves its value in force, so its metrics stay valid.
    ended = None if last is None or last.outcome is Outcome.SUCCEEDED else last.finished_at
    return ended is not None and timedelta() <= inputs.now - ended < timedelta(seconds=inputs.observation.window)


def _change_of(proposal: Proposal, status: VLLMServiceStatus, *, inputs: Inputs, situation: Situation) -> ActiveChange:
    change = begin(
        proposal,
        service=inputs.service,
        status=status,
        hash_of=inputs.workload.hash_of,
        measured=windows_until_now(inputs, targets=situation.targets, since=situation.diagnosis.since),
        replicas=inputs.workload.rollout.replicas,
        epoch=inputs.operator.epoch,
        now=inputs.now,
        free_gpus=inputs.free_gpus,
    )
    return change.updated(grounds=grounds_of(proposal, situation.diagnosis))
