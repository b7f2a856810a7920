"""The proposal half of a tick: what is recommended, which change begins, and how many replicas are asked for.

Apart from `tick`, which decides about what is under way already and puts the halves together. Pure, as that is.
Must not: move a change that has begun, or report anything but the recommendation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Mode, Scaling
from vllm_autotuner.api.status import ActiveChange, Outcome, Recommendation, VLLMServiceStatus
from vllm_autotuner.change.begin import begin
from vllm_autotuner.change.failure_memory import failed_seats, failed_values, infeasible_knobs
from vllm_autotuner.change.foreseen import lacks_requests
from vllm_autotuner.change.verdict import is_baseline, measure
from vllm_autotuner.control.decide.inputs import Inputs, serves, wanted_replicas
from vllm_autotuner.control.decide.recent_windows import until_now
from vllm_autotuner.control.decide.recommendation import asked_too_long, recommended, still_says, value_said
from vllm_autotuner.control.decide.scaling_during_change import answers_beside
from vllm_autotuner.control.decide.scaling_history import failed_scale_ins, replicas_asked_since, scale_ins_after
from vllm_autotuner.control.decide.status_evidence import grounds_of
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.guardrails.chain import Context, Deny, Hold, objections
from vllm_autotuner.guardrails.cooldown import spent
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason
from vllm_autotuner.planning.more_replicas import needed_for_pace
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.platform import platform_of
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.backlog import ends_before_a_trial
from vllm_autotuner.scaling.desired_replicas import desired_replicas
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["Ideas", "ideas", "just_over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideas:
    """What the proposal half of a tick comes to."""

    status: VLLMServiceStatus
    desired: int | None = None
    """Replicas that demand asks for; None where they are not ours."""
    at_its_turn: "Ideas | None" = None
    """What it would come to, were it this service's turn to begin a change; None where it is not about turns."""


def ideas(status: VLLMServiceStatus, inputs: Inputs, *, case: Case, diagnosis: Diagnosis, sure: bool) -> Ideas:
    """Recommend, and where everything allows it begin a change or ask for other replicas.

    `sure`: the metrics are there and say what the diagnosis says. Else they wait for a second look, and so do we.
    """
    if inputs.mode is Mode.OFF:
        return Ideas(status=_without_recommendation(status))
    scaled_by = inputs.workload.scaled_by
    scaling = inputs.service.spec.scaling if not scaled_by else None
    replicas = wanted_replicas(inputs.service, status, scaled_by=scaled_by)
    desired = None if scaling is None else replicas
    shows_trial = status.active_change is not None or just_over(status, inputs)
    if shows_trial:
        # What the metrics show now is the trial, not the service.
        status = _without_recommendation(status)
    if not sure:
        # Neither silence nor one odd moment confirms or refutes what stands.
        return Ideas(status=status, desired=desired)
    situation = _situation(status, inputs, case=case, diagnosis=diagnosis, replicas=replicas, scaling=scaling)
    if not shows_trial:
        return _in_steady_state(status, inputs, situation=situation, desired=desired)
    more = _beside_a_change(status, inputs, situation=situation) if replicas is not None else None
    return Ideas(status=status, desired=desired) if more is None else _scaled_to(more, status, inputs=inputs)


def _begun(status: VLLMServiceStatus, change: ActiveChange, *, now: datetime) -> VLLMServiceStatus:
    """The status with this change under way, in the place of its recommendation."""
    status = _without_recommendation(status)
    return status.updated(active_change=change, budget=spent(status.budget, now=now))


def _beside_a_change(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation) -> Scale | None:
    """More replicas while a change is under way: requests do not wait for its end; fewer replicas can."""
    change, diagnosed = status.active_change, situation.diagnosis.primary
    if change is None or not answers_beside(change, diagnosed, case=situation.case):
        return None
    found = _scale(status, inputs, situation=situation, planned=_planned(plan(situation).proposal))
    return found if found is not None and found.replicas > situation.replicas else None


