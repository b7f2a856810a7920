"""One tick of one service: from its inputs to the next status.

Pure: no I/O and no clock, so that many ticks can be played as a table in a test. Effects are not decided here: what the
workload should run follows from the status (`change.effective`), and only from a status that has been written.
Order within a tick: user commands, the spec, the change in progress, new proposals, the report.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import (
    ActiveChange,
    ChangeState,
    ConfigRef,
    Effective,
    LastKnownGood,
    Outcome,
    Source,
    VLLMServiceStatus,
)
from vllm_autotuner.change.clock import followed_clock
from vllm_autotuner.change.effective import is_tuned, serving_knobs, settled_knobs, spec_knobs
from vllm_autotuner.change.failure_memory import DECLINED, environment_of
from vllm_autotuner.change.finishing import finished
from vllm_autotuner.change.machine import advance
from vllm_autotuner.change.trial_deployments import gpus_added
from vllm_autotuner.change.world import Ending, World, reaches_the_service
from vllm_autotuner.control.decide.annotation_commands import RequestKind, answered, asked
from vllm_autotuner.control.decide.gpu_accounting import accounted
from vllm_autotuner.control.decide.inputs import Inputs, serves, wanted_replicas
from vllm_autotuner.control.decide.prediction_tracking import tracked
from vllm_autotuner.control.decide.proposing import Ideas, change_just_ended, ideas
from vllm_autotuner.control.decide.recent_windows import steady_windows
from vllm_autotuner.control.decide.status_report import described
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History, case_of, diagnose
from vllm_autotuner.diagnosis.objectives import Targets, targets_of
from vllm_autotuner.guardrails.concurrency import Asking
from vllm_autotuner.guardrails.contest import after_interference, gave_up_pods, gave_up_replicas
from vllm_autotuner.planning.bounds import opted_in, outside, value_of, void
from vllm_autotuner.planning.plan import LADDER
from vllm_autotuner.planning.worth import MET

__all__ = ["Decision", "Turn", "begin_at_its_turn", "decide", "decide_without_spec", "may_need_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A change that waits only for its turn in the fleet's queue, and the status with which it starts."""

    asking: Asking
    status: VLLMServiceStatus
    desired: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next status, and what to remember until the next tick."""

    status: VLLMServiceStatus
    history: History
    diagnosis: Diagnosis
    ended: tuple[ActiveChange, Ending] | None = None
    desired: int | None = None
    """Replicas wanted for the current load; None where the operator does not set them."""
    turn: Turn | None = None
    """A change that is ready to start and waits in the queue."""


def decide(inputs: Inputs) -> Decision:
    """Take one tick's decisions."""
    service, status = inputs.service, inputs.service.status
    # Where another field manager overwrote the arguments, the metrics belong to its values.
    knobs = inputs.workload.runs or serving_knobs(service.spec, status)
    targets = targets_of(service.spec.objectives)
    case = case_of(inputs.observation, targets=targets, knobs=knobs, history=inputs.history)
    diagnosis, history = diagnose(case, history=inputs.history)
    history = replace(
        history, measured=() if change_just_ended(status, inputs) else steady_windows(inputs, targets=targets)
    )
    commands = asked(service, now=inputs.now)
    for command in commands:
        status = answered(status, command, spec=service.spec, now=inputs.now)
    status, ended = _following_the_spec(status, inputs)
    if ended is None:
        status, ended = _contested(status, inputs)
    if ended is None:
        taken_back = any(command.kind == RequestKind.ROLLBACK for command in commands)
        status, ended = _change(status, inputs, diagnosis=diagnosis, targets=targets, taken_back=taken_back)
    status = _effective(status, inputs)
    # The cause of a failed start comes from the pods, so missing metrics do not matter.
    seen = not _blind(inputs, diagnosis) or diagnosis.primary is DiagnosisClass.STARTUP_FAILURE
    sure = history.candidate is None and seen
    found = ideas(status, inputs, case=case, diagnosis=diagnosis, sure=sure)
    decision = Decision(status=found.status, history=history, diagnosis=diagnosis, ended=ended, desired=found.desired)
    return replace(_reported(decision, inputs), turn=_turn(found, inputs=inputs))


def begin_at_its_turn(decision: Decision, inputs: Inputs) -> Decision:
    """The same decision once it is this service's turn: its change starts. Nothing is decided again."""
    if decision.turn is None:
        raise ValueError("no change waits for its turn")
    turn = decision.turn
    return _reported(replace(decision, status=turn.status, desired=turn.desired, turn=None), inputs)


def _turn(found: Ideas, *, inputs: Inputs) -> Turn | None:
    begun = found.at_its_turn
    if begun is None or begun.status.active_change is None:
        return None
    asking = Asking(
        key=inputs.service.metadata.uid,
        namespace=inputs.service.metadata.namespace,
        since=found.status.queued_since or inputs.now,
        gpus=gpus_added(begun.status.active_change),
    )
    return Turn(asking=asking, status=begun.status, desired=begun.desired)


