"""Whether a proposal may become a change now. The chain reads as the specification.

Every link is a pure function that stands on its own; the unknown holds. All links are asked, so that `explain` can
list every objection; the strictest answer decides. Must not: propose, or remember.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import Mode, VLLMServiceSpec
from vllm_autotuner.api.status import Confidence, VLLMServiceStatus
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.guardrails.change_windows import why_closed
from vllm_autotuner.guardrails.circuit_breaker import circuit_is_open
from vllm_autotuner.guardrails.cooldown import BUDGET_WINDOW
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, Limits
from vllm_autotuner.guardrails.reasons import HoldReason
from vllm_autotuner.planning.bounds import opted_in, outside, with_value
from vllm_autotuner.planning.feasibility import Infeasible, finds_memory, placeable
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.proposal import Proposal

__all__ = [
    "GUARDRAILS",
    "Allow",
    "Answer",
    "Context",
    "Deny",
    "Hold",
    "objections",
    "strictest",
]


@dataclass(frozen=True, slots=True)
class Allow:
    """No objection."""

    strictness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Not now; it may be asked again."""

    reason: HoldReason
    message: str
    strictness: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Not this."""

    reason: HoldReason
    message: str
    strictness: int = 2


Answer: TypeAlias = Allow | Hold | Deny


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the links may look at."""

    now: datetime
    spec: VLLMServiceSpec
    status: VLLMServiceStatus
    diagnosis: Diagnosis
    paused: bool
    """By spec, by annotation (an unreadable one counts as paused) or by the operator."""
    settled: bool
    """The Deployment runs the effective configuration, rolled out, every replica ready."""
    watching_since: datetime
    """When this leader began to observe."""
    window: timedelta
    """The observation window."""
    approved: bool = False
    """A person approved this very recommendation."""
    limits: Limits = NO_LIMITS
    """Of the whole cluster."""
    locked: Mapping[Knob, str] = field(default_factory=dict)
    """Knobs of an adopted Deployment that are not ours to write, with the reason."""
    measured: bool = True
    """What a verdict compares is known of the last window."""
    too_few: str = ""
    """Why the requests that come now allow no verdict; empty when they do."""
    knobs: EngineKnobs = EngineKnobs()
    """What runs, and what the proposal would change one value of."""
    resting: tuple[tuple[str, str], ...] = ()
    """Knobs and values that were rolled back here and are left alone for now."""
    infeasible: tuple[EngineKnobs, ...] = ()
    """Configurations that found too little memory here."""
    ending: str = ""
    """How what has piled up ends before a change would be measured; empty when it does not, or nobody knows."""
    trouble: str = ""
    """What is wrong with the operator itself; empty when all is well."""
    queue: str = ""
    """Why it is not this service's turn; empty when it is."""
    free_gpus: FreeGpus | None = None
    """GPUs that are free for this service; None where nobody looked."""


Policy: TypeAlias = Callable[[Proposal, Context], Answer]


def mode_applies(proposal: Proposal, context: Context) -> Answer:
    """Only Automatic changes anything by itself; Approve needs a person's word for this recommendation (G01, G41)."""
    mode = context.spec.tuning.mode
    if mode is Mode.AUTOMATIC or (mode is Mode.APPROVE and context.approved):
        return Allow()
    return Hold(reason=HoldReason.MODE, message=f"spec.tuning.mode is {mode.value}: recommended, not applied")


def under_the_ceiling(proposal: Proposal, context: Context) -> Answer:
    """The administrator of the cluster has the last word; under the ceiling Approve a person's word is enough (G02)."""
    mode, limits = context.spec.tuning.mode, context.limits
    allowed = limits.of(mode)
    if allowed is mode or (allowed is Mode.APPROVE and context.approved):
        return Allow()
    return Hold(reason=HoldReason.CLUSTER_CEILING, message=limits.why)


def not_paused(proposal: Proposal, context: Context) -> Answer:
    """A person said stop; unreadable counts as paused (G03)."""
    return Hold(reason=HoldReason.PAUSED, message="tuning is paused") if context.paused else Allow()


def may_be_applied(proposal: Proposal, context: Context) -> Answer:
    """A knob without bounds is recommended only, whatever the proposal says of itself."""
    tuning, scaling = context.spec.tuning, context.spec.scaling
    why = proposal.recommend_only
    if not why and not opted_in(proposal.knob, tuning=tuning, scaling=scaling):
        why = f"{proposal.knob.value} has no bounds"
    return Hold(reason=HoldReason.RECOMMEND_ONLY, message=f"recommended only: {why}") if why else Allow()


