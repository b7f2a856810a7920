"""The state machine of a change: persisted state in, next state out. Pure, so that every crash point is a test case.

Side effects follow from the state alone: the renderer derives what should run from `effective` and `trial_deployments`,
so after a crash between the status write and the apply the next leader finishes the step (T01, T02).
Must not: read a clock or do I/O. The returned change or its ending records everything that happened.
"""

from datetime import timedelta
from typing import Final, assert_never

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import ActiveChange, Analysis, ChangeState, ChangeTarget, Outcome
from vllm_autotuner.api.wording import counted
from vllm_autotuner.change.analysis import analyze, bake_harms, kept_reason, longest, with_unwatched_time
from vllm_autotuner.change.crash_blame import baseline_crashed, blamed_crash
from vllm_autotuner.change.edges import late, moved
from vllm_autotuner.change.failing import failing
from vllm_autotuner.change.hanging import hanging
from vllm_autotuner.change.provisioning import promote, provision
from vllm_autotuner.change.rollback import back, roll_back
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided
from vllm_autotuner.change.world import Ending, Rollout, Step, World, reaches_the_service

__all__ = ["PAUSED", "Ending", "Rollout", "World", "advance"]

PAUSED_FOR_AT_MOST: Final = timedelta(hours=24)
"""After a day of pause the change is rolled back, so that an untested candidate does not serve on. Guardrails 8.1."""
UNREADABLE: Final = "the spec cannot be read"
BLIND: Final = "metrics are missing"
PAUSED: Final = "paused"
SHORT: Final = "pods of the service itself are not ready"
WARMING: Final = "pods that are compared are warming up"
"""Why a change is held. Stored in status.activeChange.stateReason and compared by value: do not change the text."""
OBSTACLES: Final = frozenset({UNREADABLE, BLIND, PAUSED, SHORT, WARMING})


def advance(change: ActiveChange, world: World) -> Step:
    """Take at most one transition: first health (abort, crash, failures, a hang), then the work of the state."""
    if change.state is ChangeState.PROPOSED:
        # This version begins with Provisioning: another version wrote this state, before touching any workload.
        reason = "proposed by another operator version; nothing was changed"
        return Step(change, Ending(outcome=Outcome.REJECTED, reason=reason))
    if change.state is not ChangeState.ROLLING_BACK:
        if world.abort:
            return Step(back(change, world.abort, world=world))
        if (crashed := blamed_crash(change, world)) is not None:
            starting = change.state in (ChangeState.PROVISIONING, ChangeState.VERIFYING)
            what = "the engine does not start" if starting else "the engine crashed"
            undoing = back(change, f"{what}: {crashed.crashed or crashed.died}", world=world, harmful=True)
            return Step(undoing.updated(lacked_memory=crashed.lacked_memory, refused=crashed.refused))
        if why := failing(change, world):
            return Step(back(change, f"the engine fails requests: {why}", world=world, harmful=True))
        if why := hanging(change, world):
            return Step(back(change, f"the engine hangs: {why}", world=world, harmful=True))
    match change.state:
        case ChangeState.PROVISIONING:
            return provision(change, world)
        case ChangeState.VERIFYING:
            return Step(_verify(change, world))
        case ChangeState.WARMING_UP:
            return Step(_warm_up(change, world))
        case ChangeState.ANALYZING:
            return Step(_analyze(change, world))
        case ChangeState.HELD:
            return Step(_held(change, world))
        case ChangeState.PROMOTING:
            return Step(promote(change, world))
        case ChangeState.BAKING:
            return _bake(change, world)
        case ChangeState.ROLLING_BACK:
            return roll_back(change, world)
        case unreachable:
            assert_never(unreachable)


