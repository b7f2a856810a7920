"""The proposal half of a tick: what is recommended, which change begins, and how many replicas are asked for.

Apart from `tick`, which decides about what is under way already and puts the halves together. Pure, as that is.
Must not: move a change that has begun, or report anything but the recommendation.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Mode, Scaling
from vllm_autotuner.api.status import ActiveChange, Effective, Outcome, VLLMServiceStatus
from vllm_autotuner.change.begin import begin
from vllm_autotuner.change.effective import effective_knobs, settled_knobs
from vllm_autotuner.change.foreseen import lacks_requests
from vllm_autotuner.change.memory import failed_seats, failed_values, infeasible_knobs, spent
from vllm_autotuner.change.trial_deployments import gpus_added
from vllm_autotuner.change.verdict import is_baseline, measure
from vllm_autotuner.control.decide.inputs import Inputs, serves, wanted_replicas
from vllm_autotuner.control.decide.recent_windows import until_now
from vllm_autotuner.control.decide.recommendation import asked_too_long, recommended, still_says, value_said
from vllm_autotuner.control.decide.scaling_during_change import answers_beside
from vllm_autotuner.control.decide.scaling_history import failed_scale_ins, replicas_asked_since, scale_ins_after
from vllm_autotuner.control.decide.status_evidence import grounds_of
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.guardrails.chain import Context, Deny, Hold, objections
from vllm_autotuner.guardrails.concurrency import Asking
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason
from vllm_autotuner.planning.more_replicas import needed_for_pace
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.platform import platform_of
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.backlog import ends_before_a_trial
from vllm_autotuner.scaling.desired_replicas import desired_replicas
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["ideas", "just_over"]


def ideas(
    status: VLLMServiceStatus, inputs: Inputs, *, diagnosis: Diagnosis, targets: Targets, sure: bool
) -> tuple[VLLMServiceStatus, int | None, Asking | None]:
    """Recommend, and where everything allows it begin a change or ask for other replicas.

    `sure`: the metrics are there and say what the diagnosis says. Else they wait for a second look, and so do we.
    Third: that only the limits of the fleet are in the way of a change.
    """
    service, spec = inputs.service, inputs.service.spec
    replicas = wanted_replicas(service, status, scaled_by=inputs.scaled_by)
    scaling = spec.scaling if not inputs.scaled_by else None
    if inputs.mode is Mode.OFF:
        return status.model_copy(update={"recommendation": None, "queued_since": None}), None, None
    desired = None if scaling is None else replicas
    change = status.active_change
    if change is not None or just_over(status, inputs):
        # What the metrics show now is the trial, not the service.
        status = status.model_copy(update={"recommendation": None, "queued_since": None})
        if change is None or not sure or replicas is None:
            return status, desired, None
        situation = _situation(status, inputs, diagnosis=diagnosis, targets=targets, replicas=replicas, scaling=scaling)
        if not answers_beside(change, diagnosis.primary, case=situation.case):
            return status, desired, None
        # Requests are not let wait for the end of a change; fewer replicas can.
        planned = _planned(plan(situation).proposal)
        more = _scaled(status, inputs, situation=situation, planned=planned)
        if more is None or more.replicas <= replicas:
            return status, desired, None
        return _with_replicas(status, more, inputs=inputs), more.replicas, None
    if not sure:
        # Neither silence nor one odd moment confirms or refutes what stands.
        return status, desired, None
    situation = _situation(status, inputs, diagnosis=diagnosis, targets=targets, replicas=replicas, scaling=scaling)
    proposal = plan(situation).proposal
    standing, approved = status.recommendation, False
    if proposal is not None and standing is not None and inputs.approved and standing.id == inputs.approved:
        approved = still_says(standing, proposal) and not asked_too_long(standing, inputs)
        # A person approved the value that was shown, not its latest neighbour.
        proposal = replace(proposal, value=value_said(standing)) if approved else proposal
    context = Context(
        now=inputs.now,
        spec=spec,
        status=status,
        diagnosis=diagnosis,
        paused=inputs.paused,
        settled=status.effective is not None and serves(status.effective, inputs),
        watching_since=inputs.watching_since,
        window=timedelta(seconds=inputs.observation.window),
        approved=approved,
        limits=inputs.limits,
        locked=inputs.adoption.locked if inputs.adoption is not None else {},
        measured=is_baseline(measure(inputs.observation, targets=targets)),
        too_few=_too_few(proposal, status, inputs=inputs, diagnosis=diagnosis, targets=targets),
        ending=_ending(inputs),
        trouble=inputs.trouble,
        queue=inputs.queue,
        free_gpus=inputs.free_gpus,
        resting=situation.failed,
        infeasible=situation.infeasible,
        knobs=situation.knobs,
    )
    scales = _scales(inputs)
    planned = _planned(proposal)
    if planned is not None and (scales or (Knob.REPLICAS.value, str(planned)) in situation.failed):
        # Replicas come and go by themselves here: that is announced when it happens, and asks nobody. Elsewhere a
        # person who said no to them is not asked again; the planner keeps clear of other values by itself.
        proposal = None
    held = objections(proposal, context) if proposal is not None else ()
    if proposal is not None and proposal.knob is not Knob.REPLICAS and not held:
        status = status.model_copy(update={"recommendation": None, "queued_since": None})
        change = _change_of(proposal, status, inputs=inputs, diagnosis=diagnosis, targets=targets)
        return _begun(status, change, inputs=inputs), desired, None
    asks = None
    if proposal is not None and [objection.reason for objection in held] == [HoldReason.QUEUED]:
        asks = _asking(_change_of(proposal, status, inputs=inputs, diagnosis=diagnosis, targets=targets), inputs=inputs)
    update = {
        "recommendation": recommended(proposal, held, before=standing, inputs=inputs),
        "queued_since": asks.since if asks is not None else _place_kept(held, inputs=inputs),
    }
    status = status.model_copy(update=update)
    if scaling is None or replicas is None:
        return status, desired, asks
    if proposal is not None and proposal.knob is Knob.REPLICAS and approved and not held:
        scale = Scale(replicas=proposal.count, reason=proposal.reason)
        return _with_replicas(status, scale, inputs=inputs), scale.replicas, asks
    if not scales or (proposal is not None and _comes_soon(proposal, held)):
        return status, desired, asks
    wanted = _scaled(status, inputs, situation=situation, planned=planned)
    if wanted is None:
        return status, desired, asks
    return _with_replicas(status, wanted, inputs=inputs), wanted.replicas, asks


def _situation(
    status: VLLMServiceStatus,
    inputs: Inputs,
    *,
    diagnosis: Diagnosis,
    targets: Targets,
    replicas: int | None,
    scaling: Scaling | None,
) -> Situation:
    spec = inputs.service.spec
    return Situation(
        observation=inputs.observation,
        diagnosis=diagnosis,
        targets=targets,
        knobs=inputs.runs or settled_knobs(spec, status),
        tuning=spec.tuning,
        replicas=replicas if replicas is not None else max(1, inputs.rollout.replicas),
        scaling=scaling,
        replicas_since=inputs.rollout.newest_since,
        failed_seats=failed_seats(spec, status, now=inputs.now),
        failed=failed_values(spec, status, now=inputs.now),
        infeasible=infeasible_knobs(spec, status),
        platform=platform_of(spec, catalogue=inputs.catalogue, free_gpus=inputs.free_gpus),
    )


def _planned(proposal: Proposal | None) -> int | None:
    """As many replicas as the plan asks for; None where it asks for none."""
    return proposal.count if proposal is not None and proposal.knob is Knob.REPLICAS else None


def _too_few(
    proposal: Proposal | None, status: VLLMServiceStatus, *, inputs: Inputs, diagnosis: Diagnosis, targets: Targets
) -> str:
    if proposal is None or proposal.knob is Knob.REPLICAS:
        return ""
    return lacks_requests(
        _change_of(proposal, status, inputs=inputs, diagnosis=diagnosis, targets=targets),
        replicas=max(1, inputs.rollout.replicas),
        strategy=inputs.service.spec.tuning.strategy,
        window=timedelta(seconds=inputs.observation.window),
    )


def _ending(inputs: Inputs) -> str:
    """How what has piled up ends before a change would be measured; empty when it does not."""
    newest = inputs.rollout.newest_since
    since = None if newest is None else newest.timestamp()
    return ends_before_a_trial(inputs.observation, since=since, warm_up=inputs.service.spec.tuning.strategy.warm_up)


def _scales(inputs: Inputs) -> bool:
    """Whether replicas come and go by themselves."""
    ours = inputs.service.spec.scaling is not None and not inputs.scaled_by
    return ours and inputs.mode is Mode.AUTOMATIC and not inputs.paused


def _scaled(status: VLLMServiceStatus, inputs: Inputs, *, situation: Situation, planned: int | None) -> Scale | None:
    """The replicas that demand asks for; None where they are not ours to set."""
    spec = inputs.service.spec
    if spec.scaling is None or not _scales(inputs):
        return None
    supply = Supply(
        current=situation.replicas,
        ready=inputs.rollout.ready,
        newest_since=inputs.rollout.newest_since,
        start_up=inputs.rollout.start_up,
        asked_since=replicas_asked_since(status),
        fewer_since=max((tried.at for tried in status.scale_ins if tried.at is not None), default=None),
        failed=failed_scale_ins(status, now=inputs.now),
        planned=planned,
        needed=needed_for_pace(situation),
    )
    case = Case(
        observation=situation.observation,
        targets=situation.targets,
        knobs=effective_knobs(spec, status),
        learned=inputs.history.learned,
    )
    return desired_replicas(supply, scaling=spec.scaling, diagnosis=situation.diagnosis, case=case, now=inputs.now)


def _asking(change: ActiveChange, *, inputs: Inputs) -> Asking:
    """The place in the queue of a change that nothing but the queue holds back."""
    since = inputs.service.status.queued_since or inputs.now
    return Asking(key=inputs.service.metadata.uid, since=since, gpus=gpus_added(change))


def _place_kept(held: Sequence[Hold | Deny], *, inputs: Inputs) -> datetime | None:
    """A place in the queue outlives what passes by itself, such as a new leader's first look; nothing else."""
    reasons = {objection.reason for objection in held}
    return inputs.service.status.queued_since if HoldReason.QUEUED in reasons <= PASSING | {HoldReason.QUEUED} else None


