"""What a status says to people and tools: diagnosis, recommendation, conditions, short texts.

Apart from the decisions, because here nothing is decided. Written so that a steady state writes nothing: figures are
taken anew together with something that changed, and else only once they have moved for good (`figures`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from vllm_autotuner.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    remove_condition,
    set_condition,
)
from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import (
    ActiveChange,
    Contribution,
    DiagnosisStatus,
    Evidence,
    Grounds,
    Measurement,
    Outcome,
    Prediction,
    Recommendation,
    Summary,
    VLLMServiceStatus,
)
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.figures import have_moved, latencies, usual
from vllm_autotuner.control.looking import APPROVE
from vllm_autotuner.control.owning import ownership
from vllm_autotuner.control.sight import Sight
from vllm_autotuner.diagnosis.case import kv_mean
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.guardrails.chain import Allow, Deny, Hold, circuit_is_open, strictest
from vllm_autotuner.guardrails.contest import is_lost
from vllm_autotuner.planning.proposal import Proposal

__all__ = [
    "ASKED_FOR",
    "about_change",
    "asked_too_long",
    "change_text",
    "described",
    "grounds_of",
    "recommended",
    "still_says",
    "value_said",
]

SAME_RECOMMENDATION: Final = 0.2
"""A value that moved by less than this share is still the same recommendation: a new id for each tick would write each
tick, and nobody could approve it. Our choice, unmeasured."""
ASKED_FOR: Final = timedelta(hours=24)
"""After so long in mode Approve the question is asked anew, under another id: an approval is for what a person has seen
lately (G41). Research 8.1."""
_NOT_APPLIED: Final = " Not applied: "


def recommended(
    proposal: Proposal | None, held: Sequence[Hold | Deny], *, before: Recommendation | None, sight: Sight
) -> Recommendation | None:
    """The recommendation to show; the standing one while it still says the same, and is held for the same cause."""
    if proposal is None:
        return None
    objection = strictest(held)
    # What keeps it from being applied is part of the explanation.
    held_by = None if isinstance(objection, Allow) else objection.reason.value
    obstacle = "" if isinstance(objection, Allow) else f"{_NOT_APPLIED}{objection.message}."
    if before is not None and still_says(before, proposal) and not asked_too_long(before, sight):
        known = "".join(before.reason.partition(_NOT_APPLIED)[1:])
        # The figures in a reason move with every request: they are taken anew only when the obstacle is another one.
        same = known == obstacle and before.held_by == held_by
        return before if same else before.model_copy(update={"reason": proposal.reason + obstacle, "held_by": held_by})
    current, value = _text(proposal.current), proposal.value
    # With the time: a leave that was given once does not count for the same question when it comes back (G41).
    text = f"{sight.service.metadata.uid}/{proposal.knob.value}/{current}/{value}/{sight.now.isoformat()}"
    return Recommendation(
        id=hashlib.sha256(text.encode()).hexdigest()[:8],
        knob=proposal.knob.value,
        current=current,
        recommended=str(value),
        limited_by=proposal.limited_by,
        predicted=_predicted(proposal),
        reason=proposal.reason + obstacle,
        confidence=proposal.confidence,
        held_by=held_by,
        first_seen=sight.now,
    )


def asked_too_long(standing: Recommendation, sight: Sight) -> bool:
    """Whether the question to a person is so old that his answer does not count any more."""
    asked = standing.first_seen
    return sight.mode is Mode.APPROVE and asked is not None and sight.now - asked >= ASKED_FOR


def grounds_of(proposal: Proposal, diagnosis: Diagnosis) -> Grounds:
    """What a change is decided on, for the ledger: written once, when it begins."""
    return Grounds(
        diagnosis=diagnosis.primary.value,
        confidence=proposal.confidence,
        evidence=_evidence(diagnosis),
        predicted=_predicted(proposal),
    )


def _predicted(proposal: Proposal) -> tuple[Prediction, ...]:
    return tuple(
        Prediction(name=each.name, unit=each.unit, current=_short(each.current), predicted=_short(each.predicted))
        for each in proposal.predicted
    )


def still_says(standing: Recommendation, proposal: Proposal) -> bool:
    """Whether a proposal is the recommendation that stands: same knob, same start, and about the same value."""
    if standing.knob != proposal.knob.value or standing.current != _text(proposal.current):
        return False
    said, value = value_said(standing), proposal.value
    if not isinstance(said, int) or not isinstance(value, int):
        return said == value
    return abs(said - value) <= SAME_RECOMMENDATION * said


def value_said(standing: Recommendation) -> int | str:
    """The recommended value as the knob's own kind: a person may have edited the status."""
    # Other scripts have decimals too, and int() reads them: what we write is ASCII.
    text = standing.recommended
    return int(text) if text.isascii() and text.isdecimal() else text


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)


