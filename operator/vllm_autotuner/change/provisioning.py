"""The states Provisioning and Promoting: bring up pods with the new configuration, as canary or in the service itself.

Separate from the state machine, because these steps depend on free GPUs. A canary that finds no node ends the change
before the service is touched (T19); trial pods release their GPUs when the service's own pods need them.
Must not: judge the pods once they serve, or count a window in which one of them does as one of before.
"""

from datetime import timedelta
from typing import Final

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import ActiveChange, ChangeState, Outcome
from vllm_autotuner.api.wording import counted
from vllm_autotuner.change.before_after import with_window_before
from vllm_autotuner.change.crash_blame import baseline_crashed
from vllm_autotuner.change.edges import late, moved
from vllm_autotuner.change.rollback import back
from vllm_autotuner.change.verdict import measure_per_pod
from vllm_autotuner.change.world import Ending, Step, Variant, World

__all__ = ["promote", "provision"]

VERIFY_WITHIN: Final = timedelta(minutes=3)
"""How long the start-up log may stay unreadable before the pods' arguments alone must do. Guardrails 8.1."""
UNSCHEDULABLE_FOR: Final = timedelta(minutes=5)
"""A trial whose pod stays unschedulable for this long ends: cluster autoscalers mostly add a GPU node sooner. Our
choice, unmeasured."""
ROOM_WITHIN: Final = timedelta(seconds=60)
"""How long the service's own pods wait for a node before a trial pod releases its GPU. Our choice: the scheduler
retries at once when a GPU becomes free, so after a minute none is."""


def provision(change: ActiveChange, world: World) -> Step:
    """Wait until the pods with the new configuration are ready; verify next, or roll back at the deadline."""
    if change.strategy is StrategyType.CANARY:
        return _provision_trial(change, world)
    if world.rollout.config_hash == change.to.config_hash and world.rollout.settled:
        return Step(_verifying(change, f"{counted(world.rollout.ready, 'pod')} ready", world=world))
    stuck = _stands_still(change, world)
    if stuck or late(change, now=world.now):
        why = world.rollout.unschedulable or "the new pods did not become ready"
        waited = _timed_out(world, pods=1 if stuck else max(1, change.replicas or 1))
        return Step(back(change, f"{waited}: {why}", world=world, harmful=False))
    return Step(_with_windows_before(change, world))


def _with_windows_before(change: ActiveChange, world: World) -> ActiveChange:
    """Go on measuring the old configuration while its pods alone serve, under the load that the change is for.

    A change begins as soon as its diagnosis holds, often with a single window of before, which shows nothing.
    """
    rollout, pods = world.rollout, world.observation.reporting
    # A new pod may answer its first scrape before it is ready: without load, it would lower what each pod has.
    alone = rollout.older_ready == rollout.ready == rollout.replicas == len(pods)
    if not alone or world.blind or world.unreadable:
        return change
    found = measure_per_pod(world.observation, targets=world.targets)
    newest = max((window.at for window in change.before), default=None)
    if newest is not None and found.at - newest < timedelta(seconds=world.observation.window):
        return change
    before = with_window_before(change.before, found, target=change.target)
    return change if before == change.before else change.updated(before=before, baseline=found)


def _provision_trial(change: ActiveChange, world: World) -> Step:
    canary, baseline = world.variants.canary, world.variants.baseline
    waited = timedelta() if change.state_since is None else world.now - change.state_since
    overdue = late(change, now=world.now)
    no_room = overdue or waited >= UNSCHEDULABLE_FOR
    ready = canary is not None and canary.rollout.config_hash == change.to.config_hash and canary.rollout.settled
    # Not by its hash: this version renders it, while another one may have rendered the pods that `from` is about.
    compared = baseline is not None and baseline.rollout.settled
    if ready and (change.baseline_ref is None or compared):
        return Step(_verifying(change, "the canary is ready", world=world))
    if change.baseline_ref is not None:
        lost = baseline_crashed(world.variants)
        wanted = no_room and not ready and _unschedulable(canary)
        hopeless = ready and (overdue or (no_room and _unschedulable(baseline)))
        if lost or wanted or hopeless:
            # The canary can be compared with the service's own pods instead, and may use the freed GPU.
            return Step(change.updated(baseline_ref=None, state_since=world.now))
    if no_room and (why := _unschedulable(canary)):
        # The message of the scheduler or of the quota comes last: it is long and may be cut off.
        reason = f"Unschedulable: there is no room for one more pod; the service was not changed ({why})"
        return Step(change, Ending(outcome=Outcome.REJECTED, reason=reason))
    if overdue:
        why = f"{_timed_out(world, pods=1)}: the canary did not become ready"
        return Step(back(change, why, world=world, harmful=False))
    return Step(change)


def promote(change: ActiveChange, world: World) -> ActiveChange:
    """Wait until all of the service's own pods run the new configuration; bake next, or roll back at the deadline."""
    rollout = world.rollout
    if rollout.config_hash == change.to.config_hash and rollout.settled:
        run = "runs" if rollout.ready == 1 else "run"
        why = f"{counted(rollout.ready, 'pod')} {run} {change.knob}={change.to_value}"
        baking = moved(change, ChangeState.BAKING, why=why, now=world.now, limit=world.strategy.bake)
        return baking.updated(canary_ref=None)
    if late(change, now=world.now):
        why = rollout.unschedulable or "the pods with the new configuration did not become ready"
        # Without a node the candidate was never tested.
        blame = None if rollout.unschedulable else False
        return back(change, f"promotion timed out: {why}", world=world, harmful=blame)
    waited = timedelta() if change.state_since is None else world.now - change.state_since
    if rollout.unschedulable and rollout.config_hash == change.to.config_hash:
        if change.canary_ref is not None and waited >= ROOM_WITHIN:
            return change.updated(canary_ref=None)
        if change.baseline_ref is not None and waited >= 2 * ROOM_WITHIN:
            return change.updated(baseline_ref=None)
    return change


def _stands_still(change: ActiveChange, world: World) -> bool:
    """Whether no pod has become ready for as long as one may take: the others would not, either."""
    moments = [moment for moment in (change.state_since, world.rollout.newest_since) if moment is not None]
    return bool(moments) and world.now - max(moments) >= world.strategy.provisioning_deadline


def _timed_out(world: World, *, pods: int) -> str:
    return f"provisioning timed out after {format_duration(pods * world.strategy.provisioning_deadline)}"


def _verifying(change: ActiveChange, what: str, *, world: World) -> ActiveChange:
    why = f"{what} with {change.knob}={change.to_value}"
    return moved(change, ChangeState.VERIFYING, why=why, now=world.now, limit=VERIFY_WITHIN)


def _unschedulable(variant: Variant | None) -> str:
    return "" if variant is None else variant.rollout.unschedulable
