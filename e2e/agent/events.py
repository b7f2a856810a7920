"""Events about pods, written beside the work: a lost event must never hold or break a pod.

The same event again is counted instead of repeated, and a count is written at most every ten seconds: a probe that
fails every second is one object, not hundreds.
Must not: raise, or be waited for.
"""

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Final

from e2e.agent.api import ApiClient, ApiError, ConnectionFailed
from e2e.agent.objects import Object, rfc3339, uid_of, utc_now

_COUNT_EVERY: Final = 10.0
_LONGEST_QUEUE: Final = 1000
_LONGEST_MESSAGE: Final = 1024

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Series:
    path: str
    count: int
    written_at: float


class EventRecorder:
    """Queues events; `run` writes them."""

    def __init__(self, api: ApiClient, *, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._queue: asyncio.Queue[Object] = asyncio.Queue(_LONGEST_QUEUE)
        self._series: dict[tuple[str, str, str, str], _Series] = {}

    def emit(self, pod: Object, *, kind: str, reason: str, message: str, container: str = "") -> None:
        """Say something about a pod: `kind` is Normal or Warning."""
        now = rfc3339(utc_now())
        involved = {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": pod["metadata"]["namespace"],
            "name": pod["metadata"]["name"],
            "uid": uid_of(pod),
        } | ({"fieldPath": f"spec.containers{{{container}}}"} if container else {})
        event = {
            "metadata": {
                "name": f"{pod['metadata']['name']}.{uuid.uuid4().hex[:16]}",
                "namespace": pod["metadata"]["namespace"],
            },
            "involvedObject": involved,
            "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node_name,
            "type": kind,
            "reason": reason,
            "message": message[:_LONGEST_MESSAGE],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            logger.warning("event dropped: %s %s", reason, message)

    def forget(self, pod: Object) -> None:
        """Drop the counts of a pod that is gone."""
        self._series = {key: series for key, series in self._series.items() if key[0] != uid_of(pod)}

    async def run(self) -> None:
        """Write events for ever."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except (ApiError, *ConnectionFailed) as error:
                logger.info("event lost: %s: %r", event["message"], error)

    async def _write(self, event: Object) -> None:
        involved = event["involvedObject"]
        key = (involved["uid"], involved.get("fieldPath", ""), event["reason"], event["message"])
        series = self._series.get(key)
        if series is None:
            folder = f"/api/v1/namespaces/{involved['namespace']}/events"
            await self._api.post(folder, event)
            self._series[key] = _Series(f"{folder}/{event['metadata']['name']}", 1, time.monotonic())
            return
        series.count += 1
        if time.monotonic() - series.written_at >= _COUNT_EVERY:
            series.written_at = time.monotonic()
            await self._api.patch(series.path, {"count": series.count, "lastTimestamp": event["lastTimestamp"]})