def described(
    status: VLLMServiceStatus,
    *,
    sight: Sight,
    diagnosis: Diagnosis,
    targets: Targets,
    ended: tuple[ActiveChange, Ending] | None,
    recent: Sequence[Measurement] = (),
) -> VLLMServiceStatus:
    """Complete a decided status with everything that only reports. `recent`: the last windows of what runs."""
    before = sight.service.status
    named = _diagnosis(diagnosis)
    status = status.model_copy(
        update={
            "observed_generation": sight.service.metadata.generation,
            "diagnosis": before.diagnosis if _says_the_same(named, before.diagnosis) else named,
            "replicas": sight.pods,
            "ready_replicas": sight.rollout.ready,
            "selector": sight.selector,
        }
    )
    status = status.model_copy(update={"conditions": _conditions(status, sight, diagnosis=diagnosis, ended=ended)})
    # Figures move with every request.
    if status.model_copy(update={"summary": before.summary, "measured": before.measured}) != before:
        measured = latencies(measure(sight.observation, targets=targets))
    elif sight.figures_due and have_moved(before.measured, recent):
        measured = usual(recent)
    else:
        return before
    summary = _summary(status, sight, measured=measured, targets=targets)
    return status.model_copy(update={"summary": summary, "measured": measured, "diagnosis": named})


def _says_the_same(named: DiagnosisStatus, before: DiagnosisStatus | None) -> bool:
    """Whether only figures differ."""
    return (
        before is not None
        and before.class_ == named.class_
        and before.confidence is named.confidence
        and [part.class_ for part in before.contributing] == [part.class_ for part in named.contributing]
    )


def _diagnosis(diagnosis: Diagnosis) -> DiagnosisStatus:
    contributing = tuple(
        Contribution(class_=part.diagnosis.value, message=part.message) for part in diagnosis.contributing
    )
    return DiagnosisStatus(
        class_=diagnosis.primary.value,
        confidence=diagnosis.confidence,
        since=datetime.fromtimestamp(diagnosis.since, tz=UTC),
        message=diagnosis.message,
        evidence=_evidence(diagnosis),
        contributing=contributing,
    )


def _evidence(diagnosis: Diagnosis) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            name=each.name,
            value=_short(each.value),
            unit=each.unit,
            threshold=_short(each.threshold),
            window=None if each.window is None else format_duration(timedelta(seconds=each.window)),
            note=each.note or None,
        )
        for each in diagnosis.evidence
    )


