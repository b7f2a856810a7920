"""What one tick decides for one service: everything known goes in, the next status and its Events come out.

Pure: no I/O and no clock, so that a story of many ticks is a table in a test. The effects are not decided here: what
the workload should run follows from the status (`change.effective`), and only from a status that has been written.
Order within a tick: the spec, then health and the change under way, then new ideas, then the report.
"""

from dataclasses import dataclass, replace

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import (
    ActiveChange,
    ConfigRef,
    Effective,
    LastKnownGood,
    Outcome,
    Source,
    VLLMServiceStatus,
)
from vllm_autotuner.change.clock import followed_clock
from vllm_autotuner.change.effective import is_tuned, serving_knobs, settled_knobs, spec_knobs
from vllm_autotuner.change.machine import advance
from vllm_autotuner.change.memory import DECLINED, environment_of, remembered
from vllm_autotuner.change.world import Ending, World
from vllm_autotuner.control.decide.annotation_commands import RequestKind, answered, asked
from vllm_autotuner.control.decide.inputs import Inputs, serves, wanted_replicas
from vllm_autotuner.control.decide.prediction_tracking import tracked
from vllm_autotuner.control.decide.proposing import ideas, just_over
from vllm_autotuner.control.decide.recent_windows import lately
from vllm_autotuner.control.decide.status_report import described
from vllm_autotuner.control.read.rendered_hashes import hashed_now
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History, diagnose
from vllm_autotuner.diagnosis.objectives import Targets, targets_of
from vllm_autotuner.guardrails.concurrency import Asking
from vllm_autotuner.guardrails.contest import after_interference, is_lost
from vllm_autotuner.planning.bounds import opted_in, outside, value_of
from vllm_autotuner.planning.plan import LADDER

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


def decide(inputs: Inputs) -> Decision:
    """Take one tick's decisions."""
    service, status = inputs.service, inputs.service.status
    targets = targets_of(service.spec.objectives)
    # Where somebody else has written the arguments, the metrics are those of his values.
    knobs = inputs.runs or serving_knobs(service.spec, status)
    diagnosis, history = diagnose(inputs.observation, targets=targets, knobs=knobs, history=inputs.history)
    history = replace(history, measured=() if just_over(status, inputs) else lately(inputs, targets=targets))
    requests = asked(service, now=inputs.now)
    for request in requests:
        status = answered(status, request, spec=service.spec, now=inputs.now)
    status, ended = _following_the_spec(status, inputs)
    if ended is None:
        status, ended = _contested(status, inputs)
    if ended is None:
        taken_back = any(request.kind == RequestKind.ROLLBACK for request in requests)
        status, ended = _change(status, inputs, diagnosis=diagnosis, targets=targets, taken_back=taken_back)
    status = _effective(status, inputs)
    # Why a start fails comes from the pods, not from metrics: there the silence is known.
    seen = not _blind(inputs, diagnosis) or diagnosis.primary is DiagnosisClass.STARTUP_FAILURE
    sure = history.candidate is None and seen
    status, desired, asks = ideas(status, inputs, diagnosis=diagnosis, targets=targets, sure=sure)
    status = tracked(status, inputs, history=history)
    status = described(
        status, inputs=inputs, diagnosis=diagnosis, targets=targets, ended=ended, recent=history.measured
    )
    return Decision(status=status, history=history, diagnosis=diagnosis, ended=ended, desired=desired, asks=asks)


def may_need_gpus(decision: Decision, inputs: Inputs) -> bool:
    """Whether free GPUs could make this decision another one: only for a class against which something is done."""
    return inputs.mode is not Mode.OFF and decision.diagnosis.primary in LADDER


def keep_safe(inputs: Inputs) -> Decision:
    """Take one tick's decisions about a service whose spec cannot be read: its change does no harm, and does not stay.

    Nothing begins. What runs is watched, held for as long as metrics may be missing, and then taken back; a person's
    request and the kill switch act at once. Should the spec be the old one again before, the change goes on.
    """
    service, status = inputs.service, inputs.service.status
    targets = targets_of(service.spec.objectives)
    diagnosis, history = diagnose(
        inputs.observation, targets=targets, knobs=serving_knobs(service.spec, status), history=inputs.history
    )
    requests = [each for each in asked(service, now=inputs.now) if each.kind == RequestKind.ROLLBACK]
    for request in requests if status.active_change is not None else ():
        status = answered(status, request, spec=service.spec, now=inputs.now)
    status, ended = _change(status, inputs, diagnosis=diagnosis, targets=targets, taken_back=bool(requests))
    return Decision(status=status, history=history, diagnosis=diagnosis, ended=ended)


def _blind(inputs: Inputs, diagnosis: Diagnosis) -> bool:
    """Whether there is nothing to conclude from: also where everybody knows why, as in a start that fails."""
    return diagnosis.primary is DiagnosisClass.METRICS_BLIND or not inputs.observation.engines


