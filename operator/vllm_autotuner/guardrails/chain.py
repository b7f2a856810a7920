"""The chain of guardrails: decides whether a proposal may become a change now. `GUARDRAILS` lists them in order.

Each policy is an independent pure function; if its input is unknown, it holds. All policies are evaluated, so that
`explain` can list every objection; the strictest answer decides. Must not: propose changes, or keep state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import Mode, VLLMServiceSpec
from vllm_autotuner.api.status import ChangeTarget, Confidence, VLLMServiceStatus
from vllm_autotuner.api.wording import counted
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.guardrails.change_windows import why_closed
from vllm_autotuner.guardrails.circuit_breaker import circuit_is_open
from vllm_autotuner.guardrails.contest import REPLICAS, gave_up_replicas
from vllm_autotuner.guardrails.cooldown import BUDGET_WINDOW, goes_on
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, Limits
from vllm_autotuner.guardrails.reasons import HoldReason
from vllm_autotuner.planning.bounds import opted_in, outside, with_values
from vllm_autotuner.planning.feasibility import Infeasible, finds_memory, placeable
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.worth import MET

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
    """Not now: evaluated again at the next tick."""

    reason: HoldReason
    message: str
    strictness: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Not this value."""

    reason: HoldReason
    message: str
    strictness: int = 2


Answer: TypeAlias = Allow | Hold | Deny


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of the policies."""

    now: datetime
    spec: VLLMServiceSpec
    status: VLLMServiceStatus
    diagnosis: Diagnosis
    paused: bool
    """Paused by spec, by annotation (an unreadable one counts as paused) or by the kill switch."""
    settled: bool
    """The Deployment runs the effective configuration, is rolled out, and every replica is ready."""
    watching_since: datetime
    """When this leader began to observe the service."""
    window: timedelta
    """The observation window."""
    approved: bool = False
    """A user approved exactly this recommendation."""
    limits: Limits = NO_LIMITS
    """The cluster-wide limits of the administrator."""
    locked: Mapping[Knob, str] = field(default_factory=dict)
    """Knobs of an adopted Deployment that the operator must not write, with the reason."""
    measured: bool = True
    """The last window has every number that a verdict compares."""
    too_few_requests: str = ""
    """Why the current request rate is too low for a verdict; empty if it is high enough."""
    knobs: EngineKnobs = EngineKnobs()
    """The running configuration, of which the proposal changes one value."""
    spare_replicas: int = 0
    """Replicas that scaling will remove, as the others surely serve the load; 0 if not known."""
    blocked: tuple[tuple[str, str], ...] = ()
    """Knobs and values that were rolled back or declined in this environment and must not be retried yet."""
    infeasible: tuple[EngineKnobs, ...] = ()
    """Configurations that ran out of memory in this environment."""
    drains: str = ""
    """Why the backlog will drain before a change could be measured; empty if it will not, or if unknown."""
    trouble: str = ""
    """Recent problems of the operator itself; empty if there are none."""
    queue: str = ""
    """Why the service must wait for other services' changes; empty if it need not."""
    free_gpus: FreeGpus | None = None
    """GPUs that are free for this service; None if unknown."""


Policy: TypeAlias = Callable[[Proposal, Context], Answer]


def mode_applies(proposal: Proposal, context: Context) -> Answer:
    """Changes need mode Automatic, or mode Approve and a user's approval of this recommendation (G01, G41)."""
    mode = context.spec.tuning.mode
    if mode is Mode.AUTOMATIC or (mode is Mode.APPROVE and context.approved):
        return Allow()
    missing = "waiting for approval" if mode is Mode.APPROVE else "recommendations only"
    return Hold(reason=HoldReason.MODE, message=f"spec.tuning.mode is {mode.value}: {missing}")


def under_the_ceiling(proposal: Proposal, context: Context) -> Answer:
    """The administrator's mode ceiling overrides the spec; under the ceiling Approve an approval is enough (G02)."""
    mode, limits = context.spec.tuning.mode, context.limits
    allowed = limits.of(mode)
    if allowed is mode or (allowed is Mode.APPROVE and context.approved):
        return Allow()
    return Hold(reason=HoldReason.CLUSTER_CEILING, message=limits.why)


