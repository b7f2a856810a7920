"""The Kubernetes API for an operator that only looks (`run --read-only`): the same reads, and no write.

A status counts as written in this process alone, and an Event is a line in the log, so that no caller is told apart.
Effects are: what is not stored has none, and callers ask `writes` before they touch a workload.
Must not: send anything but GET, or decide.
"""

import logging
from datetime import datetime
from typing import ClassVar

from typing_extensions import override

from vllm_autotuner.cluster.adapter import Cluster, Object
from vllm_autotuner.cluster.errors import Conflict
from vllm_autotuner.cluster.events import Event

__all__ = ["ReadOnlyCluster"]

logger = logging.getLogger(__name__)


class ReadOnlyCluster(Cluster):
    """Reads as `Cluster` does. Statuses and Events end in the log; every other write raises Refused."""

    writes: ClassVar[bool] = False

    @override
    async def write_status(self, namespace: str, name: str, status: Object, *, resource_version: str) -> Object:
        """Return the object as it would be stored, at the version that it has.

        Raises Conflict when anyone wrote the object since, and NotFound.
        """
        live = await self.read_service(namespace, name)
        if live["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"VLLMService {namespace}/{name} was written since it was read", reason="Conflict")
        diagnosis = status.get("diagnosis") or {}
        decided = {"diagnosis": diagnosis.get("class"), "note": diagnosis.get("message")}
        logger.info("read-only, status not written", extra={"service": f"{namespace}/{name}", **decided})
        return live | {"status": status}

    @override
    async def post_event(self, about: Object, event: Event, *, now: datetime) -> None:
        """Log what the Event would say."""
        where = f"{about['metadata']['namespace']}/{about['metadata']['name']}"
        told = {"service": where, "reason": event.reason, "note": event.note}
        logger.info("read-only, event not posted", extra=told)