def _following_the_spec(
    status: VLLMServiceStatus, inputs: Inputs
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """A user who edits the workload under a change gets what he wrote; the change is over."""
    change, spec, failed = status.active_change, inputs.service.spec, status.rollback_failed
    if failed is not None and failed.generation != inputs.service.metadata.generation:
        # A person looked at it and wrote something else.
        status = status.model_copy(update={"rollback_failed": None})
    if change is not None and inputs.adoption is not None and inputs.adoption.edited:
        ending = Ending(outcome=Outcome.SUPERSEDED, reason="somebody edited the Deployment underneath")
        return remembered(status, change, ending, spec=spec, now=inputs.now), (change, ending)
    if change is None:
        return status, None
    if change.generation == inputs.service.metadata.generation:
        change = change if inputs.adoption is not None else hashed_now(change, inputs.hash_of)
        return status.model_copy(update={"active_change": change}), None
    untouched = inputs.hash_of(change.from_.knobs) == change.from_.config_hash
    if untouched and settled_knobs(spec, status) == change.from_.knobs:
        # Its pods are what they would be under the new spec: what it names anew is what it was tried in.
        update = {"generation": inputs.service.metadata.generation, "environment": environment_of(spec)}
        kept = change.model_copy(update=update)
        return status.model_copy(update={"active_change": kept}), None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason="the spec changed underneath")
    return remembered(status, change, ending, spec=spec, now=inputs.now), (change, ending)


def _contested(
    status: VLLMServiceStatus, inputs: Inputs
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    """Count what somebody else does to the workload; a change that he does not let happen is over, without blame."""
    generation = inputs.service.metadata.generation
    contest = after_interference(status.contest, inputs.interference, generation=generation, now=inputs.now)
    status, change = status.model_copy(update={"contest": contest}), status.active_change
    if contest is None or change is None or not is_lost(contest):
        return status, None
    ending = Ending(outcome=Outcome.SUPERSEDED, reason=f"{contest.manager} writes {contest.fields} back")
    return remembered(status, change, ending, spec=inputs.service.spec, now=inputs.now), (change, ending)


def _change(
    status: VLLMServiceStatus, inputs: Inputs, *, diagnosis: Diagnosis, targets: Targets, taken_back: bool
) -> tuple[VLLMServiceStatus, tuple[ActiveChange, Ending] | None]:
    if status.active_change is None:
        return status, None
    change = followed_clock(status.active_change, now=inputs.now)
    spec = inputs.service.spec
    world = World(
        now=inputs.now,
        rollout=inputs.rollout,
        observation=inputs.observation,
        blind=_blind(inputs, diagnosis),
        targets=targets,
        strategy=spec.tuning.strategy,
        verification=inputs.verification,
        variants=inputs.variants,
        paused=inputs.paused,
        unreadable=inputs.unreadable,
        abort=DECLINED if taken_back else _abort(change, inputs),
    )
    step = advance(change, world)
    status = status.model_copy(update={"active_change": step.change})
    if step.ending is None:
        return status, None
    if step.ending.outcome is Outcome.SUCCEEDED:
        good = LastKnownGood(
            **change.to.knobs.model_dump(),
            config_hash=change.to.config_hash,
            hash_version=inputs.hash_version,
            verified_at=inputs.now,
        )
        status = _running(status.model_copy(update={"last_known_good": good}), change.to, inputs=inputs)
    elif step.ending.serving == change.to:
        # The old configuration is no choice any more: what serves goes on, and a person decides.
        status = _running(status, change.to, inputs=inputs)
    return remembered(status, step.change, step.ending, spec=spec, now=inputs.now), (step.change, step.ending)


def _running(status: VLLMServiceStatus, kept: ConfigRef, *, inputs: Inputs) -> VLLMServiceStatus:
    """The status with this tested configuration in force."""
    before = status.effective
    effective = Effective(
        **kept.knobs.model_dump(),
        replicas=before.replicas if before else None,
        replicas_reason=before.replicas_reason if before else "",
        config_hash=kept.config_hash,
        hash_version=inputs.hash_version,
        since=inputs.now,
        source=Source.TUNED,
        # A spec that cannot be read says nothing: what it said when the change began still stands.
        basis=spec_knobs(inputs.service.spec) if not inputs.unreadable else before.basis if before else None,
    )
    return status.model_copy(update={"effective": effective})


def _abort(change: ActiveChange, inputs: Inputs) -> str:
    tuning = inputs.service.spec.tuning
    if inputs.limits.kill:
        return inputs.limits.why
    if inputs.unreadable:
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


def _effective(status: VLLMServiceStatus, inputs: Inputs) -> VLLMServiceStatus:
    """Write down what the workload is asked to run, before anybody asks the workload."""
    if status.active_change is not None:
        return status
    spec, before = inputs.service.spec, status.effective
    knobs, replicas = settled_knobs(spec, status), wanted_replicas(inputs.service, status, scaled_by=inputs.scaled_by)
    effective = Effective(
        **knobs.model_dump(),
        replicas=replicas,
        replicas_reason=before.replicas_reason if before is not None and before.replicas == replicas else "",
        config_hash=inputs.hash_of(knobs),
        hash_version=inputs.hash_version,
        since=inputs.now,
        source=Source.TUNED if is_tuned(spec, status) else Source.SPEC if inputs.adoption is None else Source.OBSERVED,
        basis=spec_knobs(spec),
    )
    if before is not None:
        same = before.model_copy(update={"since": None}) == effective.model_copy(update={"since": None})
        effective = before if same else effective
    status = status.model_copy(update={"effective": effective})
    good, failed = status.last_known_good, status.rollback_failed
    if failed is not None:
        # Only what was restored after all ends it; what serves instead of it is not good for serving.
        restored = serves(effective, inputs) and good is not None and good.config_hash == effective.config_hash
        return status.model_copy(update={"rollback_failed": None if restored else failed})
    if serves(effective, inputs) and (good is None or good.config_hash != effective.config_hash):
        good = LastKnownGood(
            **knobs.model_dump(),
            config_hash=effective.config_hash,
            hash_version=inputs.hash_version,
            verified_at=inputs.now,
        )
    return status.model_copy(update={"last_known_good": good})