def _reported(decision: Decision, inputs: Inputs) -> Decision:
    """Complete a decided status with what only reports."""
    status = tracked(decision.status, inputs, history=decision.history)
    status = described(
        status,
        inputs=inputs,
        diagnosis=decision.diagnosis,
        targets=targets_of(inputs.service.spec.objectives),
        ended=decision.ended,
        recent=decision.history.measured,
    )
    if status != inputs.service.status:
        status = accounted(status, inputs=inputs, ended=decision.ended)
    return replace(decision, status=status)


def may_need_gpus(decision: Decision, inputs: Inputs) -> bool:
    """Whether free GPUs could change this decision: for a class that has a remedy, or a change that saves GPUs.

    Beside a running change nothing is proposed, and its verdict must not wait for a list of all pods.
    """
    if inputs.mode is Mode.OFF or inputs.service.status.active_change is not None:
        return False
    if decision.diagnosis.primary not in LADDER:
        return False
    proposes = decision.status.recommendation is not None or decision.status.active_change is not None
    return proposes or decision.diagnosis.primary not in MET


def decide_without_spec(inputs: Inputs) -> Decision:
    """Take one tick's decisions about a service with an unreadable spec: its change is watched, held and rolled back.

    No change starts. The one in progress is held for as long as metrics may be missing, and then rolled back; the
    rollback command and the kill switch act at once. If the old spec is restored before that, the change continues.
    """
    service, status = inputs.service, inputs.service.status
    targets = targets_of(service.spec.objectives)
    knobs = serving_knobs(service.spec, status)
    case = case_of(inputs.observation, targets=targets, knobs=knobs, history=inputs.history)
    diagnosis, history = diagnose(case, history=inputs.history)
    requests = [each for each in asked(service, now=inputs.now) if each.kind == RequestKind.ROLLBACK]
    for request in requests if status.active_change is not None else ():
        status = answered(status, request, spec=service.spec, now=inputs.now)
    status, ended = _change(status, inputs, diagnosis=diagnosis, targets=targets, taken_back=bool(requests))
    return Decision(status=status, history=history, diagnosis=diagnosis, ended=ended)


def _blind(inputs: Inputs, diagnosis: Diagnosis) -> bool:
    """Whether there are no metrics to judge by, whatever the cause."""
    return diagnosis.primary is DiagnosisClass.METRICS_BLIND or not inputs.observation.engines


def _following_the_spec(
    status: VLLMServiceStatus, inputs: Inputs
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """End the change when its user edits the workload or the spec; the edit wins."""
    change, spec, failed = status.active_change, inputs.service.spec, status.rollback_failed
    if failed is not None and failed.generation != inputs.service.metadata.generation:
        # The spec was edited since the failed rollback.
        status = status.updated(rollback_failed=None)
    adoption = inputs.workload.adoption
    if change is not None and adoption is not None and adoption.edited and not adoption.holds_candidate:
        ending = Ending(outcome=Outcome.SUPERSEDED, reason="the Deployment was edited during the change")
        return finished(status, change, ending, spec=spec, now=inputs.now), (change, ending)
    if change is None:
        return status, None
    if change.generation == inputs.service.metadata.generation:
        change = (
            change if inputs.workload.adoption is not None else _with_hashes_of_now(change, inputs.workload.hash_of)
        )
        return status.updated(active_change=change), None
    untouched = inputs.workload.hash_of(change.from_.knobs) == change.from_.config_hash
    if untouched and settled_knobs(spec, status) == change.from_.knobs:
        # The new spec renders the same pods: only the environment of the change is updated.
        kept = change.updated(generation=inputs.service.metadata.generation, environment=environment_of(spec))
        return status.updated(active_change=kept), None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason="the spec was edited during the change")
    return finished(status, change, ending, spec=spec, now=inputs.now), (change, ending)


def _with_hashes_of_now(change: ActiveChange, hash_for: Callable[[EngineKnobs], str]) -> ActiveChange:
    """The change with its hashes computed anew: those of another operator version match no Deployment."""
    return change.updated(
        from_=change.from_.updated(config_hash=hash_for(change.from_.knobs)),
        to=change.to.updated(config_hash=hash_for(change.to.knobs)),
    )


def _contested(
    status: VLLMServiceStatus, inputs: Inputs
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """Count overwrites of the workload; a change of pods that another field manager overwrites ends without blame.

    What is restored is then the configuration before the change: a value under test is never written over an edit, and
    never left behind in a field that is given up. The number of replicas is no part of a change.
    """
    generation, seen = inputs.service.metadata.generation, inputs.workload.interference
    contest = after_interference(status.contest, seen, generation=generation, now=inputs.now)
    status, change = status.updated(contest=contest), status.active_change
    if change is None or contest is None or seen is None:
        return status, None
    tested = reaches_the_service(change) and change.state is not ChangeState.ROLLING_BACK
    if not gave_up_pods(contest) and not (seen.of_pods and tested):
        return status, None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason=f"{seen.text} during the change")
    return finished(status, change, ending, spec=inputs.service.spec, now=inputs.now), (change, ending)


