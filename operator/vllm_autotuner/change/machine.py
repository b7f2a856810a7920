"""One change, one step at a time: persisted state in, next state out. Pure, so that every crash point is a test case.

The effects follow from the state alone: the renderer asks `effective.py` what the workload should run, so a leader that
dies between the status write and the apply leaves nothing that the next one would not finish (T01, T02).
Must not: read a clock, call anybody, or forget. What happened stands in the returned change or in its ending.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, assert_never

from vllm_autotuner.api.spec import Strategy
from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ActiveChange, Analysis, ChangeState, Outcome
from vllm_autotuner.change.edges import moved
from vllm_autotuner.change.verdict import FEWEST_WINDOWS, Judgement, WindowVerdict, conclude, judge_window, measure
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided, Verification
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation

__all__ = ["Ending", "Rollout", "World", "advance"]

VERIFY_WITHIN: Final = timedelta(minutes=3)
"""How long the start-up log may stay unreadable before the pods' arguments alone must do. Guardrails 8.1."""
PAUSED_FOR_AT_MOST: Final = timedelta(hours=24)
"""A person who pauses comes back within a day; then the candidate stops serving untried. Guardrails 8.1 (Held)."""
BLIND: Final = "metrics are missing"
PAUSED: Final = "paused"
"""Why a change is held; also the beginning of what is said when it takes too long."""
LONGEST_ANALYSIS: Final = 2
"""How many times spec.tuning.strategy.analysis may be spent where windows say too little. Our choice."""
BAD_IN_A_ROW: Final = 3
"""Bad windows in a row that end the experiment at once. Our choice: one is chance, three are harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What the cluster says about the Deployment."""

    config_hash: str | None
    """Of the live Deployment; None when there is none."""
    rolled_out: bool
    """Every pod that exists is of the live configuration; none of an older one is left."""
    settled: bool
    """Rolled out, and every replica ready."""
    ready: int
    replicas: int
    crashed: str = ""
    """Why new pods do not start, by their own log; empty while none has failed."""
    unschedulable: str = ""
    """Why new pods find no node; empty when they do."""
    newest_since: datetime | None = None
    """When the newest of the ready replicas became ready; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything a step may look at."""

    now: datetime
    rollout: Rollout
    observation: Observation
    blind: bool
    """Fresh metrics are missing: progress freezes, nothing is concluded."""
    targets: Targets
    strategy: Strategy
    verification: Verification
    paused: bool = False
    abort: str = ""
    """Why a person or the spec wants the change undone; empty when nobody does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a change ended. Whether the candidate was to blame stands in the change itself (`harmful`)."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """The change after one step; `ending` set when it is over."""

    change: ActiveChange
    ending: Ending | None = field(default=None)


def advance(change: ActiveChange, world: World) -> Step:
    """Take at most one move. Health first, then the deadline, then the state's own work."""
    if change.state is ChangeState.PROPOSED:
        # This version begins with Provisioning: another one wrote this, and nothing was touched yet.
        return Step(change, Ending(outcome=Outcome.REJECTED, reason="proposed by another version of the operator"))
    if world.abort and change.state is not ChangeState.ROLLING_BACK:
        return Step(_back(change, world.abort, world=world))
    if world.rollout.crashed and change.state is not ChangeState.ROLLING_BACK:
        starting = change.state in (ChangeState.PROVISIONING, ChangeState.VERIFYING)
        what = "the engine does not start" if starting else "the engine crashed"
        return Step(_back(change, f"{what}: {world.rollout.crashed}", world=world, harmful=True))
    match change.state:
        case ChangeState.PROVISIONING:
            return Step(_provision(change, world))
        case ChangeState.VERIFYING:
            return Step(_verify(change, world))
        case ChangeState.WARMING_UP:
            return Step(_warm_up(change, world))
        case ChangeState.ANALYZING:
            return _analyze(change, world)
        case ChangeState.HELD:
            return Step(_held(change, world))
        case ChangeState.ROLLING_BACK:
            return _roll_back(change, world)
        case unreachable:
            assert_never(unreachable)


