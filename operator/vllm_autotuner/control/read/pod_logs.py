"""Reads the logs of pods within a budget of time: many at once, and none from a node that has just not answered.

Apart from `cluster.adapter`, which makes one request: a kubelet that is gone costs a request its whole timeout. A dozen
of them, read one after the other, took longer than the liveness probe waits, and a rollback waited behind them.
Must not: parse a log, or decide what a missing one means.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from vllm_autotuner.budgets import LOG_READ_SECONDS, LOG_TICK_SECONDS
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError, Unavailable
from vllm_autotuner.control.read.views import PodView

__all__ = ["PodLogs"]

SILENT_FOR: Final = 120.0
"""Seconds for which a node that did not answer is not asked for logs: a node that comes back does so in minutes, and
the pod's status says as well that its engine ended. Our choice."""
INTERNAL_ERROR: Final = 500
"""The first HTTP status by which the API server says that a node does not answer."""
READS_AT_ONCE: Final = 16
"""As many as writes: more would only queue for connections."""

logger = logging.getLogger(__name__)


class PodLogs:
    """The logs of the pods of one cluster, for one leader."""

    def __init__(self, cluster: Cluster, *, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._gate = asyncio.Semaphore(READS_AT_ONCE)
        self._silent: dict[str, float] = {}
        self._spent = 0.0

    def begin_tick(self) -> None:
        """Give the tick that begins its whole budget."""
        self._spent = 0.0
        self._silent = {node: until for node, until in self._silent.items() if until > self._monotonic()}

    async def within_budget(self, work: Iterable[Awaitable[None]]) -> None:
        """Do all of it at once, and leave undone what the rest of this tick's budget does not suffice for."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(0.0, LOG_TICK_SECONDS.limit - self._spent)):
                await asyncio.gather(*work)
        except TimeoutError:
            LOG_TICK_SECONDS.exceeded()
            logger.warning("no time left to read logs in this tick", extra={"seconds": LOG_TICK_SECONDS.limit})
        finally:
            self._spent += clock() - began

    async def text(
        self, pod: PodView, *, previous: bool = False, head_bytes: int | None = None, tail_bytes: int | None = None
    ) -> str | None:
        """Part of the log of a pod's engine; None when there is none, or none to be had now.

        `previous`: of the instance before the last restart. Exactly one of `head_bytes` and `tail_bytes` is given.
        """
        if self._is_silent(pod.node):
            return None
        try:
            async with self._gate, asyncio.timeout(LOG_READ_SECONDS.limit):
                return await self._cluster.pod_log(
                    pod.namespace,
                    pod.name,
                    pod.container,
                    previous=previous,
                    head_bytes=head_bytes,
                    tail_bytes=tail_bytes,
                )
        except TimeoutError:
            LOG_READ_SECONDS.exceeded()
            self._note(pod, f"no answer within {LOG_READ_SECONDS.limit} s", silent=True)
        except ClusterError as error:
            # With 429 it is the API server that has no time, not the node.
            its_own = error.status is not None and error.status < INTERNAL_ERROR
            self._note(pod, str(error), silent=isinstance(error, Unavailable) and not its_own)
        return None

    def _is_silent(self, node: str) -> bool:
        return self._monotonic() < self._silent.get(node, 0.0)

    def _note(self, pod: PodView, why: str, *, silent: bool) -> None:
        logger.info("failed to read log", extra={"pod": pod.name, "node": pod.node, "error": why})
        if silent and pod.node:
            self._silent[pod.node] = self._monotonic() + SILENT_FOR
