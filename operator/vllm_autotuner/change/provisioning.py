"""Getting pods with a new configuration to serve: a canary beside the others, or the service's own pods.

Apart from the machine, because here lies what depends on free devices. Nobody has to have one: a canary that finds no
node ends the change without having touched the service (T19), and pods that exist for a trial only give theirs up
when the service's own need them. Must not: judge what the pods do once they serve.
"""

from datetime import timedelta
from typing import Final

from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import ActiveChange, ChangeState, ConfigRef, Outcome
from vllm_autotuner.change.edges import late, moved
from vllm_autotuner.change.rollback import back
from vllm_autotuner.change.world import Ending, Step, Variant, World

__all__ = ["promote", "provision"]

VERIFY_WITHIN: Final = timedelta(minutes=3)
"""How long the start-up log may stay unreadable before the pods' arguments alone must do. Guardrails 8.1."""
UNSCHEDULABLE_FOR: Final = timedelta(minutes=5)
"""A trial that no node takes for so long is given up: clusters that add GPU nodes by themselves mostly have by then.
Our choice, unmeasured."""
ROOM_WITHIN: Final = timedelta(seconds=60)
"""How long the service's own pods wait for a node before a trial gives up its device for them. Our choice: the
scheduler tries again at once when a device is free, so a minute means that none is."""


def provision(change: ActiveChange, world: World) -> Step:
    """Wait until the pods with the new configuration serve."""
    if change.strategy is StrategyType.CANARY:
        return _provision_trial(change, world)
    if world.rollout.config_hash == change.to.config_hash and world.rollout.settled:
        return Step(_verifying(change, f"{world.rollout.ready} pod(s) ready", world=world))
    if late(change, now=world.now):
        why = world.rollout.unschedulable or "the new pods did not become ready in time"
        return Step(back(change, f"provisioning deadline: {why}", world=world, harmful=False))
    return Step(change)


def _provision_trial(change: ActiveChange, world: World) -> Step:
    canary, baseline = world.variants.canary, world.variants.baseline
    waited = timedelta() if change.state_since is None else world.now - change.state_since
    overdue = late(change, now=world.now)
    no_room = overdue or waited >= UNSCHEDULABLE_FOR
    ready = _serves(canary, change.to)
    if ready and (change.baseline_ref is None or _serves(baseline, change.from_)):
        return Step(_verifying(change, "the canary is ready", world=world))
    if change.baseline_ref is not None:
        lost = baseline is not None and bool(baseline.rollout.crashed)
        wanted = no_room and not ready and _unschedulable(canary)
        hopeless = ready and (overdue or (no_room and _unschedulable(baseline)))
        if lost or wanted or hopeless:
            # The canary can be compared with the service's own pods as well; it may now have the device.
            return Step(change.updated(baseline_ref=None, state_since=world.now))
    if no_room and (why := _unschedulable(canary)):
        # The scheduler's words come last: they are long, and what is cut off must not be that nothing happened.
        reason = f"Unschedulable: no node takes one more pod of this service, which was not touched ({why})"
        return Step(change, Ending(outcome=Outcome.REJECTED, reason=reason))
    if overdue:
        why = "provisioning deadline: the canary did not become ready in time"
        return Step(back(change, why, world=world, harmful=False))
    return Step(change)


def promote(change: ActiveChange, world: World) -> ActiveChange:
    """Wait until all of the service's own pods have followed the canary."""
    rollout = world.rollout
    if rollout.config_hash == change.to.config_hash and rollout.settled:
        why = f"{rollout.ready} pod(s) run {change.knob}={change.to_value}"
        baking = moved(change, ChangeState.BAKING, why=why, now=world.now, limit=world.strategy.bake)
        return baking.updated(canary_ref=None)
    if late(change, now=world.now):
        why = rollout.unschedulable or "the pods did not become ready in time"
        # Without a node nobody knows what the candidate would have done.
        blame = None if rollout.unschedulable else False
        return back(change, f"promotion deadline: {why}", world=world, harmful=blame)
    waited = timedelta() if change.state_since is None else world.now - change.state_since
    if rollout.unschedulable and rollout.config_hash == change.to.config_hash:
        if change.canary_ref is not None and waited >= ROOM_WITHIN:
            return change.updated(canary_ref=None)
        if change.baseline_ref is not None and waited >= 2 * ROOM_WITHIN:
            return change.updated(baseline_ref=None)
    return change


def _verifying(change: ActiveChange, what: str, *, world: World) -> ActiveChange:
    why = f"{what} with {change.knob}={change.to_value}"
    return moved(change, ChangeState.VERIFYING, why=why, now=world.now, limit=VERIFY_WITHIN)


def _serves(variant: Variant | None, wanted: ConfigRef) -> bool:
    return variant is not None and variant.rollout.config_hash == wanted.config_hash and variant.rollout.settled


def _unschedulable(variant: Variant | None) -> str:
    return "" if variant is None else variant.rollout.unschedulable