def not_paused(proposal: Proposal, context: Context) -> Answer:
    """Tuning is not paused; an unreadable pause annotation counts as paused (G03)."""
    return Hold(reason=HoldReason.PAUSED, message="tuning is paused") if context.paused else Allow()


def may_be_applied(proposal: Proposal, context: Context) -> Answer:
    """Only knobs with bounds in the spec are changed, and none that the planner only recommends."""
    tuning, scaling = context.spec.tuning, context.spec.scaling
    why = proposal.recommend_only
    if not why and not opted_in(proposal.knob, tuning=tuning, scaling=scaling):
        why = f"{proposal.knob.value} has no bounds in the spec"
    return Hold(reason=HoldReason.RECOMMEND_ONLY, message=f"recommended only: {why}") if why else Allow()


def free_to_write(proposal: Proposal, context: Context) -> Answer:
    """Flags that another field manager declares, or that cannot be written safely, are not changed (G33)."""
    why = next(filter(None, (context.locked.get(knob) for knob in proposal.values)), "")
    return Hold(reason=HoldReason.OWNED_ELSEWHERE, message=f"recommended only: {why}") if why else Allow()


def in_window(proposal: Proposal, context: Context) -> Answer:
    """Engine changes start only inside a change window; active changes and rollbacks ignore windows (G13, G26).

    Replicas follow the load at any time.
    """
    if proposal.knob is Knob.REPLICAS:
        return Allow()
    message = why_closed(context.spec.tuning.windows, now=context.now)
    return Hold(reason=HoldReason.OUTSIDE_WINDOW, message=message) if message else Allow()


def metrics_fresh(proposal: Proposal, context: Context) -> Answer:
    """No change without fresh metrics (G17)."""
    if context.diagnosis.primary is DiagnosisClass.METRICS_BLIND:
        return Hold(reason=HoldReason.METRICS_MISSING, message=context.diagnosis.message)
    return Allow()


def _makes_it_start(proposal: Proposal) -> bool:
    """Whether nothing serves without this change: then there is no baseline, no load and nothing to wait for."""
    return proposal.target is ChangeTarget.START


def measured_before(proposal: Proposal, context: Context) -> Answer:
    """A verdict needs a measurement from before the change; without one the change would always be rolled back."""
    if context.measured or _makes_it_start(proposal):
        return Allow()
    message = "TTFT, TPOT or throughput is not measured yet: no baseline to compare with"
    return Hold(reason=HoldReason.NOT_MEASURED, message=message)


def enough_requests(proposal: Proposal, context: Context) -> Answer:
    """The request rate must be high enough for a verdict (G19). Scaling replicas needs no verdict."""
    if not context.too_few_requests or proposal.knob is Knob.REPLICAS or _makes_it_start(proposal):
        return Allow()
    return Hold(reason=HoldReason.TOO_FEW_REQUESTS, message=context.too_few_requests)


def confident(proposal: Proposal, context: Context) -> Answer:
    """Proposals with Low confidence are recommended only."""
    if Confidence.LOW in (proposal.confidence, context.diagnosis.confidence):
        message = "confidence is Low: not enough evidence to apply it"
        return Hold(reason=HoldReason.LOW_CONFIDENCE, message=message)
    return Allow()


def one_at_a_time(proposal: Proposal, context: Context) -> Answer:
    """One active change per service: the effects of two could not be told apart."""
    change = context.status.active_change
    if change is not None:
        message = f"{change.knob} -> {change.to_value} is in progress ({change.state.value})"
        return Hold(reason=HoldReason.CHANGE_ACTIVE, message=message)
    return Allow()


