"""Which pods of a service are ready, which are starting, and why one fails to start.

Pure: why an engine ended was looked up before (`crash_causes`).
Must not: read from the API, or guess.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.control.read.crash_causes import CrashCauses, has_crashed
from vllm_autotuner.control.read.views import PodView
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason
from vllm_autotuner.observation.pod_starts import PodStart, PodsView

__all__ = ["pods_view"]

UNSCHEDULABLE_AFTER: Final = timedelta(seconds=60)
"""A pod that no node takes at first may be placed when another one ends, or a node joins. Our choice, unmeasured."""
NEVER_READY_AFTER: Final = timedelta(minutes=30)
"""Without a crash and still not ready. Loading hundreds of gigabytes takes 10 minutes and more. Our choice."""
PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
"""Waiting reasons of a kubelet that cannot get the image."""
STARTING_AGAIN: Final = frozenset({"CrashLoopBackOff"})
"""Waiting reasons that say nothing about why."""


def pods_view(pods: Sequence[PodView], *, warm_up: timedelta, causes: CrashCauses, now: datetime) -> PodsView:
    """Return for each pod that is not being deleted whether it is ready, starting, or failing to start.

    Pods of one configuration fail alike: the first that crashed speaks for the others.
    """
    staying = [pod for pod in pods if not pod.deleting]
    known: dict[str | None, StartupFailure] = {}
    for pod in staying:
        if has_crashed(pod) and pod.config_hash not in known:
            known[pod.config_hash] = causes.of(pod)
    starts = (
        PodStart(
            name=pod.name,
            ready_for=_age(pod.ready_since, now=now) if pod.ready else None,
            failure=None if pod.ready else _failure(pod, cause=known.get(pod.config_hash), now=now),
        )
        for pod in staying
    )
    return PodsView(pods=tuple(starts), warm_up=warm_up.total_seconds())


def _failure(pod: PodView, *, cause: StartupFailure | None, now: datetime) -> StartupFailure | None:
    age = _age(pod.created, now=now)
    waiting = pod.waiting_reason or ""
    if waiting in PULLING:
        return StartupFailure(reason=StartupReason.IMAGE_PULL, message=f"{pod.name}: {waiting}")
    if pod.unschedulable and age is not None and age >= UNSCHEDULABLE_AFTER.total_seconds():
        return StartupFailure(reason=StartupReason.UNSCHEDULABLE, message=pod.unschedulable)
    if has_crashed(pod):
        return cause
    if waiting and waiting not in STARTING_AGAIN:
        return StartupFailure(reason=StartupReason.UNKNOWN, message=f"{pod.name} is waiting: {waiting}")
    if age is not None and age >= NEVER_READY_AFTER.total_seconds() and not pod.unschedulable:
        message = f"{pod.name} is not ready after {age / 60:.0f} minutes and has not crashed"
        return StartupFailure(reason=StartupReason.UNKNOWN, message=message)
    return None


def _age(since: datetime | None, *, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())
