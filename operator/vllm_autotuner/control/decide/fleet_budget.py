"""Changes in progress and the limits of the whole fleet: the input of `guardrails.concurrency`.

Apart from `tick`, because it is a sum over all services. Must not: keep state, or read anything but the objects.
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
"""A passed deadline is handled within a tick. If it passed this long ago, the object cannot be handled (e.g. a missing
permission or a defect of the operator), and it must not block the whole fleet. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All services together."""

    running: tuple[Running, ...]
    most_changes: int
    """Limit of concurrent changes."""
    most_gpus: int
    """Limit of extra GPUs for changes, beyond those that serve."""

    def begin(self, asking: Iterable[Asking]) -> frozenset[str]:
        """Return the keys of the queued changes that may start now."""
        allowed = next_to_begin(asking, running=self.running, changes=self.most_changes, gpus=self.most_gpus)
        return frozenset(each.key for each in allowed)

    def why(self) -> str:
        """The message of a queued change. Limits only: the number of running changes varies every minute."""
        return (
            f"queued: the fleet allows at most {self.most_changes} concurrent change(s) and {self.most_gpus} extra "
            "GPU(s) (--max-concurrent-changes, --max-extra-gpus)"
        )


def fleet_of(
    services: Iterable[VLLMService | InvalidService], *, changes_at_once: Share, extra_gpus: Share, now: datetime
) -> Fleet:
    """Sum up the fleet. An object with an unreadable spec counts with its change in progress."""
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
    """Whether it counts against the limit: not while it bakes, and not when it is overdue."""
    if change.state is ChangeState.BAKING:
        return False
    patience = timedelta() if change.state is ChangeState.ROLLING_BACK else OVERDUE
    return change.deadline is None or now < change.deadline + patience


def _is_parked(change: ActiveChange) -> bool:
    """Whether it is held until a user resumes it; its pods are up, and only their health is watched."""
    return change.state is ChangeState.HELD and change.state_reason == PAUSED