def cooled_down(proposal: Proposal, context: Context) -> Answer:
    """The cooldown after the last change has passed, or that change was kept and this one goes on from it (G11).

    Replicas follow the load at any time.
    """
    status, tuning, now = context.status, context.spec.tuning, context.now
    until = status.cooldown_until
    if until is None or now >= until or _makes_it_start(proposal) or proposal.knob is Knob.REPLICAS:
        return Allow()
    end = f"until {until:%Y-%m-%dT%H:%M:%SZ} (spec.tuning.cooldown)"
    further = not tuning.cooldown_is_written and goes_on(
        proposal.knob, proposal.value, history=status.history, cooldown=tuning.cooldown, now=now
    )
    if not further:
        return Hold(reason=HoldReason.COOLDOWN, message=f"cooling down {end}")
    if not context.spare_replicas or context.diagnosis.primary not in MET:
        return Allow()
    # To remove what the last change made superfluous costs nothing; a trial would keep it for as long as it takes.
    spare = counted(context.spare_replicas, "replica")
    message = f"the load does not need {spare}: waiting for the removal, or {end}"
    return Hold(reason=HoldReason.COOLDOWN, message=message)


def within_budget(proposal: Proposal, context: Context) -> Answer:
    """The number of changes in 24 hours is limited (G12); replicas, which are none, follow the load at any time."""
    budget, allowed = context.status.budget, context.spec.tuning.budget.changes_per_day
    if budget is None or budget.window_start is None or proposal.knob is Knob.REPLICAS:
        return Allow()
    if context.now - budget.window_start < BUDGET_WINDOW and budget.changes_today >= allowed:
        since = f"{budget.window_start:%Y-%m-%dT%H:%M:%SZ}"
        message = f"change budget used up: {budget.changes_today} of {allowed} since {since} (spec.tuning.budget)"
        return Hold(reason=HoldReason.BUDGET, message=message)
    return Allow()


def circuit_closed(proposal: Proposal, context: Context) -> Answer:
    """The circuit breaker is closed: no repeated harmful rollbacks (G31). Replicas are not rolled back."""
    circuit = context.status.circuit
    if circuit is None or proposal.knob is Knob.REPLICAS or not circuit_is_open(circuit, now=context.now):
        return Allow()
    message = f"the circuit breaker is open: {circuit.reason or 'too many rollbacks'}"
    return Hold(reason=HoldReason.CIRCUIT_OPEN, message=message)


def operator_well(proposal: Proposal, context: Context) -> Answer:
    """An operator without reliable metrics or API access begins nothing that it may have to roll back (G40)."""
    if not context.trouble:
        return Allow()
    return Hold(reason=HoldReason.OPERATOR_UNWELL, message=f"the operator is degraded: {context.trouble}")


def settled(proposal: Proposal, context: Context) -> Answer:
    """The workload is in steady state: an unhealthy or changing workload is no baseline (G15, T23)."""
    if context.settled or _makes_it_start(proposal):
        return Allow()
    message = "the Deployment is rolling out, or a replica is not ready"
    return Hold(reason=HoldReason.NOT_SETTLED, message=message)


def backlog_stays(proposal: Proposal, context: Context) -> Answer:
    """The problem outlasts a trial: a backlog that drains first needs no change (G15). Scaling checks this itself."""
    if not context.drains or proposal.knob is Knob.REPLICAS:
        return Allow()
    message = f"{context.drains}, before a change could be measured"
    return Hold(reason=HoldReason.ENDS_BY_ITSELF, message=message)


def watched_long_enough(proposal: Proposal, context: Context) -> Answer:
    """A new leader observes one full window before it changes anything (G38)."""
    if context.now - context.watching_since >= context.window:
        return Allow()
    window = format_duration(context.window)
    message = f"the operator has just started and observes one full window first ({window})"
    return Hold(reason=HoldReason.STARTING, message=message)


def not_blocked(proposal: Proposal, context: Context) -> Answer:
    """A value that was rolled back is not retried for a while, longer after each failure (G30)."""
    if (proposal.knob.value, str(proposal.value)) not in context.blocked:
        return Allow()
    message = f"{proposal.value} was rolled back or declined before (status.failureMemory)"
    return Hold(reason=HoldReason.RESTING, message=message)


