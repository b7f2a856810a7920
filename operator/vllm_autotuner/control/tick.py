"""What one tick decides for one service: everything known goes in, the next status and its Events come out.

Pure: no I/O and no clock, so that a story of many ticks is a table in a test. The effects are not decided here: what
the workload should run follows from the status (`change.effective`), and only from a status that has been written.
Order within a tick: the spec, then health and the change under way, then new ideas, then the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Mode, Scaling
from vllm_autotuner.api.status import (
    ActiveChange,
    ConfigRef,
    Effective,
    LastKnownGood,
    Outcome,
    Source,
    VLLMServiceStatus,
)
from vllm_autotuner.change.begin import begin
from vllm_autotuner.change.clock import followed_clock
from vllm_autotuner.change.effective import effective_knobs, is_tuned, serving_knobs, settled_knobs, spec_knobs
from vllm_autotuner.change.foreseen import lacks_requests
from vllm_autotuner.change.machine import advance
from vllm_autotuner.change.memory import DECLINED, failed_seats, failed_values, infeasible_knobs, remembered, spent
from vllm_autotuner.change.trial import gpus_added
from vllm_autotuner.change.verdict import is_baseline, measure
from vllm_autotuner.change.world import Ending, World
from vllm_autotuner.control.recent import lately, until_now
from vllm_autotuner.control.reporting import asked_too_long, described, grounds_of, recommended, still_says, value_said
from vllm_autotuner.control.requests import RequestKind, answered, asked
from vllm_autotuner.control.scaling_beside import answers_beside
from vllm_autotuner.control.scaling_since import failed_scale_ins, replicas_asked_since, scale_ins_after
from vllm_autotuner.control.sight import Sight, wanted_replicas
from vllm_autotuner.control.tracking import tracked
from vllm_autotuner.control.upgrading import hashed_now
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History, diagnose
from vllm_autotuner.diagnosis.objectives import Targets, targets_of
from vllm_autotuner.guardrails.chain import Context, Deny, Hold, objections
from vllm_autotuner.guardrails.contest import after_interference, is_lost
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason
from vllm_autotuner.guardrails.turns import Asking
from vllm_autotuner.planning.bounds import opted_in, outside, value_of
from vllm_autotuner.planning.plan import LADDER, plan
from vllm_autotuner.planning.platform import platform_of
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.scaling.replicas import desired_replicas

__all__ = ["Decision", "decide", "keep_safe", "may_need_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next status, and what to remember until the next tick."""

    status: VLLMServiceStatus
    history: History
    diagnosis: Diagnosis
    ended: tuple[ActiveChange, Ending] | None = None
    desired: int | None = None
    """Replicas that demand asks for; None where they are not ours."""
    asks: Asking | None = None
    """It would begin a change, were it its turn."""


def decide(sight: Sight) -> Decision:
    """Take one tick's decisions."""
    service, status = sight.service, sight.service.status
    targets = targets_of(service.spec.objectives)
    # Where somebody else has written the arguments, the metrics are those of his values.
    knobs = sight.runs or serving_knobs(service.spec, status)
    diagnosis, history = diagnose(sight.observation, targets=targets, knobs=knobs, history=sight.history)
    history = replace(history, measured=() if _just_over(status, sight) else lately(sight, targets=targets))
    requests = asked(service, now=sight.now)
    for request in requests:
        status = answered(status, request, spec=service.spec, now=sight.now)
    status, ended = _following_the_spec(status, sight)
    if ended is None:
        status, ended = _contested(status, sight)
    if ended is None:
        taken_back = any(request.kind == RequestKind.ROLLBACK for request in requests)
        status, ended = _change(status, sight, diagnosis=diagnosis, targets=targets, taken_back=taken_back)
    status = _effective(status, sight)
    # Why a start fails comes from the pods, not from metrics: there the silence is known.
    seen = not _blind(sight, diagnosis) or diagnosis.primary is DiagnosisClass.STARTUP_FAILURE
    sure = history.candidate is None and seen
    status, desired, asks = _ideas(status, sight, diagnosis=diagnosis, targets=targets, sure=sure)
    status = tracked(status, sight, history=history)
    status = described(status, sight=sight, diagnosis=diagnosis, targets=targets, ended=ended)
    return Decision(status=status, history=history, diagnosis=diagnosis, ended=ended, desired=desired, asks=asks)