def _in_steady_state(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation, desired: int | None) -> Ideas:
    """Recommend, begin or scale while no change is under way and the metrics are sure."""
    proposal, standing = plan(situation).proposal, status.recommendation
    planned = _planned(proposal)
    approved = proposal is not None and standing is not None and _approves(standing, proposal, inputs=inputs)
    if proposal is not None and standing is not None and approved:
        # A person approved the value that was shown, not its latest neighbour.
        proposal = replace(proposal, value=value_said(standing))
    change = None
    if proposal is not None and proposal.knob is not Knob.REPLICAS:
        change = _change_of(proposal, status, inputs=inputs, situation=situation)
    context = _context(status, inputs, situation=situation, change=change, approved=approved)
    if planned is not None and (_scales(inputs) or (Knob.REPLICAS.value, str(planned)) in situation.failed):
        # Replicas come and go by themselves here: that is announced when it happens, and asks nobody. Elsewhere a
        # person who said no to them is not asked again; the planner keeps clear of other values by itself.
        proposal = None
    held = objections(proposal, context) if proposal is not None else ()
    if change is not None and not held:
        return Ideas(status=_begun(status, change, now=inputs.now), desired=desired)
    at_its_turn = None
    if change is not None and [objection.reason for objection in held] == [HoldReason.QUEUED]:
        at_its_turn = Ideas(status=_begun(status, change, now=inputs.now), desired=desired)
    status = status.updated(
        recommendation=recommended(proposal, held, before=standing, inputs=inputs),
        queued_since=_place_in_queue(held, inputs=inputs),
    )
    wanted = None
    if proposal is not None and proposal.knob is Knob.REPLICAS and approved and not held:
        wanted = Scale(replicas=proposal.count, reason=proposal.reason)
    elif proposal is None or not _comes_soon(proposal, held):
        wanted = _scale(status, inputs, situation=situation, planned=planned)
    if desired is None or wanted is None:
        return Ideas(status=status, desired=desired, at_its_turn=at_its_turn)
    return replace(_scaled_to(wanted, status, inputs=inputs), at_its_turn=at_its_turn)


def _approves(standing: Recommendation, proposal: Proposal, *, inputs: Inputs) -> bool:
    """Whether a person has approved the recommendation that stands, and it still says the same."""
    asked = bool(inputs.approved) and standing.id == inputs.approved
    return asked and still_says(standing, proposal) and not asked_too_long(standing, inputs)


def _context(
    status: VLLMServiceStatus,
    inputs: Inputs,
    *,
    situation: Situation,
    change: ActiveChange | None,
    approved: bool,
) -> Context:
    """What the guardrails may look at."""
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
        too_few=_too_few(change, inputs),
        ending=_ending(inputs),
        trouble=operator.trouble,
        queue=operator.queue,
        free_gpus=inputs.free_gpus,
        resting=situation.failed,
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
        failed_seats=failed_seats(spec, status, now=inputs.now),
        failed=failed_values(spec, status, now=inputs.now),
        infeasible=infeasible_knobs(spec, status),
        platform=platform_of(spec, catalogue=inputs.operator.catalogue, free_gpus=inputs.free_gpus),
    )


def _planned(proposal: Proposal | None) -> int | None:
    """As many replicas as the plan asks for; None where it asks for none."""
    return proposal.count if proposal is not None and proposal.knob is Knob.REPLICAS else None


def _too_few(change: ActiveChange | None, inputs: Inputs) -> str:
    """Why the requests that come now allow no verdict on this change; empty when they do."""
    if change is None:
        return ""
    return lacks_requests(
        change,
        replicas=max(1, inputs.workload.rollout.replicas),
        strategy=inputs.service.spec.tuning.strategy,
        window=timedelta(seconds=inputs.observation.window),
    )


