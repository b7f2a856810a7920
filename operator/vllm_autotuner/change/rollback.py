"""The rollback of a change, and what happens if it fails.

A canary that was not promoted is simply deleted, as nothing else was touched. After promotion the old configuration
must be ready again before pods with the new one stop. The Deployment never replaces a serving pod before its successor
is ready (maxUnavailable 0): a failed rollback needs a person's attention but loses no requests (G28, T24).
Must not: wait for metrics, approval, change windows or budgets (G26).
"""

from vllm_autotuner.api.status import ActiveChange, ChangeState, ChangeTarget, ConfigRef, Outcome
from vllm_autotuner.change.edges import late, moved
from vllm_autotuner.change.world import Ending, Rollout, Step, World, reaches_the_service

__all__ = ["back", "roll_back"]


def back(change: ActiveChange, why: str, *, world: World, harmful: bool | None = None) -> ActiveChange:
    """Begin the rollback. `harmful`: True if the candidate did harm, False if it did not help, None if not judged."""
    # Pods are replaced one after the other, each with its own start-up time.
    pods = max(1, world.rollout.replicas) if reaches_the_service(change) else 1
    limit = pods * world.strategy.provisioning_deadline
    undoing = moved(change, ChangeState.ROLLING_BACK, why=why, now=world.now, limit=limit)
    return undoing.updated(harmful=harmful, clock_stopped_at=None)


def roll_back(change: ActiveChange, world: World) -> Step:
    """Wait until only the old configuration serves, if it ever did; at the deadline give up and keep what serves."""
    if not reaches_the_service(change):
        gone = world.variants.canary is None and world.variants.baseline is None
        # Pods that cannot be deleted now are deleted later; the service itself was never changed.
        return Step(change, _undone(change) if gone or late(change, now=world.now) else None)
    if _is_restored(change, world.rollout):
        return Step(change, _undone(change))
    failed = late(change, now=world.now) and _was_tried(change, world)
    return Step(change, _given_up(change, world.rollout) if failed else None)


def _is_restored(change: ActiveChange, rollout: Rollout) -> bool:
    """Whether the service is as it was before the change."""
    if rollout.config_hash != change.from_.config_hash:
        return False
    # The old configuration did not start before either: where no pod with the new one serves, nothing is lost.
    return rollout.settled or (change.target is ChangeTarget.START and rollout.older_ready == 0)


def _was_tried(change: ActiveChange, world: World) -> bool:
    """Whether this operator process had all the time that the rollback may take.

    The deadline may have passed while none was running: what was not tried has not failed.
    """
    began, deadline = change.state_since, change.deadline
    if world.watching_since is None or began is None or deadline is None:
        return True
    return world.now - world.watching_since >= deadline - began


def _undone(change: ActiveChange) -> Ending:
    return Ending(outcome=Outcome.ROLLED_BACK, reason=change.state_reason)


def _given_up(change: ActiveChange, rollout: Rollout) -> Ending:
    """Keep the side that serves. If some old pods are ready again, Kubernetes may still bring up the rest."""
    why = rollout.crashed or rollout.unschedulable or "its pods did not become ready"
    newest = rollout.ready - rollout.older_ready
    stays: ConfigRef = change.from_
    if rollout.config_hash == change.from_.config_hash and rollout.older_ready > 0 and newest <= 0:
        stays = change.to
    text = f"{change.knob}={change.to_value}" if stays is change.to else "the pods of both configurations"
    reason = f"rollback failed: the old configuration does not serve ({why}); keeping {text}. Reason of the rollback: "
    return Ending(outcome=Outcome.ROLLBACK_FAILED, reason=reason + change.state_reason, serving=stays)
