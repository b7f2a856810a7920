"""Writes what was decided into the status of a service, and only then tells of it: intent stands before effect.

Apart from the fleet loop, which goes from service to service: here is what becomes of one decision at the API server,
and of a leader that died between the write and the telling (T01, T03). Made anew whenever this process begins to lead.
Must not: decide, or touch a workload.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from vllm_autotuner.api.annotations import PREFIX
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, Outcome, VLLMServiceStatus
from vllm_autotuner.change.world import Ending
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import Conflict, NotFound, Unavailable
from vllm_autotuner.control.decide.unreadable_object import unreadable
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.read.views import Body, ServiceEntry
from vllm_autotuner.control.write.announcements import announcements, standing
from vllm_autotuner.control.write.event_outbox import Outbox

__all__ = ["StatusWriter"]

ATTEMPTS: Final = 5
"""At one write of a status, while a neighbour writes what we do not read. As client-go's RetryOnConflict; without its
pauses, for between two attempts there is a read."""
NEIGHBOURLY: Final = frozenset({"resourceVersion", "managedFields", "annotations"})
"""Parts of the metadata that change with every write, or by writes of others."""


class StatusWriter:
    """Keeps of which services everything that their status tells has been told, and what waits to be."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        registry: Registry,
        wall: Callable[[], datetime],
        count_ending: Callable[[ActiveChange, Outcome], None],
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._wall = wall
        self._count_ending = count_ending
        self._told: set[str] = set()
        self.outbox = Outbox(cluster=cluster, wall=wall)

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self._told &= uids
        self.outbox.keep_only(uids)

    async def persist(
        self,
        entry: ServiceEntry,
        service: VLLMService,
        after: VLLMServiceStatus,
        *,
        ended: tuple[ActiveChange, Ending] | None,
    ) -> tuple[VLLMService, ServiceEntry]:
        """Persist the decision, then say what it means. Raises Conflict when the object is another one by now."""
        try:
            written = await self._write(entry, service.status, after)
        except Unavailable:
            # Perhaps it was carried out and the answer was lost: then nobody has told yet what stands there (T03).
            self._told.discard(entry.uid)
            raise
        if written is entry:
            return service, entry
        events = announcements(service, after, ended=ended)
        await self.outbox.post(events, about=entry, status=service.status)
        if ended is not None:
            change, ending = ended
            self._count_ending(change, ending.outcome)
        found = written.service
        return (found if isinstance(found, VLLMService) else service), written

    async def catch_up(self, entry: ServiceEntry, status: VLLMServiceStatus) -> None:
        """Tell what waits to be told, and what a leader may have written and not lived to tell."""
        news = () if entry.uid in self._told else tuple(standing(status, now=self._wall()))
        self._told.add(entry.uid)
        if news or self.outbox.waiting(entry.uid, status):
            await self.outbox.post(news, about=entry, status=status)

    async def report_unreadable(self, entry: ServiceEntry, service: InvalidService) -> None:
        """Say on the object what cannot be read of its status, and forget nothing that it remembers."""
        before, now = entry.body["status"], self._wall()
        after = unreadable(service, before, now=now)
        if after != before:
            self._seen(
                await self._cluster.write_status(
                    entry.namespace, entry.name, after, resource_version=entry.resource_version
                )
            )

    async def read(self, key: Key) -> ServiceEntry:
        """What the API server has now. Raises NotFound when the object was deleted since."""
        return self._seen(await self._cluster.read_service(key.namespace, key.name))

    async def is_unchanged(self, key: Key, entry: ServiceEntry) -> bool:
        """Whether the object still asks for the same: neighbours may write its metadata all the time."""
        one, other = entry.body, (await self.read(key)).body
        return (one["metadata"]["uid"], one["spec"], one.get("status")) == (
            other["metadata"]["uid"],
            other["spec"],
            other.get("status"),
        )

    async def _write(self, entry: ServiceEntry, before: VLLMServiceStatus, after: VLLMServiceStatus) -> ServiceEntry:
        """Write the status if it says anything new."""
        wire = to_wire(after)
        if wire == to_wire(before) and entry.body.get("status"):
            return entry
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                body = await self._cluster.write_status(
                    entry.namespace, entry.name, wire, resource_version=entry.resource_version
                )
                break
            except Conflict:
                if not attempts_left:
                    raise
                fresh = await self.read(Key(entry.namespace, entry.name))
                if _read_by_us(fresh.body) != _read_by_us(entry.body):
                    raise
                entry = fresh
        # Our own write must not wait for the watch to come round: the next tick would decide on the old status.
        return self._seen(body)

    def _seen(self, body: Body) -> ServiceEntry:
        """What the registry makes of an answer. Raises NotFound when the object was deleted since."""
        self._registry.services.see(body)
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        found = self._registry.services.get(key)
        if found is None:
            raise NotFound(f"{'/'.join(key)} is gone", reason="Deleted")
        return found


def _read_by_us(body: Body) -> tuple[Any, ...]:
    """What a decision rests on: while that is as it was, the decision stands, whoever else wrote the object."""
    metadata = body["metadata"]
    requests = {name: text for name, text in (metadata.get("annotations") or {}).items() if name.startswith(PREFIX)}
    own = {name: value for name, value in metadata.items() if name not in NEIGHBOURLY}
    return own, requests, body["spec"], body.get("status")