def _change(
    status: VLLMServiceStatus, inputs: Inputs, *, diagnosis: Diagnosis, targets: Targets, taken_back: bool
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    if status.active_change is None:
        return status, None
    change = followed_clock(status.active_change, now=inputs.now)
    spec = inputs.service.spec
    world = World(
        now=inputs.now,
        rollout=inputs.workload.rollout,
        observation=inputs.observation,
        blind=_blind(inputs, diagnosis),
        targets=targets,
        strategy=spec.tuning.strategy,
        verification=inputs.workload.verification,
        variants=inputs.workload.variants,
        fixed_replicas=spec.scaling is None,
        watching_since=inputs.operator.watching_since,
        paused=inputs.paused,
        unreadable=inputs.unreadable,
        abort=DECLINED if taken_back else _abort(change, inputs),
    )
    step = advance(change, world)
    status = status.updated(active_change=step.change)
    if step.ending is None:
        return status, None
    if step.ending.outcome is Outcome.SUCCEEDED:
        good = LastKnownGood(
            **change.to.knobs.model_dump(),
            config_hash=change.to.config_hash,
            hash_version=inputs.workload.hash_version,
            verified_at=inputs.now,
        )
        status = _running(status.updated(last_known_good=good), change.to, inputs=inputs)
    elif step.ending.serving == change.to:
        # The old configuration cannot be restored: the serving one stays in force until a user decides.
        status = _running(status, change.to, inputs=inputs)
    return finished(status, step.change, step.ending, spec=spec, now=inputs.now), (step.change, step.ending)


def _running(status: VLLMServiceStatus, kept: ConfigRef, *, inputs: Inputs) -> VLLMServiceStatus:
    """The status with this tested configuration in force."""
    before = status.effective
    effective = Effective(
        **kept.knobs.model_dump(),
        replicas=before.replicas if before else None,
        replicas_reason=before.replicas_reason if before else "",
        config_hash=kept.config_hash,
        hash_version=inputs.workload.hash_version,
        since=inputs.now,
        source=Source.TUNED,
        # An unreadable spec has no knobs: those at the start of the change are kept.
        basis=spec_knobs(inputs.service.spec) if not inputs.unreadable else before.basis if before else None,
    )
    return status.updated(effective=effective)


def _abort(change: ActiveChange, inputs: Inputs) -> str:
    tuning = inputs.service.spec.tuning
    if inputs.operator.limits.kill:
        return inputs.operator.limits.why
    if inputs.unreadable:
        return ""
    if inputs.workload.adoption is not None and inputs.workload.adoption.holds_candidate:
        return "the Deployment was edited during the change"
    if tuning.mode not in (Mode.AUTOMATIC, Mode.APPROVE):
        return f"spec.tuning.mode was set to {tuning.mode.value}"
    try:
        knob = Knob(change.knob)
    except ValueError:
        return f"this version does not support the knob {change.knob}"
    value = value_of(knob, change.to.knobs)
    allowed = opted_in(knob, tuning=tuning, scaling=None) and not outside(knob, value, tuning=tuning, scaling=None)
    if allowed:
        # A companion must stay within its bounds, too.
        return void(change.to.knobs, tuning=tuning)
    return f"spec.tuning.{knob.value} no longer allows the value"


def _effective(status: VLLMServiceStatus, inputs: Inputs) -> VLLMServiceStatus:
    """Record what the workload should run, before it is applied."""
    if status.active_change is not None:
        return status
    spec, before = inputs.service.spec, status.effective
    knobs = settled_knobs(spec, status)
    if gave_up_replicas(status.contest):
        # The other field manager's number: scaling goes on from there once the conflict is over.
        replicas: int | None = inputs.workload.rollout.replicas
    else:
        replicas = wanted_replicas(inputs.service, status, scaled_by=inputs.workload.scaled_by)
    effective = Effective(
        **knobs.model_dump(),
        replicas=replicas,
        replicas_reason=before.replicas_reason if before is not None and before.replicas == replicas else "",
        config_hash=inputs.workload.hash_of(knobs),
        hash_version=inputs.workload.hash_version,
        since=inputs.now,
        source=Source.TUNED
        if is_tuned(spec, status)
        else Source.SPEC
        if inputs.workload.adoption is None
        else Source.OBSERVED,
        basis=spec_knobs(spec),
    )
    if before is not None:
        same = before.updated(since=None) == effective.updated(since=None)
        effective = before if same else effective
    status = status.updated(effective=effective)
    good, failed = status.last_known_good, status.rollback_failed
    if failed is not None:
        # Only a restored last known good configuration ends it; the one that serves meanwhile does not replace it.
        restored = (
            serves(effective, inputs.workload.rollout)
            and good is not None
            and good.config_hash == effective.config_hash
        )
        return status.updated(rollback_failed=None if restored else failed)
    if serves(effective, inputs.workload.rollout) and (good is None or good.config_hash != effective.config_hash):
        good = LastKnownGood(
            **knobs.model_dump(),
            config_hash=effective.config_hash,
            hash_version=inputs.workload.hash_version,
            verified_at=inputs.now,
        )
    return status.updated(last_known_good=good)