def _comes_soon(proposal: Proposal, held: Sequence[Hold | Deny]) -> bool:
    """Whether a setting that costs no GPU is about to be tried: replicas beside it would be paid for and hide it.

    Who only waits for his turn may wait for hours.
    """
    others = [objection.reason for objection in held if objection.reason is not HoldReason.QUEUED]
    return proposal.knob is not Knob.REPLICAS and bool(others) and PASSING.issuperset(others)


def _with_replicas(status: VLLMServiceStatus, scale: Scale, *, inputs: Inputs) -> VLLMServiceStatus:
    if status.effective is None or status.effective.replicas == scale.replicas:
        return status
    asked = {"replicas": scale.replicas, "replicas_reason": scale.reason, "since": inputs.now}
    update = {
        # Read anew and not copied: a reason may be longer than the status takes.
        "effective": Effective.model_validate({**dict(status.effective), **asked}),
        "scale_ins": scale_ins_after(status, scale.replicas, inputs=inputs),
    }
    return status.model_copy(update=update)


def just_over(status: VLLMServiceStatus, inputs: Inputs) -> bool:
    """Whether the window still holds metrics of a change that has ended."""
    last = status.history[-1] if status.history else None
    # What was kept has run since long before, and runs on.
    ended = None if last is None or last.outcome is Outcome.SUCCEEDED else last.finished_at
    return ended is not None and timedelta() <= inputs.now - ended < timedelta(seconds=inputs.observation.window)


def _begun(status: VLLMServiceStatus, change: ActiveChange, *, inputs: Inputs) -> VLLMServiceStatus:
    return status.model_copy(update={"active_change": change, "budget": spent(status.budget, now=inputs.now)})


def _change_of(
    proposal: Proposal, status: VLLMServiceStatus, *, inputs: Inputs, diagnosis: Diagnosis, targets: Targets
) -> ActiveChange:
    change = begin(
        proposal,
        service=inputs.service,
        status=status,
        hash_of=inputs.hash_of,
        measured=until_now(inputs, targets=targets, since=diagnosis.since),
        replicas=inputs.rollout.replicas,
        epoch=inputs.epoch,
        now=inputs.now,
        free_gpus=inputs.free_gpus,
    )
    return change.model_copy(update={"grounds": grounds_of(proposal, diagnosis)})
