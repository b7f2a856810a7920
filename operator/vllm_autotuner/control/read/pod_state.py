"""Which pods of a service are ready, which are starting, and why one fails to start.

The only API reads are the logs of crashed pods, one per configuration: pods of one template fail alike.
Must not: write, or guess. A failure that neither the pod's status nor its log explains is `Unknown`.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError
from vllm_autotuner.control.read.views import PodView
from vllm_autotuner.engine.startup_log import StartupFailure, StartupReason, parse_startup_failure
from vllm_autotuner.observation.pod_starts import PodStart, PodsView

__all__ = ["has_crashed", "how_it_ended", "pods_view"]

CRASH_LOG_BYTES: Final = 64 * 1024
"""The root cause of a failed start was seen up to 7.2 KiB before the end of the log, with one worker. Each further
worker prints its own traceback: room for eight."""
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
OUT_OF_MEMORY: Final = "OOMKilled"
"""The termination reason of a container that went over its memory limit: host memory, not the GPU's."""

logger = logging.getLogger(__name__)


async def pods_view(pods: Sequence[PodView], *, warm_up: timedelta, cluster: Cluster, now: datetime) -> PodsView:
    """Return for each pod that is not being deleted whether it is ready, starting, or failing to start."""
    staying = [pod for pod in pods if not pod.deleting]
    causes: dict[str | None, StartupFailure] = {}
    for pod in staying:
        if has_crashed(pod) and pod.config_hash not in causes:
            causes[pod.config_hash] = await _crash_cause(pod, cluster=cluster)
    starts = (
        PodStart(
            name=pod.name,
            ready_for=_age(pod.ready_since, now=now) if pod.ready else None,
            failure=None if pod.ready else _failure(pod, cause=causes.get(pod.config_hash), now=now),
        )
        for pod in staying
    )
    return PodsView(pods=tuple(starts), warm_up=warm_up.total_seconds())


async def _crash_cause(pod: PodView, *, cluster: Cluster) -> StartupFailure:
    """Why the engine of a crashed pod did not start, quoted from its log where possible."""
    text = ""
    for previous in (True, False):
        try:
            text = await cluster.pod_log(
                pod.namespace, pod.name, pod.container, previous=previous, tail_bytes=CRASH_LOG_BYTES
            )
        except ClusterError as error:
            logger.info("failed to read crash log", extra={"pod": pod.name, "error": str(error)})
            continue
        if (failure := parse_startup_failure(text)) is not None:
            return failure
    ended = pod.last_termination
    if ended is not None and ended.reason == OUT_OF_MEMORY:
        message = "the container exceeded its memory limit (host memory, not GPU memory)"
        return StartupFailure(reason=StartupReason.OUT_OF_MEMORY, message=message)
    # The part of the log that the kubelet keeps is short, but better than an exit code; a whole log includes it.
    if not text and ended is not None and (failure := parse_startup_failure(ended.message)) is not None:
        return failure
    return StartupFailure(reason=StartupReason.UNKNOWN, message=how_it_ended(pod))


def has_crashed(pod: PodView) -> bool:
    """Whether its engine ended at least once and has not come back since."""
    return not pod.ready and pod.last_termination is not None and pod.restarts > 0


def how_it_ended(pod: PodView) -> str:
    """The last exit of the engine as the kubelet reports it; empty when it has not exited yet."""
    ended = pod.last_termination
    if pod.restarts == 0 or ended is None:
        return ""
    code = "unknown" if ended.exit_code is None else str(ended.exit_code)
    return f"{pod.name} terminated with exit code {code} ({pod.restarts} restart(s))"


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