def free_to_write(proposal: Proposal, context: Context) -> Answer:
    """What somebody else declares would be put back; what cannot be written without harm is not written (G33)."""
    why = context.locked.get(proposal.knob, "")
    return Hold(reason=HoldReason.OWNED_ELSEWHERE, message=f"recommended only: {why}") if why else Allow()


def in_window(proposal: Proposal, context: Context) -> Answer:
    """Only the start of an engine change needs a window: what runs goes on, and undoing waits for nothing (G13, G26).

    Replicas follow the load, which keeps no hours.
    """
    if proposal.knob is Knob.REPLICAS:
        return Allow()
    message = why_closed(context.spec.tuning.windows, now=context.now)
    return Hold(reason=HoldReason.OUTSIDE_WINDOW, message=message) if message else Allow()


def metrics_fresh(proposal: Proposal, context: Context) -> Answer:
    """No evidence, no change (G17)."""
    if context.diagnosis.primary is DiagnosisClass.METRICS_BLIND:
        return Hold(reason=HoldReason.METRICS_MISSING, message=context.diagnosis.message)
    return Allow()


def measured_before(proposal: Proposal, context: Context) -> Answer:
    """Without a before there is no verdict: the change would be undone whatever it does."""
    if context.measured:
        return Allow()
    message = "TTFT, TPOT or throughput is not known yet: nothing to compare with afterwards"
    return Hold(reason=HoldReason.NOT_MEASURED, message=message)


def enough_requests(proposal: Proposal, context: Context) -> Answer:
    """Where too few come for a verdict, a change would be undone whatever it does (G19). Replicas need none."""
    if not context.too_few or proposal.knob is Knob.REPLICAS:
        return Allow()
    return Hold(reason=HoldReason.TOO_FEW_REQUESTS, message=f"recommended, not applied: {context.too_few}")


def confident(proposal: Proposal, context: Context) -> Answer:
    """A guess may be shown, not applied."""
    if Confidence.LOW in (proposal.confidence, context.diagnosis.confidence):
        message = "the evidence is thin (confidence Low): recommended, not applied"
        return Hold(reason=HoldReason.LOW_CONFIDENCE, message=message)
    return Allow()


def one_at_a_time(proposal: Proposal, context: Context) -> Answer:
    """A second change would make both unjudgeable."""
    change = context.status.active_change
    if change is not None:
        message = f"{change.knob} -> {change.to_value} is under way ({change.state.value})"
        return Hold(reason=HoldReason.CHANGE_ACTIVE, message=message)
    return Allow()


def cooled_down(proposal: Proposal, context: Context) -> Answer:
    """The last change needs time to show what it does (G11)."""
    until = context.status.cooldown_until
    if until is not None and context.now < until:
        message = f"cooling down until {until:%Y-%m-%dT%H:%M:%SZ} (spec.tuning.cooldown)"
        return Hold(reason=HoldReason.COOLDOWN, message=message)
    return Allow()


def within_budget(proposal: Proposal, context: Context) -> Answer:
    """So many changes in 24 hours and no more (G12)."""
    budget, allowed = context.status.budget, context.spec.tuning.budget.changes_per_day
    if budget is None or budget.window_start is None:
        return Allow()
    if context.now - budget.window_start < BUDGET_WINDOW and budget.changes_today >= allowed:
        message = f"{budget.changes_today} of {allowed} changes used since {budget.window_start:%Y-%m-%dT%H:%M:%SZ}"
        return Hold(reason=HoldReason.BUDGET, message=message)
    return Allow()


def circuit_closed(proposal: Proposal, context: Context) -> Answer:
    """Repeated harm ends the experiments (G31)."""
    circuit = context.status.circuit
    if circuit is None or not circuit_is_open(circuit, now=context.now):
        return Allow()
    return Hold(reason=HoldReason.CIRCUIT_OPEN, message=circuit.reason or "too many rollbacks: recommendations only")


def operator_well(proposal: Proposal, context: Context) -> Answer:
    """Who cannot see or write reliably begins nothing that he may have to undo (G40)."""
    if not context.trouble:
        return Allow()
    return Hold(reason=HoldReason.OPERATOR_UNWELL, message=f"the operator itself is not well: {context.trouble}")


def settled(proposal: Proposal, context: Context) -> Answer:
    """An unhealthy or moving workload is no baseline (G15, T23)."""
    if context.settled:
        return Allow()
    message = "the Deployment is still rolling out, or a replica is not ready"
    return Hold(reason=HoldReason.NOT_SETTLED, message=message)


def lasts(proposal: Proposal, context: Context) -> Answer:
    """What is over before a trial is measured teaches nothing, and keeps replicas (G15). Replicas ask themselves."""
    if not context.ending or proposal.knob is Knob.REPLICAS:
        return Allow()
    message = f"{context.ending}: sooner than a change could be measured"
    return Hold(reason=HoldReason.ENDS_BY_ITSELF, message=message)