def may_need_gpus(decision: Decision, sight: Sight) -> bool:
    """Whether free GPUs could make this decision another one: only for a class against which something is done."""
    return sight.mode is not Mode.OFF and decision.diagnosis.primary in LADDER


def keep_safe(sight: Sight) -> Decision:
    """Take one tick's decisions about a service whose spec cannot be read: its change does no harm, and does not stay.

    Nothing begins. What runs is watched, held for as long as metrics may be missing, and then taken back; a person's
    request and the kill switch act at once. Should the spec be the old one again before, the change goes on.
    """
    service, status = sight.service, sight.service.status
    targets = targets_of(service.spec.objectives)
    diagnosis, history = diagnose(
        sight.observation, targets=targets, knobs=serving_knobs(service.spec, status), history=sight.history
    )
    requests = [each for each in asked(service, now=sight.now) if each.kind == RequestKind.ROLLBACK]
    for request in requests if status.active_change is not None else ():
        status = answered(status, request, spec=service.spec, now=sight.now)
    status, ended = _change(status, sight, diagnosis=diagnosis, targets=targets, taken_back=bool(requests))
    return Decision(status=status, history=history, diagnosis=diagnosis, ended=ended)


def _blind(sight: Sight, diagnosis: Diagnosis) -> bool:
    """Whether there is nothing to conclude from: also where everybody knows why, as in a start that fails."""
    return diagnosis.primary is DiagnosisClass.METRICS_BLIND or not sight.observation.engines


def _following_the_spec(
    status: VLLMServiceStatus, sight: Sight
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """A user who edits the workload under a change gets what he wrote; the change is over."""
    change, spec, failed = status.active_change, sight.service.spec, status.rollback_failed
    if failed is not None and failed.generation != sight.service.metadata.generation:
        # A person looked at it and wrote something else.
        status = status.model_copy(update={"rollback_failed": None})
    if change is not None and sight.adoption is not None and sight.adoption.edited:
        ending = Ending(outcome=Outcome.SUPERSEDED, reason="somebody edited the Deployment underneath")
        return remembered(status, change, ending, spec=spec, now=sight.now), (change, ending)
    if change is None:
        return status, None
    if change.generation == sight.service.metadata.generation:
        change = change if sight.adoption is not None else hashed_now(change, sight.hash_of)
        return status.model_copy(update={"active_change": change}), None
    untouched = sight.hash_of(change.from_.knobs) == change.from_.config_hash
    if untouched and settled_knobs(spec, status) == change.from_.knobs:
        kept = change.model_copy(update={"generation": sight.service.metadata.generation})
        return status.model_copy(update={"active_change": kept}), None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason="the spec changed underneath")
    return remembered(status, change, ending, spec=spec, now=sight.now), (change, ending)


def _contested(status: VLLMServiceStatus, sight: Sight) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """Count what somebody else does to the workload; a change that he does not let happen is over, without blame."""
    generation = sight.service.metadata.generation
    contest = after_interference(status.contest, sight.interference, generation=generation, now=sight.now)
    status, change = status.model_copy(update={"contest": contest}), status.active_change
    if contest is None or change is None or not is_lost(contest):
        return status, None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason=f"{contest.manager} writes {contest.fields} back")
    return remembered(status, change, ending, spec=sight.service.spec, now=sight.now), (change, ending)