def _ending(inputs: Inputs) -> str:
    """How what has piled up ends before a change would be measured; empty when it does not."""
    newest = inputs.workload.rollout.newest_since
    since = None if newest is None else newest.timestamp()
    return ends_before_a_trial(inputs.observation, since=since, warm_up=inputs.service.spec.tuning.strategy.warm_up)


def _scales(inputs: Inputs) -> bool:
    """Whether replicas come and go by themselves."""
    ours = inputs.service.spec.scaling is not None and not inputs.workload.scaled_by
    return ours and inputs.mode is Mode.AUTOMATIC and not inputs.paused


def _scale(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation, planned: int | None) -> Scale | None:
    """The replicas that demand asks for; None where they are not ours to set."""
    if situation.scaling is None or not _scales(inputs):
        return None
    rollout = inputs.workload.rollout
    supply = Supply(
        current=situation.replicas,
        ready=rollout.ready,
        newest_since=rollout.newest_since,
        start_up=rollout.start_up,
        asked_since=replicas_asked_since(status),
        fewer_since=max((tried.at for tried in status.scale_ins if tried.at is not None), default=None),
        failed=failed_scale_ins(status, now=inputs.now),
        planned=planned,
        needed=needed_for_pace(situation),
    )
    return desired_replicas(
        supply, scaling=situation.scaling, diagnosis=situation.diagnosis, case=situation.case, now=inputs.now
    )


def _place_in_queue(held: Sequence[Hold | Deny], *, inputs: Inputs) -> datetime | None:
    """Since when a change waits for its turn; None when it does not.

    A place in the queue outlives what passes by itself, such as a new leader's first look; nothing else.
    """
    reasons = {objection.reason for objection in held}
    if HoldReason.QUEUED not in reasons or not reasons <= PASSING | {HoldReason.QUEUED}:
        return None
    return inputs.service.status.queued_since or (inputs.now if reasons == {HoldReason.QUEUED} else None)


def _comes_soon(proposal: Proposal, held: Sequence[Hold | Deny]) -> bool:
    """Whether a setting that costs no GPU is about to be tried: replicas beside it would be paid for and hide it.

    Who only waits for his turn may wait for hours.
    """
    others = [objection.reason for objection in held if objection.reason is not HoldReason.QUEUED]
    return proposal.knob is not Knob.REPLICAS and bool(others) and PASSING.issuperset(others)


def _scaled_to(scale: Scale, status: VLLMServiceStatus, *, inputs: Inputs) -> Ideas:
    """Ask for so many replicas."""
    if status.effective is not None and status.effective.replicas != scale.replicas:
        effective = status.effective.updated(replicas=scale.replicas, replicas_reason=scale.reason, since=inputs.now)
        status = status.updated(effective=effective, scale_ins=scale_ins_after(status, scale.replicas, inputs=inputs))
    return Ideas(status=status, desired=scale.replicas)


def just_over(status: VLLMServiceStatus, inputs: Inputs) -> bool:
    """Whether the window still holds metrics of a change that has ended."""
    last = status.history[-1] if status.history else None
    # What was kept has run since long before, and runs on.
    ended = None if last is None or last.outcome is Outcome.SUCCEEDED else last.finished_at
    return ended is not None and timedelta() <= inputs.now - ended < timedelta(seconds=inputs.observation.window)


def _change_of(proposal: Proposal, status: VLLMServiceStatus, *, inputs: Inputs, situation: Situation) -> ActiveChange:
    change = begin(
        proposal,
        service=inputs.service,
        status=status,
        hash_of=inputs.workload.hash_of,
        measured=until_now(inputs, targets=situation.targets, since=situation.diagnosis.since),
        replicas=inputs.workload.rollout.replicas,
        epoch=inputs.operator.epoch,
        now=inputs.now,
        free_gpus=inputs.free_gpus,
    )
    return change.updated(grounds=grounds_of(proposal, situation.diagnosis))
