"""Changes in progress and the limits of the whole fleet: the input of `guardrails.concurrency`.

Apart from `tick`, because it is a sum over all services. Must not: keep state, or read anything but the objects.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, ChangeState, Outcome, VLLMServiceStatus
from vllm_autotuner.change.effective import settled_knobs
from vllm_autotuner.change.machine import PAUSED
from vllm_autotuner.change.trial_deployments import gpus_added
from vllm_autotuner.guardrails.concurrency import Asking, Running, Share, next_to_begin

__all__ = ["Fleet", "Part", "fleet_of", "part_of"]

OVERDUE: Final = timedelta(minutes=10)
"""A passed deadline is handled within a tick. If it passed this long ago, the object cannot be handled (e.g. a missing
permission or a defect of the operator), and it must not block the whole fleet. Our choice."""
LONGEST_TURN: Final = timedelta(hours=24)
"""A change that began so long ago goes on, but no service waits for it any more: its phases are what its owner wrote,
and may last a day each. A rollout of 40 pods with the usual phases takes 14 h. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All services together."""

    running: tuple[Running, ...]
    most_changes: int
    """Limit of concurrent changes."""
    most_gpus: int
    """Limit of extra GPUs for changes, beyond those that serve."""
    failed: Mapping[str, datetime] = field(default_factory=dict)
    """By namespace, when one of its changes last ended without being kept."""

    def begin(self, asking: Iterable[Asking]) -> frozenset[str]:
        """Return the keys of the queued changes that may start now."""
        allowed = next_to_begin(
            asking, running=self.running, changes=self.most_changes, gpus=self.most_gpus, failed=self.failed
        )
        return frozenset(each.key for each in allowed)

    def why(self) -> str:
        """The message of a queued change. Limits only: the number of running changes varies every minute."""
        return (
            f"queued: the fleet allows at most {self.most_changes} concurrent change(s) and {self.most_gpus} extra "
            "GPU(s) (--max-concurrent-changes, --max-extra-gpus)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one service is in the fleet."""

    running: Running | None = None
    """Its change, while it counts against the limits."""
    gpus: int = 0
    """That serve."""
    namespace: str = ""
    failed_at: datetime | None = None
    """When a change of it last ended without being kept."""


def part_of(service: VLLMService | InvalidService, *, now: datetime) -> Part:
    """What this service is in the fleet. An object with an unreadable spec counts with its change in progress."""
    status = service.status
    if status is None:
        return Part()
    change = status.active_change
    counts = change is not None and _takes_a_turn(change, now=now)
    running = Running(gpus=gpus_added(change), parked=_is_parked(change)) if change is not None and counts else None
    part = Part(running=running, namespace=service.metadata.namespace, failed_at=_last_failure(status, now=now))
    if not isinstance(service, VLLMService):
        return part
    degree = settled_knobs(service.spec, status).tensor_parallel_size or 1
    return replace(part, gpus=(status.replicas or 0) * degree)


def fleet_of(parts: Sequence[Part], *, changes_at_once: Share, extra_gpus: Share) -> Fleet:
    """Sum up the fleet."""
    return Fleet(
        running=tuple(part.running for part in parts if part.running is not None),
        most_changes=changes_at_once.of(len(parts)),
        most_gpus=extra_gpus.of(sum(part.gpus for part in parts)),
        failed=_last_failures(parts),
    )


def _last_failures(parts: Iterable[Part]) -> Mapping[str, datetime]:
    found: dict[str, datetime] = {}
    for part in parts:
        if part.failed_at is not None:
            found[part.namespace] = max(part.failed_at, found.get(part.namespace, part.failed_at))
    return found


def _last_failure(status: VLLMServiceStatus, *, now: datetime) -> datetime | None:
    """None without one. An edited status may name a time to come: that would hold up its namespace until then."""
    ended = (one.finished_at for one in reversed(status.history) if one.outcome is not Outcome.SUCCEEDED)
    return next((at for at in ended if at is not None and at <= now), None)


def _takes_a_turn(change: ActiveChange, *, now: datetime) -> bool:
    """Whether it counts against the limit: not while it bakes, not when it is overdue, and a day at most."""
    if change.state is ChangeState.BAKING:
        return False
    if change.started_at is not None and now - change.started_at > LONGEST_TURN and not _is_parked(change):
        return False
    patience = timedelta() if change.state is ChangeState.ROLLING_BACK else OVERDUE
    return change.deadline is None or now < change.deadline + patience


def _is_parked(change: ActiveChange) -> bool:
    """Whether it is held until a user resumes it; its pods are up, and only their health is watched."""
    return change.state is ChangeState.HELD and change.state_reason == PAUSED
