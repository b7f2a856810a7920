"""Services that need no decision in a tick: all was well with them at the last one, and nothing has happened since.

A decision about such a service reads a whole state window and ends where it began. It is made once in two of them; what
shows in no queue is noticed by as much later. Apart from `fleet_loop`, which asks.
Must not: let a service rest that anything is known about to have changed.
"""

import zlib
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from math import floor
from typing import Final

from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import DeploymentView, PodView, ServiceEntry
from vllm_autotuner.control.run.service_tick import Decided
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.guardrails.mode_ceiling import Limits
from vllm_autotuner.observation.quiet_pods import PodName
from vllm_autotuner.planning.worth import MET

__all__ = ["CalmServices"]

CALM: Final = MET | {DiagnosisClass.IDLE}
"""Classes in which nothing is wanting."""
WINDOWS: Final = 2
"""State windows for which a service rests. Our choice: decision 18."""
_HASHES: Final = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a decision that ended where it began was made from."""

    resource_version: str
    pods: tuple[PodView, ...]
    deployments: tuple[DeploymentView, ...]
    limits: Limits
    at: datetime
    window: float
    turn: int
    """Number of the rest, counted from this namespace's own beginning."""


class CalmServices:
    """By uid: what a service was when it needed nothing."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def keep_only(self, uids: Set[str]) -> None:
        """Forget what no longer exists."""
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}

    def note(self, decided: Decided, *, fleet: RegistrySnapshot) -> None:
        """Take note of a decision that was carried out."""
        if not _is_calm(decided):
            return
        window, now = decided.inputs.observation.window, decided.inputs.now
        self._seen[decided.entry.uid] = _Seen(
            resource_version=decided.entry.resource_version,
            pods=fleet.pods_of(decided.key),
            deployments=fleet.deployments_of(decided.key),
            limits=decided.inputs.operator.limits,
            at=now,
            window=window,
            turn=_turn(decided.key.namespace, window=window, at=now.timestamp()),
        )

    def forget(self, uid: str) -> None:
        """Let this one rest no more: it was decided."""
        self._seen.pop(uid, None)

    def decided_at(self, uid: str) -> datetime | None:
        """When a service that has rested since then was decided last; None for one that has not."""
        seen = self._seen.get(uid)
        return seen.at if seen is not None else None

    def rests(
        self, entry: ServiceEntry, quiet: Set[PodName], *, fleet: RegistrySnapshot, limits: Limits, at: float
    ) -> bool:
        """Whether a service needs no decision at `at` (Unix seconds). `quiet`: the pods in which nothing waits."""
        seen = self._seen.get(entry.uid)
        if seen is None or seen.resource_version != entry.resource_version or seen.limits != limits:
            return False
        key = Key(entry.namespace, entry.name)
        if seen.turn != _turn(key.namespace, window=seen.window, at=at):
            return False
        same = fleet.pods_of(key) == seen.pods and fleet.deployments_of(key) == seen.deployments
        return same and all(PodName(pod.namespace, pod.name) in quiet for pod in seen.pods)


def _is_calm(decided: Decided) -> bool:
    """Whether all is well with a service of our own, and this decision changes and awaits nothing."""
    decision, status = decided.decision, decided.service.status
    return (
        decided.adopted is None  # its Deployment and pods are read anew in each tick: no watch tells of them
        and decision.status == status
        and status.active_change is None
        and decision.turn is None
        and decision.history.candidate is None
        and decision.diagnosis.primary in CALM
        and decided.inputs.workload.rollout.settled
    )


def _turn(namespace: str, *, window: float, at: float) -> int:
    # Services of a namespace together, because they share their questions; namespaces spread over the time.
    return floor(at / (WINDOWS * window) - zlib.crc32(namespace.encode()) / _HASHES)