def _back(change: ActiveChange, why: str, *, world: World, harmful: bool | None = None) -> ActiveChange:
    """Undo it. `harmful`: True, the candidate did harm; False, it did not help; None, it was never judged."""
    limit = world.strategy.provisioning_deadline
    undoing = moved(change, ChangeState.ROLLING_BACK, why=why, now=world.now, limit=limit)
    return undoing.model_copy(update={"harmful": harmful})


def _provision(change: ActiveChange, world: World) -> ActiveChange:
    if world.rollout.config_hash == change.to.config_hash and world.rollout.settled:
        why = f"{world.rollout.ready} pod(s) ready with {change.knob}={change.to_value}"
        return moved(change, ChangeState.VERIFYING, why=why, now=world.now, limit=VERIFY_WITHIN)
    if _late(change, world):
        why = world.rollout.unschedulable or "the new pods did not become ready in time"
        return _back(change, f"provisioning deadline: {why}", world=world, harmful=False)
    return change


def _verify(change: ActiveChange, world: World) -> ActiveChange:
    match world.verification:
        case Confirmed(how):
            return moved(change, ChangeState.WARMING_UP, why=how, now=world.now, limit=world.strategy.warm_up)
        case NotEffective(why):
            return _back(change, f"not effective: {why}", world=world, harmful=True)
        case Undecided(why):
            if not _late(change, world):
                return change
            return moved(
                change,
                ChangeState.WARMING_UP,
                why=f"verified by the pods' arguments only: {why}",
                now=world.now,
                limit=world.strategy.warm_up,
            )
        case unreachable:
            assert_never(unreachable)


def _warm_up(change: ActiveChange, world: World) -> ActiveChange:
    if world.paused:
        return _hold(change, PAUSED, world=world)
    if not _late(change, world):
        return change
    analyzing = moved(
        change, ChangeState.ANALYZING, why="measuring", now=world.now, limit=LONGEST_ANALYSIS * world.strategy.analysis
    )
    return analyzing.model_copy(update={"analysis": Analysis(started_at=world.now)})


def _analyze(change: ActiveChange, world: World) -> Step:
    if world.blind or world.paused:
        return Step(_hold(change, BLIND if world.blind else PAUSED, world=world))
    analysis = change.analysis or Analysis(started_at=change.state_since)
    since = max((m.at for m in analysis.last), default=analysis.started_at or world.now)
    # Windows must not overlap: one bad minute counted twice is not two bad minutes.
    window = timedelta(seconds=world.observation.window)
    if world.now - since < window:
        return Step(change)
    change = _without_unseen(change, looked=max(since, change.state_since or since), window=window, now=world.now)
    found = measure(world.observation, targets=world.targets)
    verdict = judge_window(found, before=change.baseline, targets=world.targets, target=change.target)
    analysis = _counted(analysis, verdict).model_copy(update={"last": (*analysis.last, found)[-MEASUREMENTS_LENGTH:]})
    change = change.model_copy(update={"analysis": analysis})
    if analysis.consecutive_bad >= BAD_IN_A_ROW:
        return Step(_back(change, _figures(change), world=world, harmful=True))
    started = analysis.started_at or world.now
    enough = analysis.windows_good + analysis.windows_bad >= FEWEST_WINDOWS
    if world.now - started < world.strategy.analysis or not (enough or _late(change, world)):
        return Step(change)
    judgement = conclude(
        analysis.last,
        good=analysis.windows_good,
        bad=analysis.windows_bad,
        before=change.baseline,
        targets=world.targets,
        gpus=(change.from_.tensor_parallel_size or 1, change.to.tensor_parallel_size or 1),
    )
    match judgement:
        case Judgement.KEEP:
            return Step(change, Ending(outcome=Outcome.SUCCEEDED, reason=_figures(change)))
        case Judgement.REVERT:
            return Step(_back(change, _figures(change), world=world, harmful=True))
        case Judgement.INCONCLUSIVE:
            return Step(_back(change, f"no clear effect: {_figures(change)}", world=world, harmful=False))
        case unreachable:
            assert_never(unreachable)


