"""Undoing a change: traffic first, then capacity, then what is left over; and what to do when that fails.

A canary that never reached the service's own pods is simply deleted: nothing else was touched. Once they follow it,
the old configuration must come up again before the new one goes. The Deployment never takes a serving pod away for one
that does not serve (maxUnavailable 0): a rollback that leads nowhere costs a person's attention, no request (G28, T24).
Must not: wait for metrics, leave, windows or budgets (G26).
"""

from vllm_autotuner.api.status import ActiveChange, ChangeState, ConfigRef, Outcome
from vllm_autotuner.change.edges import late, moved
from vllm_autotuner.change.world import Ending, Rollout, Step, World, reaches_the_service

__all__ = ["back", "roll_back"]


def back(change: ActiveChange, why: str, *, world: World, harmful: bool | None = None) -> ActiveChange:
    """Undo it. `harmful`: True, the candidate did harm; False, it did not help; None, it was never judged."""
    # Pods follow one another, each with a start-up of its own.
    pods = max(1, world.rollout.replicas) if reaches_the_service(change) else 1
    limit = pods * world.strategy.provisioning_deadline
    undoing = moved(change, ChangeState.ROLLING_BACK, why=why, now=world.now, limit=limit)
    return undoing.updated(harmful=harmful, clock_stopped_at=None)


def roll_back(change: ActiveChange, world: World) -> Step:
    """Wait until the old configuration serves alone; give up at the deadline, with what serves by then."""
    if not reaches_the_service(change):
        gone = world.variants.canary is None and world.variants.baseline is None
        # What cannot be deleted now is deleted later; the service itself was never touched.
        return Step(change, _undone(change) if gone or late(change, now=world.now) else None)
    if world.rollout.config_hash == change.from_.config_hash and world.rollout.settled:
        return Step(change, _undone(change))
    return Step(change, _given_up(change, world.rollout) if late(change, now=world.now) else None)


def _undone(change: ActiveChange) -> Ending:
    return Ending(outcome=Outcome.ROLLED_BACK, reason=change.state_reason)


def _given_up(change: ActiveChange, rollout: Rollout) -> Ending:
    """Stay with the side that serves. Where the old one has begun to, Kubernetes may still get the rest of it up."""
    why = rollout.crashed or rollout.unschedulable or "its pods do not become ready"
    newest = rollout.ready - rollout.older_ready
    stays: ConfigRef = change.from_
    if rollout.config_hash == change.from_.config_hash and rollout.older_ready > 0 and newest <= 0:
        stays = change.to
    text = f"{change.knob}={change.to_value}" if stays is change.to else "what is left of both"
    reason = f"the old configuration does not serve any more ({why}); {text} goes on. It was to be undone because: "
    return Ending(outcome=Outcome.ROLLBACK_FAILED, reason=reason + change.state_reason, serving=stays)
