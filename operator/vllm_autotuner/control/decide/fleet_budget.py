"""What the fleet has under way and how much it may have: the figures that `guardrails.concurrency` decides by.

Apart from the loop, because it is a sum over all services. Must not: remember, or look at anything but objects.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, ChangeState
from vllm_autotuner.change.effective import settled_knobs
from vllm_autotuner.change.machine import PAUSED
from vllm_autotuner.change.trial_deployments import gpus_added
from vllm_autotuner.guardrails.concurrency import Asking, Running, Share, next_to_begin

__all__ = ["Fleet", "fleet_of"]

OVERDUE: Final = timedelta(minutes=10)
"""A deadline is acted upon within a tick. Past it for so long, nobody can act on this object (a permission is missing,
it trips a defect of ours), and it must not keep a whole fleet waiting. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All services together."""

    running: tuple[Running, ...]
    most_changes: int
    """Changes under way at once."""
    most_gpus: int
    """GPUs that changes may take beside those that serve."""

    def begin(self, asking: Iterable[Asking]) -> frozenset[str]:
        """Return the keys of those whose turn it is."""
        allowed = next_to_begin(asking, running=self.running, changes=self.most_changes, gpus=self.most_gpus)
        return frozenset(each.key for each in allowed)

    def why(self) -> str:
        """What those read who have to wait. The limits only: who runs changes by the minute, and is to be counted."""
        return (
            f"queued: the fleet allows at most {self.most_changes} concurrent change(s) and {self.most_gpus} extra "
            "GPU(s) (--max-concurrent-changes, --max-extra-gpus)"
        )


def fleet_of(
    services: Iterable[VLLMService | InvalidService], *, changes_at_once: Share, extra_gpus: Share, now: datetime
) -> Fleet:
    """Sum up the fleet. An object whose spec cannot be read counts with the change that it has under way."""
    running, count, gpus = [], 0, 0
    for service in services:
        count += 1
        status = service.status
        if status is None:
            continue
        if status.active_change is not None and _takes_a_turn(status.active_change, now=now):
            change = status.active_change
            running.append(Running(gpus=gpus_added(change), parked=_is_parked(change)))
        if isinstance(service, VLLMService):
            gpus += (status.replicas or 0) * (settled_knobs(service.spec, status).tensor_parallel_size or 1)
    return Fleet(running=tuple(running), most_changes=changes_at_once.of(count), most_gpus=extra_gpus.of(gpus))


def _takes_a_turn(change: ActiveChange, *, now: datetime) -> bool:
    """Whether others wait for it: not for half an hour in which it is only watched, nor for what does not end."""
    if change.state is ChangeState.BAKING:
        return False
    patience = timedelta() if change.state is ChangeState.ROLLING_BACK else OVERDUE
    return change.deadline is None or now < change.deadline + patience


def _is_parked(change: ActiveChange) -> bool:
    """Whether it stands still until a person lets it go on; its pods are up, and only their health is watched."""
    return change.state is ChangeState.HELD and change.state_reason == PAUSED