def _conditions(
    status: VLLMServiceStatus,
    sight: Sight,
    *,
    diagnosis: Diagnosis,
    ended: tuple[ActiveChange, Ending] | None,
) -> tuple[Condition, ...]:
    conditions = status.conditions
    generation, now = sight.service.metadata.generation, sight.now

    def put(kind: ConditionType, state: ConditionStatus | bool, reason: Reason, message: str) -> None:
        nonlocal conditions
        conditions = set_condition(
            conditions,
            type=kind,
            status=state,
            reason=reason,
            message=message,
            observed_generation=generation,
            now=now,
        )

    for kind, state, reason, message in (
        *_serving(status, sight),
        ownership(status, sight),
        _metrics(diagnosis, sight),
        _recommending(status, sight),
        *about_change(status, ended=ended),
    ):
        put(kind, state, reason, message)
    by_spec = sight.service.spec.paused
    paused_by = Reason.PAUSED_BY_SPEC if by_spec else Reason.PAUSED_BY_ANNOTATION
    where = "spec.paused is true" if by_spec else "the annotation vllm-autotuner.dev/pause is set"
    if sight.limits.kill:
        paused_by, where = Reason.PAUSED_BY_OPERATOR, sight.limits.why
    paused = sight.paused or sight.limits.kill
    put(ConditionType.PAUSED, paused, paused_by, f"{where}; serving goes on, nothing is tuned")
    if (adoption := sight.adoption) is None:
        conditions = remove_condition(conditions, ConditionType.ADOPTED)
    else:
        put(ConditionType.ADOPTED, True, Reason.TARGET_OBSERVED, adoption.about)
    circuit = status.circuit
    is_open = circuit_is_open(circuit, now=now)
    why = circuit.reason if circuit is not None else ""
    put(ConditionType.CIRCUIT_OPEN, is_open, Reason.REPEATED_ROLLBACKS, f"{why}: recommendations only")
    return conditions


def about_change(
    status: VLLMServiceStatus, *, ended: tuple[ActiveChange, Ending] | None
) -> Iterator[tuple[ConditionType, bool, Reason, str]]:
    """What is said of the change under way, and of the one that has just ended."""
    change = status.active_change
    about = "" if change is None else f"{change.knob} {change.from_value or 'default'} -> {change.to_value}"
    state_text = "" if change is None else f"{about}: {change.state.value}"
    yield ConditionType.TUNING_IN_PROGRESS, change is not None, Reason.CHANGE_ACTIVE, state_text
    if ended is not None:
        finished, ending = ended
        good = ending.outcome is Outcome.SUCCEEDED
        message = f"{finished.knob}={finished.to_value}: {ending.reason}"
        yield ConditionType.LAST_CHANGE_SUCCEEDED, good, Reason(ending.outcome.value), message


def change_text(change: ActiveChange | None) -> str | None:
    """A change in a word for `kubectl get`."""
    return None if change is None else f"{change.knob}={change.to_value} {change.state.value}"