def _without_unseen(change: ActiveChange, *, looked: datetime, window: timedelta, now: datetime) -> ActiveChange:
    """Time in which nobody looked (a leader died, another took over) is no part of the time to find a verdict."""
    unseen = now - looked - window
    if unseen <= window or change.deadline is None:
        return change
    return change.model_copy(update={"deadline": change.deadline + unseen})


def _counted(analysis: Analysis, verdict: WindowVerdict) -> Analysis:
    match verdict:
        case WindowVerdict.GOOD:
            counted = {"windows_good": analysis.windows_good + 1, "consecutive_bad": 0}
        case WindowVerdict.BAD:
            counted = {"windows_bad": analysis.windows_bad + 1, "consecutive_bad": analysis.consecutive_bad + 1}
        case WindowVerdict.INCONCLUSIVE:
            counted = {"windows_inconclusive": analysis.windows_inconclusive + 1, "consecutive_bad": 0}
        case WindowVerdict.NO_DATA:
            counted = {"no_data": analysis.no_data + 1}
        case unreachable:
            assert_never(unreachable)
    return analysis.model_copy(update=counted)


def _hold(change: ActiveChange, why: str, *, world: World) -> ActiveChange:
    remaining = 0.0 if change.deadline is None else max(0.0, (change.deadline - world.now).total_seconds())
    held = moved(change, ChangeState.HELD, why=why, now=world.now, limit=_patience(why, world))
    return held.model_copy(update={"resume_state": change.state, "remaining_seconds": remaining})


def _patience(why: str, world: World) -> timedelta:
    return PAUSED_FOR_AT_MOST if why == PAUSED else world.strategy.data_budget


def _held(change: ActiveChange, world: World) -> ActiveChange:
    if not world.blind and not world.paused:
        remaining = timedelta(seconds=max(0.0, change.remaining_seconds or 0.0))
        # Only these two are ever interrupted; anything else was written by a person.
        warming = change.resume_state is ChangeState.WARMING_UP
        state = ChangeState.WARMING_UP if warming else ChangeState.ANALYZING
        resumed = moved(change, state, why="resumed", now=world.now, limit=remaining)
        return resumed.model_copy(update={"resume_state": None, "remaining_seconds": None})
    if _late(change, world):
        # Neither silence nor a pause is the candidate's fault: undone, but not remembered against it.
        return _back(change, f"{change.state_reason} for too long", world=world)
    why = BLIND if world.blind else PAUSED
    if {change.state_reason, why} == {BLIND, PAUSED}:
        # Metrics went missing under a pause, or came back: each has its own patience, and a person's is longer.
        update = {"state_reason": why, "state_since": world.now, "deadline": world.now + _patience(why, world)}
        return change.model_copy(update=update)
    return change


def _roll_back(change: ActiveChange, world: World) -> Step:
    if world.rollout.config_hash == change.from_.config_hash and world.rollout.settled:
        return Step(change, Ending(outcome=Outcome.ROLLED_BACK, reason=change.state_reason))
    return Step(change)


def _late(change: ActiveChange, world: World) -> bool:
    # Every state is entered with a deadline: one that lost it (an edited status) must not wait for ever.
    return change.deadline is None or world.now >= change.deadline


def _figures(change: ActiveChange) -> str:
    """Before and after in one line, for Events, history and the demo."""
    before, after = change.baseline, change.analysis.last[-1] if change.analysis and change.analysis.last else None
    if before is None or after is None:
        return "no figures"
    parts = [
        f"{name} {_ms(old)} -> {_ms(new)}"
        for name, old, new in (
            ("TTFT", before.ttft_seconds, after.ttft_seconds),
            ("TPOT", before.tpot_seconds, after.tpot_seconds),
        )
    ]
    return ", ".join(parts)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