def _verify(change: ActiveChange, world: World) -> ActiveChange:
    match world.verification:
        case Confirmed(how):
            return moved(change, ChangeState.WARMING_UP, why=how, now=world.now, limit=world.strategy.warm_up)
        case NotEffective(why):
            return back(change, f"not effective: {why}", world=world, harmful=True)
        case Undecided(why):
            if not late(change, now=world.now):
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
    if obstacle := UNREADABLE if world.unreadable else PAUSED if world.paused else "":
        return _hold(change, obstacle, world=world)
    if not late(change, now=world.now):
        return change
    if change.target is ChangeTarget.START:
        # Nothing served before, so there is nothing to compare with: what serves now is watched.
        why = "the engine starts and serves"
        return moved(change, ChangeState.BAKING, why=why, now=world.now, limit=world.strategy.bake)
    limit = longest(world.strategy, window=timedelta(seconds=world.observation.window))
    analyzing = moved(change, ChangeState.ANALYZING, why="measuring", now=world.now, limit=limit)
    return analyzing.updated(analysis=Analysis(started_at=world.now))


def _analyze(change: ActiveChange, world: World) -> ActiveChange:
    change = _without_lost_baseline(change, world)
    if obstacle := _obstacle(change, world):
        return _hold(change, obstacle, world=world)
    finding = analyze(change, world)
    change = finding.change
    match finding.judgement:
        case None:
            return change
        case Judgement.KEEP:
            return _kept(change, finding.why, world=world)
        case Judgement.REVERT:
            return back(change, finding.why, world=world, harmful=True)
        case Judgement.INCONCLUSIVE if finding.load_diluted:
            # This says nothing about the value: do not block it.
            return back(change, f"not judged, a scale-out lowered the load per replica: {finding.why}", world=world)
        case Judgement.INCONCLUSIVE:
            return back(change, f"no clear effect: {finding.why}", world=world, harmful=False)
        case unreachable:
            assert_never(unreachable)


def _kept(change: ActiveChange, why: str, *, world: World) -> ActiveChange:
    """Go on to Baking in place; promote a canary to the service's own pods."""
    if reaches_the_service(change):
        return moved(change, ChangeState.BAKING, why=why, now=world.now, limit=world.strategy.bake)
    limit = max(1, world.rollout.replicas) * world.strategy.provisioning_deadline
    promoting = moved(change, ChangeState.PROMOTING, why=why, now=world.now, limit=limit)
    return promoting.updated(promoted=True)


def _bake(change: ActiveChange, world: World) -> Step:
    """Watch for a regression. The bake clock stops while metrics are missing or tuning is paused, up to a limit.

    Time in which no operator watched does not count either.
    """
    obstacle = UNREADABLE if world.unreadable else PAUSED if world.paused else BLIND if world.blind else ""
    stopped = change.clock_stopped_at
    if stopped is None:
        change = with_unwatched_time(change, world)
    elif not obstacle or change.state_reason in OBSTACLES - {obstacle}:
        # Each reason has its own limit: after a long pause, missing metrics are still waited for.
        deadline = None if change.deadline is None else change.deadline + (world.now - stopped)
        change = change.updated(clock_stopped_at=None, deadline=deadline, state_reason="resumed")
        stopped = None
    if obstacle:
        if stopped is None:
            return Step(change.updated(clock_stopped_at=world.now, state_reason=obstacle))
        if world.now - stopped < _patience(obstacle, world):
            return Step(change)
        if not (rollout := world.rollout).settled:
            ready = f"the Deployment is not fully ready ({rollout.ready} of {rollout.replicas} pods)"
            return Step(back(change, f"{_too_long(obstacle, world)}, and {ready}", world=world))
        return _baked(change, f"{kept_reason(change, world)}; confidence Low: {obstacle} during the bake")
    change = _without_lost_baseline(change, world)
    change, harm = bake_harms(change, world)
    if harm:
        return Step(back(change, f"regressed during bake: {harm}", world=world, harmful=True))
    if not late(change, now=world.now):
        return Step(change)
    if _is_short(world.rollout):
        # What the rest do says nothing of those that never came back. Replicas may have been added, too, which start.
        last = max((at for at in (change.deadline, world.rollout.newest_since) if at is not None), default=world.now)
        if change.deadline is not None and world.now - last < world.strategy.provisioning_deadline:
            return Step(change.updated(state_reason=SHORT))
        ready = f"{world.rollout.ready} of {counted(world.rollout.replicas, 'pod')}"
        return Step(back(change, f"{ready} ready at the end of the bake", world=world, harmful=False))
    return _baked(change, kept_reason(change, world))