def _serving(
    status: VLLMServiceStatus, sight: Sight
) -> tuple[tuple[ConditionType, ConditionStatus | bool, Reason, str], ...]:
    """Ready, Reconciling, Stalled and RollbackFailed: the four that must never contradict each other."""
    rollout, spec, change = sight.rollout, sight.service.spec, status.active_change
    floor = spec.scaling.min_replicas if spec.scaling is not None else (spec.replicas or 0)
    if sight.adoption is not None:
        floor = min(floor, sight.adoption.floor)
    if sight.scaled_by:
        floor = rollout.replicas
    if status.rollback_failed is not None:
        message = status.rollback_failed.message
        return (
            (ConditionType.RECONCILING, False, Reason.PROGRESSING, ""),
            (ConditionType.READY, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
            (ConditionType.ROLLBACK_FAILED, True, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
            (ConditionType.STALLED, True, Reason.LAST_KNOWN_GOOD_NOT_SERVING, message),
        )
    refusal = sight.refusal
    if refusal is not None and change is None:
        return (
            (ConditionType.ROLLBACK_FAILED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
            (ConditionType.RECONCILING, False, Reason.PROGRESSING, ""),
            (ConditionType.READY, False, refusal.reason, refusal.message),
            (ConditionType.STALLED, True, refusal.reason, refusal.message),
        )
    enough = rollout.ready >= floor
    # Tuning is not reconciling: a rollout that a change causes leaves a service that serves its spec Ready.
    # Nor is what somebody else has made of the workload: nothing follows as long as it is left to him.
    follows_spec = (change is None and not is_lost(status.contest)) and (
        rollout.config_hash is None
        or (status.effective is not None and rollout.config_hash != status.effective.config_hash)
        or not rollout.rolled_out
    )
    served = f"{rollout.ready} of {floor} replica(s) serve"
    if rollout.crashed and not enough:
        served += f"; {rollout.crashed}"
    elif rollout.unschedulable and not enough:
        served += f"; {rollout.unschedulable}"
    waiting = follows_spec or not enough
    reason = Reason.PROGRESSING if follows_spec else Reason.REPLICAS_UNAVAILABLE
    return (
        (ConditionType.ROLLBACK_FAILED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
        (ConditionType.STALLED, False, Reason.LAST_KNOWN_GOOD_NOT_SERVING, ""),
        (ConditionType.RECONCILING, waiting, reason, served),
        (ConditionType.READY, not waiting, reason if waiting else Reason.SERVING, served),
    )


def _metrics(diagnosis: Diagnosis, sight: Sight) -> tuple[ConditionType, bool, Reason, str]:
    if diagnosis.primary is not DiagnosisClass.METRICS_BLIND and sight.observation.engines:
        return ConditionType.METRICS_AVAILABLE, True, Reason.METRICS_FRESH, "fresh metrics of the engines"
    failed, stale = sight.observation.problem is not None, bool(sight.observation.silent)
    reason = Reason.PROVIDER_ERROR if failed else Reason.METRICS_STALE if stale else Reason.METRICS_MISSING
    return ConditionType.METRICS_AVAILABLE, False, reason, f"{diagnosis.message} Nothing is changed meanwhile."


def _recommending(status: VLLMServiceStatus, sight: Sight) -> tuple[ConditionType, bool, Reason, str]:
    found, change = status.recommendation, status.active_change
    if change is not None:
        message = f"{change.knob} -> {change.to_value} is being tried"
        return ConditionType.RECOMMENDATION_AVAILABLE, False, Reason.CHANGE_ACTIVE, message
    if found is None:
        return ConditionType.RECOMMENDATION_AVAILABLE, False, Reason.NOTHING_TO_IMPROVE, "nothing to recommend"
    message = f"{found.knob} {found.current or 'default'} -> {found.recommended}"
    awaiting = sight.mode is Mode.APPROVE
    reason = Reason.AWAITING_APPROVAL if awaiting else Reason.RECOMMENDED
    if awaiting:
        # With --overwrite: an earlier approval may stand there.
        service = sight.service.metadata
        message += (
            f"; approve: kubectl annotate --overwrite -n {service.namespace} vllm {service.name} {APPROVE}={found.id}"
        )
    if awaiting and sight.approved and sight.approved != found.id:
        message += f" ({sight.approved} was approved, which does not stand any more)"
    return ConditionType.RECOMMENDATION_AVAILABLE, True, reason, message


def _summary(status: VLLMServiceStatus, sight: Sight, *, measured: Measurement, targets: Targets) -> Summary:
    usages = [usage for engine in sight.observation.engines if (usage := kv_mean(engine)) is not None]
    return Summary(
        effective=_knobs_text(effective_knobs(sight.service.spec, status)),
        ttft=_against(measured.ttft_seconds, targets.ttft),
        tpot=_against(measured.tpot_seconds, targets.tpot),
        kv_usage=f"{max(usages):.0%}" if usages else None,
        change=change_text(status.active_change),
    )


def _knobs_text(knobs: EngineKnobs) -> str:
    parts = (
        ("seqs", knobs.max_num_seqs),
        ("len", knobs.max_model_len),
        ("kv", knobs.kv_cache_dtype),
        ("tp", knobs.tensor_parallel_size),
    )
    return " ".join(f"{name}={value}" for name, value in parts if value is not None) or "engine defaults"


def _against(seconds: float | None, target: Target) -> str | None:
    return None if seconds is None else f"{_duration(seconds)}/{_duration(target.seconds)}"


def _duration(seconds: float) -> str:
    return told_seconds(seconds).replace(" ", "")


def _short(value: float | None) -> float | None:
    """Three significant digits: enough to judge by, and the same text for the same state."""
    return None if value is None else float(f"{value:.3g}")