def fits_in_memory(proposal: Proposal, context: Context) -> Answer:
    """Configurations that need at least as much memory as one that ran out of it are never tried (G06)."""
    if proposal.knob is Knob.REPLICAS:
        return Allow()
    answer = finds_memory(context.infeasible, with_values(context.knobs, proposal.values))
    if isinstance(answer, Infeasible):
        return Deny(reason=HoldReason.INFEASIBLE, message=answer.why)
    return Allow()


def uncontested(proposal: Proposal, context: Context) -> Answer:
    """No other field manager overwrites what the pods run: it would revert the change (G33)."""
    contest = context.status.contest
    theirs = gave_up_replicas(contest) and contest is not None and contest.fields == REPLICAS
    if contest is None or (theirs and proposal.knob is not Knob.REPLICAS):
        return Allow()
    message = f"{contest.manager} also writes {contest.fields or 'fields'} of the workload"
    return Hold(reason=HoldReason.CONTESTED, message=message)


def fleet_allows(proposal: Proposal, context: Context) -> Answer:
    """The number of concurrent changes in the cluster is limited; scaling replicas is exempt (G12, G43, G51)."""
    if not context.queue or proposal.knob is Knob.REPLICAS:
        return Allow()
    return Hold(reason=HoldReason.QUEUED, message=context.queue)


def finds_gpus(proposal: Proposal, context: Context) -> Answer:
    """A change needs one extra pod, so a node must have room for it (G43). If free GPUs are unknown, it is allowed.

    Scaling checks this itself, as it may add fewer replicas than wanted (`planning.more_replicas`).
    """
    free_gpus = context.free_gpus
    if free_gpus is None or proposal.knob is Knob.REPLICAS:
        return Allow()
    devices = proposal.count if proposal.knob is Knob.TENSOR_PARALLEL_SIZE else free_gpus.devices
    answer = placeable(free_gpus, devices=devices)
    if isinstance(answer, Infeasible):
        hint = "set nodesOnDemand if nodes are added on demand"
        message = f"a change needs one extra pod while it runs, and {answer.why}; {hint}"
        return Hold(reason=HoldReason.NO_FREE_GPUS, message=message)
    return Allow()


def inside_bounds(proposal: Proposal, context: Context) -> Answer:
    """The values are within the user's bounds, checked again independently of the planner (G04)."""
    spec = context.spec
    for knob, value in proposal.values.items():
        if message := outside(knob, value, tuning=spec.tuning, scaling=spec.scaling):
            return Deny(reason=HoldReason.OUT_OF_BOUNDS, message=message)
    return Allow()


GUARDRAILS: Final[tuple[Policy, ...]] = (
    mode_applies,  # the user allows changes
    under_the_ceiling,  # the administrator allows changes
    not_paused,  # unreadable counts as paused
    may_be_applied,  # the knob has bounds, and the planner does not only recommend it
    inside_bounds,  # the value is within them
    free_to_write,  # no other field manager declares it
    in_window,  # a change window is open
    metrics_fresh,  # no change without metrics
    measured_before,  # no verdict without a baseline
    enough_requests,  # no verdict on too few requests
    confident,  # Low confidence is recommended only
    watched_long_enough,  # a new leader observes first
    operator_well,  # metrics and API access are reliable
    settled,  # steady state
    backlog_stays,  # the problem does not clear by itself
    one_at_a_time,  # one change per service
    cooled_down,
    within_budget,
    circuit_closed,
    not_blocked,  # no early retry after a rollback
    fits_in_memory,  # no retry after an out-of-memory error
    uncontested,  # no other field manager overwrites it
    finds_gpus,  # a node has room for one extra pod
    fleet_allows,  # few changes at once in the cluster
)


def objections(proposal: Proposal, context: Context) -> tuple[Hold | Deny, ...]:
    """Evaluate all policies; return the objections in order of the chain. Empty: the change may begin."""
    answers = [policy(proposal, context) for policy in GUARDRAILS]
    return tuple(answer for answer in answers if not isinstance(answer, Allow))


def strictest(answers: Sequence[Answer]) -> Answer:
    """Return the first of the strictest answers (Deny > Hold > Allow); Allow if there is none."""
    return max(answers, key=lambda answer: answer.strictness, default=Allow())
