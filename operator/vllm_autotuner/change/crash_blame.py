"""Whether the end of an engine is the fault of the value under test.

Separate from the state machine, because engines end for other reasons as well: a sidecar that is not up yet, a hub that
does not answer, a node that restarts. So a cause that the log names counts at once, an unknown one with the second end,
and none while engines with the old configuration end as often. A candidate that never comes up meets its deadline.
"""

from vllm_autotuner.api.status import ActiveChange
from vllm_autotuner.change.world import Rollout, Variants, World, reaches_the_service

__all__ = ["baseline_crashed", "blamed_crash"]


def blamed_crash(change: ActiveChange, world: World) -> Rollout | None:
    """The rollout in which an engine ended because of the new configuration; None without one."""
    canary = world.variants.canary
    stable = (world.rollout,) if reaches_the_service(change) else ()
    tried = (*stable, canary.rollout) if canary is not None else stable
    return next((each for each in tried if _is_blamed(each, change, world)), None)


def baseline_crashed(variants: Variants) -> bool:
    """Whether the baseline pod is lost, and not only as long in coming up as the canary."""
    canary, baseline = variants.canary, variants.baseline
    if baseline is None or not baseline.rollout.crashed or not _keeps_crashing(baseline.rollout):
        return False
    return canary is None or canary.rollout.ended == 0 or canary.rollout.ended < baseline.rollout.ended


def _is_blamed(rollout: Rollout, change: ActiveChange, world: World) -> bool:
    # Until the new configuration is applied these are pods with the old one: they may have restarted weeks ago, or fail
    # to start for the very reason that the change removes.
    if rollout.config_hash != change.to.config_hash:
        return False
    return _keeps_crashing(rollout) and not _others_end_too(rollout, change, world)


def _keeps_crashing(rollout: Rollout) -> bool:
    """Whether its engine ended for a known reason, or more often than by accident."""
    return bool(rollout.crashed or rollout.died) and (rollout.explained or rollout.ended > 1)


def _others_end_too(rollout: Rollout, change: ActiveChange, world: World) -> bool:
    """Whether engines with the old configuration ended as often: the baseline, or any during the change."""
    baseline = world.variants.baseline
    if baseline is not None and baseline.rollout.ended >= max(1, rollout.ended):
        return True
    old = world.rollout.older_ended_at if reaches_the_service(change) else world.rollout.ended_at
    return rollout.ended == 1 and old is not None and change.started_at is not None and old >= change.started_at