def watched_long_enough(proposal: Proposal, context: Context) -> Answer:
    """A fresh leader watches one whole window before it changes anything (G38)."""
    if context.now - context.watching_since >= context.window:
        return Allow()
    return Hold(reason=HoldReason.STARTING, message="the operator has just started: watching one whole window first")


def rested(proposal: Proposal, context: Context) -> Answer:
    """A value that was rolled back is left alone for a while, longer each time (G30)."""
    if (proposal.knob.value, str(proposal.value)) not in context.resting:
        return Allow()
    return Hold(
        reason=HoldReason.RESTING, message=f"{proposal.value} was taken back or declined before (status.failureMemory)"
    )


def finds_room(proposal: Proposal, context: Context) -> Answer:
    """Nothing that needs as much memory as what found too little of it, at no time (G06)."""
    if proposal.knob is Knob.REPLICAS:
        return Allow()
    answer = finds_memory(context.infeasible, with_value(context.knobs, proposal.knob, proposal.value))
    if isinstance(answer, Infeasible):
        return Deny(reason=HoldReason.INFEASIBLE, message=answer.why)
    return Allow()


def uncontested(proposal: Proposal, context: Context) -> Answer:
    """What somebody else writes back is no change; nothing new starts before there is peace (G33)."""
    contest = context.status.contest
    if contest is None:
        return Allow()
    message = f"{contest.manager} writes {contest.fields or 'fields'} of the workload as well"
    return Hold(reason=HoldReason.CONTESTED, message=message)


def its_turn(proposal: Proposal, context: Context) -> Answer:
    """Few services of the fleet change at once; replicas follow the load and ask nobody (G12, G43, G51)."""
    if not context.queue or proposal.knob is Knob.REPLICAS:
        return Allow()
    return Hold(reason=HoldReason.QUEUED, message=context.queue)


def finds_gpus(proposal: Proposal, context: Context) -> Answer:
    """Every change begins with one pod more: where no node takes it, it is not begun (G43). Nobody knows: it may.

    Replicas say so themselves, as they may also be fewer than wanted (`planning.more_replicas`).
    """
    free_gpus = context.free_gpus
    if free_gpus is None or proposal.knob is Knob.REPLICAS:
        return Allow()
    devices = proposal.count if proposal.knob is Knob.TENSOR_PARALLEL_SIZE else free_gpus.devices
    answer = placeable(free_gpus, devices=devices)
    if isinstance(answer, Infeasible):
        message = f"a change needs one pod more while it runs, and {answer.why} (nodesOnDemand: more would come)"
        return Hold(reason=HoldReason.NO_FREE_GPUS, message=message)
    return Allow()


def inside_bounds(proposal: Proposal, context: Context) -> Answer:
    """Every value within the user's bounds, checked once more on the way out (G04)."""
    spec = context.spec
    if message := outside(proposal.knob, proposal.value, tuning=spec.tuning, scaling=spec.scaling):
        return Deny(reason=HoldReason.OUT_OF_BOUNDS, message=message)
    return Allow()


GUARDRAILS: Final[tuple[Policy, ...]] = (
    mode_applies,  # the user allowed changes at all
    under_the_ceiling,  # and so did the administrator
    not_paused,  # a person said stop; unreadable counts as paused
    may_be_applied,  # the knob has bounds
    inside_bounds,  # and the value is within them
    free_to_write,  # and nobody else declares it
    in_window,  # and at an hour the user allows
    metrics_fresh,  # no evidence, no change
    measured_before,  # no before, no verdict
    enough_requests,  # and none on a handful of requests
    confident,  # a guess is shown, not applied
    watched_long_enough,  # a fresh leader looks first
    operator_well,  # and so does one that was in trouble
    settled,  # a moving workload is no baseline
    lasts,  # what passes by itself needs no change
    one_at_a_time,  # two changes make both unjudgeable
    cooled_down,
    within_budget,
    circuit_closed,
    rested,  # what was rolled back is left alone
    finds_room,  # what found too little memory even longer
    uncontested,  # somebody else writes it
    finds_gpus,  # a canary without a node is none
    its_turn,  # and the rest of the fleet stands still enough
)


def objections(proposal: Proposal, context: Context) -> tuple[Hold | Deny, ...]:
    """Ask every link; return those that object, in order of the chain. Empty: the change may happen."""
    answers = [policy(proposal, context) for policy in GUARDRAILS]
    return tuple(answer for answer in answers if not isinstance(answer, Allow))


def strictest(answers: Sequence[Answer]) -> Answer:
    """Return the first of the strictest answers (Deny > Hold > Allow); Allow when there is none."""
    return max(answers, key=lambda answer: answer.strictness, default=Allow())