def _change(
    status: VLLMServiceStatus, sight: Sight, *, diagnosis: Diagnosis, targets: Targets, taken_back: bool
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    if status.active_change is None:
        return status, None
    change = followed_clock(status.active_change, now=sight.now)
    spec = sight.service.spec
    world = World(
        now=sight.now,
        rollout=sight.rollout,
        observation=sight.observation,
        blind=_blind(sight, diagnosis),
        targets=targets,
        strategy=spec.tuning.strategy,
        verification=sight.verification,
        arms=sight.arms,
        paused=sight.paused,
        unreadable=sight.unreadable,
        abort=DECLINED if taken_back else _abort(change, sight),
    )
    step = advance(change, world)
    status = status.model_copy(update={"active_change": step.change})
    if step.ending is None:
        return status, None
    if step.ending.outcome is Outcome.SUCCEEDED:
        good = LastKnownGood(
            **change.to.knobs.model_dump(),
            config_hash=change.to.config_hash,
            hash_version=sight.hash_version,
            verified_at=sight.now,
        )
        status = _running(status.model_copy(update={"last_known_good": good}), change.to, sight=sight)
    elif step.ending.serving == change.to:
        # The old configuration is no choice any more: what serves goes on, and a person decides.
        status = _running(status, change.to, sight=sight)
    return remembered(status, step.change, step.ending, spec=spec, now=sight.now), (step.change, step.ending)


def _running(status: VLLMServiceStatus, kept: ConfigRef, *, sight: Sight) -> VLLMServiceStatus:
    """The status with this tested configuration in force."""
    before = status.effective
    effective = Effective(
        **kept.knobs.model_dump(),
        replicas=before.replicas if before else None,
        config_hash=kept.config_hash,
        hash_version=sight.hash_version,
        since=sight.now,
        source=Source.TUNED,
        # A spec that cannot be read says nothing: what it said when the change began still stands.
        basis=spec_knobs(sight.service.spec) if not sight.unreadable else before.basis if before else None,
    )
    return status.model_copy(update={"effective": effective})


def _abort(change: ActiveChange, sight: Sight) -> str:
    tuning = sight.service.spec.tuning
    if sight.limits.kill:
        return sight.limits.why
    if sight.unreadable:
        return ""
    if tuning.mode not in (Mode.AUTOMATIC, Mode.APPROVE):
        return f"spec.tuning.mode became {tuning.mode.value}"
    try:
        knob = Knob(change.knob)
    except ValueError:
        return f"{change.knob} is no knob of this version"
    value = value_of(knob, change.to.knobs)
    if opted_in(knob, tuning=tuning, scaling=None) and not outside(knob, value, tuning=tuning, scaling=None):
        return ""
    return f"spec.tuning.{knob.value} no longer allows the value"


def _effective(status: VLLMServiceStatus, sight: Sight) -> VLLMServiceStatus:
    """Write down what the workload is asked to run, before anybody asks the workload."""
    if status.active_change is not None:
        return status
    spec, before = sight.service.spec, status.effective
    knobs = settled_knobs(spec, status)
    effective = Effective(
        **knobs.model_dump(),
        replicas=wanted_replicas(sight.service, status, scaled_by=sight.scaled_by),
        config_hash=sight.hash_of(knobs),
        hash_version=sight.hash_version,
        since=sight.now,
        source=Source.TUNED if is_tuned(spec, status) else Source.SPEC if sight.adoption is None else Source.OBSERVED,
        basis=spec_knobs(spec),
    )
    if before is not None:
        same = before.model_copy(update={"since": None}) == effective.model_copy(update={"since": None})
        effective = before if same else effective
    status = status.model_copy(update={"effective": effective})
    good, failed = status.last_known_good, status.rollback_failed
    if failed is not None:
        # Only what was restored after all ends it; what serves instead of it is not good for serving.
        restored = _serves(effective, sight) and good is not None and good.config_hash == effective.config_hash
        return status.model_copy(update={"rollback_failed": None if restored else failed})
    if _serves(effective, sight) and (good is None or good.config_hash != effective.config_hash):
        good = LastKnownGood(
            **knobs.model_dump(),
            config_hash=effective.config_hash,
            hash_version=sight.hash_version,
            verified_at=sight.now,
        )
    return status.model_copy(update={"last_known_good": good})


def _serves(effective: Effective, sight: Sight) -> bool:
    """Whether the Deployment runs what it is asked to, complete and ready."""
    rollout = sight.rollout
    same = rollout.config_hash == effective.config_hash and effective.replicas in (None, rollout.replicas)
    return same and rollout.settled


def _ideas(
    status: VLLMServiceStatus, sight: Sight, *, diagnosis: Diagnosis, targets: Targets, sure: bool
) -> tuple[VLLMServiceStatus, int | None, Asking | None]:
    """Recommend, and where everything allows it begin a change or ask for other replicas.

    `sure`: the metrics are there and say what the diagnosis says. Else they wait for a second look, and so do we.
    Third: that only the limits of the fleet are in the way of a change.
    """
    service, spec = sight.service, sight.service.spec
    replicas = wanted_replicas(service, status, scaled_by=sight.scaled_by)
    scaling = spec.scaling if not sight.scaled_by else None
    if sight.mode is Mode.OFF:
        return status.model_copy(update={"recommendation": None, "queued_since": None}), None, None
    desired = None if scaling is None else replicas
    change = status.active_change
    if change is not None or _just_over(status, sight):
        # What the metrics show now is the trial, not the service.
        status = status.model_copy(update={"recommendation": None, "queued_since": None})
        if change is None or not sure or replicas is None:
            return status, desired, None
        if not answers_beside(change, diagnosis.primary, observation=sight.observation):
            return status, desired, None
        # Requests are not let wait for the end of a change; fewer replicas can.
        situation = _situation(status, sight, diagnosis=diagnosis, targets=targets, replicas=replicas, scaling=scaling)
        planned = _planned(plan(situation).proposal)
        more = _scaled(status, sight, diagnosis=diagnosis, targets=targets, replicas=replicas, planned=planned)
        if more is None or more <= replicas:
            return status, desired, None
        return _with_replicas(status, more, sight=sight), more, None
    if not sure:
        # Neither silence nor one odd moment confirms or refutes what stands.
        return status, desired, None
    situation = _situation(status, sight, diagnosis=diagnosis, targets=targets, replicas=replicas, scaling=scaling)
    proposal = plan(situation).proposal
    standing, approved = status.recommendation, False
    if proposal is not None and standing is not None and sight.approved and standing.id == sight.approved:
        approved = still_says(standing, proposal) and not asked_too_long(standing, sight)
        # A person approved the value that was shown, not its latest neighbour.
        proposal = replace(proposal, value=value_said(standing)) if approved else proposal
    context = Context(
        now=sight.now,
        spec=spec,
        status=status,
        diagnosis=diagnosis,
        paused=sight.paused,
        settled=status.effective is not None and _serves(status.effective, sight),
        watching_since=sight.watching_since,
        window=timedelta(seconds=sight.observation.window),
        approved=approved,
        limits=sight.limits,
        locked=sight.adoption.locked if sight.adoption is not None else {},
        measured=is_baseline(measure(sight.observation, targets=targets)),
        too_few=_too_few(proposal, status, sight=sight, diagnosis=diagnosis, targets=targets),
        trouble=sight.trouble,
        queue=sight.queue,
        room=sight.room,
        resting=situation.failed,
        infeasible=situation.infeasible,
        knobs=situation.knobs,
    )
    scales = _scales(sight)
    planned = _planned(proposal)
    if scales and planned is not None:
        # Replicas come and go by themselves here: that is announced when it happens, and asks nobody.
        proposal = None
    held = objections(proposal, context) if proposal is not None else ()
    if proposal is not None and proposal.knob is not Knob.REPLICAS and not held:
        status = status.model_copy(update={"recommendation": None, "queued_since": None})
        change = _change_of(proposal, status, sight=sight, diagnosis=diagnosis, targets=targets)
        return _begun(status, change, sight=sight), desired, None
    asks = None
    if proposal is not None and [objection.reason for objection in held] == [HoldReason.QUEUED]:
        asks = _asking(_change_of(proposal, status, sight=sight, diagnosis=diagnosis, targets=targets), sight=sight)
    update = {
        "recommendation": recommended(proposal, held, before=standing, sight=sight),
        "queued_since": asks.since if asks is not None else _place_kept(held, sight=sight),
    }
    status = status.model_copy(update=update)
    if scaling is None or replicas is None:
        return status, desired, asks
    if proposal is not None and proposal.knob is Knob.REPLICAS and approved and not held:
        return _with_replicas(status, proposal.count, sight=sight), proposal.count, asks
    if not scales or (proposal is not None and _comes_soon(proposal, held)):
        return status, desired, asks
    wanted = _scaled(status, sight, diagnosis=diagnosis, targets=targets, replicas=replicas, planned=planned)
    return (status, desired, asks) if wanted is None else (_with_replicas(status, wanted, sight=sight), wanted, asks)


def _situation(
    status: VLLMServiceStatus,
    sight: Sight,
    *,
    diagnosis: Diagnosis,
    targets: Targets,
    replicas: int | None,
    scaling: Scaling | None,
) -> Situation:
    spec = sight.service.spec
    return Situation(
        observation=sight.observation,
        diagnosis=diagnosis,
        targets=targets,
        knobs=sight.runs or settled_knobs(spec, status),
        tuning=spec.tuning,
        replicas=replicas if replicas is not None else max(1, sight.rollout.replicas),
        scaling=scaling,
        replicas_since=sight.rollout.newest_since,
        failed_seats=failed_seats(spec, status, now=sight.now),
        failed=failed_values(spec, status, now=sight.now),
        infeasible=infeasible_knobs(spec, status),
        platform=platform_of(spec, catalogue=sight.catalogue, room=sight.room),
    )


def _planned(proposal: Proposal | None) -> int | None:
    """As many replicas as the plan asks for; None where it asks for none."""
    return proposal.count if proposal is not None and proposal.knob is Knob.REPLICAS else None


def _too_few(
    proposal: Proposal | None, status: VLLMServiceStatus, *, sight: Sight, diagnosis: Diagnosis, targets: Targets
) -> str:
    if proposal is None or proposal.knob is Knob.REPLICAS:
        return ""
    return lacks_requests(
        _change_of(proposal, status, sight=sight, diagnosis=diagnosis, targets=targets),
        replicas=max(1, sight.rollout.replicas),
        strategy=sight.service.spec.tuning.strategy,
        window=timedelta(seconds=sight.observation.window),
    )


def _scales(sight: Sight) -> bool:
    """Whether replicas come and go by themselves."""
    ours = sight.service.spec.scaling is not None and not sight.scaled_by
    return ours and sight.mode is Mode.AUTOMATIC and not sight.paused


def _scaled(
    status: VLLMServiceStatus,
    sight: Sight,
    *,
    diagnosis: Diagnosis,
    targets: Targets,
    replicas: int,
    planned: int | None = None,
) -> int | None:
    """The replicas that demand asks for; None where they are not ours to set."""
    spec = sight.service.spec
    if spec.scaling is None or not _scales(sight):
        return None
    return desired_replicas(
        current=replicas,
        ready=sight.rollout.ready,
        newest_since=sight.rollout.newest_since,
        asked_since=replicas_asked_since(status),
        scaling=spec.scaling,
        diagnosis=diagnosis,
        observation=sight.observation,
        targets=targets,
        knobs=effective_knobs(spec, status),
        planned=planned,
        failed=failed_scale_ins(status, now=sight.now),
        now=sight.now,
    ).replicas


def _asking(change: ActiveChange, *, sight: Sight) -> Asking:
    """The place in the queue of a change that nothing but the queue holds back."""
    since = sight.service.status.queued_since or sight.now
    return Asking(key=sight.service.metadata.uid, since=since, gpus=gpus_added(change))


def _place_kept(held: Sequence[Hold | Deny], *, sight: Sight) -> datetime | None:
    """A place in the queue outlives what passes by itself, such as a new leader's first look; nothing else."""
    reasons = {objection.reason for objection in held}
    return sight.service.status.queued_since if HoldReason.QUEUED in reasons <= PASSING | {HoldReason.QUEUED} else None


def _comes_soon(proposal: Proposal, held: Sequence[Hold | Deny]) -> bool:
    """Whether a setting that costs no GPU is about to be tried: replicas beside it would be paid for and hide it.

    Who only waits for his turn may wait for hours.
    """
    others = [objection.reason for objection in held if objection.reason is not HoldReason.QUEUED]
    return proposal.knob is not Knob.REPLICAS and bool(others) and PASSING.issuperset(others)


def _with_replicas(status: VLLMServiceStatus, replicas: int, *, sight: Sight) -> VLLMServiceStatus:
    if status.effective is None or status.effective.replicas == replicas:
        return status
    update = {
        "effective": status.effective.model_copy(update={"replicas": replicas, "since": sight.now}),
        "scale_ins": scale_ins_after(status, replicas, sight=sight),
    }
    return status.model_copy(update=update)


def _just_over(status: VLLMServiceStatus, sight: Sight) -> bool:
    """Whether the window still holds metrics of a change that has ended."""
    ended = status.history[-1].finished_at if status.history else None
    return ended is not None and timedelta() <= sight.now - ended < timedelta(seconds=sight.observation.window)


def _begun(status: VLLMServiceStatus, change: ActiveChange, *, sight: Sight) -> VLLMServiceStatus:
    return status.model_copy(update={"active_change": change, "budget": spent(status.budget, now=sight.now)})


def _change_of(
    proposal: Proposal, status: VLLMServiceStatus, *, sight: Sight, diagnosis: Diagnosis, targets: Targets
) -> ActiveChange:
    change = begin(
        proposal,
        service=sight.service,
        status=status,
        hash_of=sight.hash_of,
        measured=until_now(sight, targets=targets, since=diagnosis.since),
        replicas=sight.rollout.replicas,
        epoch=sight.epoch,
        now=sight.now,
        room=sight.room,
    )
    return change.model_copy(update={"grounds": grounds_of(proposal, diagnosis)})