def _is_short(rollout: Rollout) -> bool:
    """Whether most pods are missing: a few may be by themselves. Those that no node takes do not count."""
    return not rollout.unschedulable and 2 * rollout.ready < rollout.replicas


def _without_lost_baseline(change: ActiveChange, world: World) -> ActiveChange:
    """Drop a lost baseline pod: the canary is then compared with the service's own pods."""
    gone = world.variants.baseline is None or baseline_crashed(world.variants)
    lost = change.baseline_ref is not None and gone
    return change.updated(baseline_ref=None) if lost else change


def _baked(change: ActiveChange, why: str) -> Step:
    return Step(change, Ending(outcome=Outcome.SUCCEEDED, reason=why))


def _obstacle(change: ActiveChange, world: World) -> str:
    """Why nothing can be measured now; empty if it can."""
    if world.unreadable:
        return UNREADABLE
    variants = world.variants
    silent = world.blind
    if change.strategy is StrategyType.CANARY:
        sides = [variants.canary] if change.baseline_ref is None else [variants.canary, variants.baseline]
        silent = silent or any(side is None or not side.observation.engines for side in sides)
    if silent:
        return BLIND
    if world.paused:
        return PAUSED
    if change.strategy is not StrategyType.CANARY:
        return ""
    # While a replica is missing, the others carry its load, which distorts both sides (T22).
    if not world.rollout.settled:
        return SHORT
    return WARMING if _is_warming_up(change, world) else ""


def _is_warming_up(change: ActiveChange, world: World) -> bool:
    """Whether a pod of either side has only just come up: one that was drained is replaced by a cold one."""
    canary, baseline = world.variants.canary, world.variants.baseline
    old = world.rollout if change.baseline_ref is None or baseline is None else baseline.rollout
    sides = (old,) if canary is None else (old, canary.rollout)
    return any(
        side.newest_since is not None and world.now - side.newest_since < world.strategy.warm_up for side in sides
    )


def _hold(change: ActiveChange, why: str, *, world: World) -> ActiveChange:
    remaining = 0.0 if change.deadline is None else max(0.0, (change.deadline - world.now).total_seconds())
    held = moved(change, ChangeState.HELD, why=why, now=world.now, limit=_patience(why, world))
    return held.updated(resume_state=change.state, remaining_seconds=remaining)


def _patience(why: str, world: World) -> timedelta:
    if why == PAUSED:
        return PAUSED_FOR_AT_MOST
    return world.strategy.data_budget + (world.strategy.warm_up if why == WARMING else timedelta())


def _too_long(why: str, world: World) -> str:
    return f"{why} for over {format_duration(_patience(why, world))}"


def _held(change: ActiveChange, world: World) -> ActiveChange:
    change = _without_lost_baseline(change, world)
    obstacle = _obstacle(change, world)
    if not obstacle:
        remaining = timedelta(seconds=max(0.0, change.remaining_seconds or 0.0))
        # Only these two states are ever interrupted; anything else comes from an edited status.
        warming = change.resume_state is ChangeState.WARMING_UP
        state = ChangeState.WARMING_UP if warming else ChangeState.ANALYZING
        resumed = moved(change, state, why="resumed", now=world.now, limit=remaining)
        return resumed.updated(resume_state=None, remaining_seconds=None)
    if late(change, now=world.now):
        # Neither missing metrics nor a pause is the candidate's fault: rolled back without an entry in failure memory.
        return back(change, _too_long(change.state_reason, world), world=world)
    if change.state_reason != obstacle and change.state_reason in OBSTACLES:
        # Metrics went missing during a pause, or came back: each reason has its own limit, and a pause a longer one.
        deadline = world.now + _patience(obstacle, world)
        return change.updated(state_reason=obstacle, state_since=world.now, deadline=deadline)
    return change
