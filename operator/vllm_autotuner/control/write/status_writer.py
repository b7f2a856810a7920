"""Writes a decision into the status of a service, and posts its Events afterwards: intent is stored before effect.

Apart from `fleet_loop`, which goes from service to service: here one decision is written to the API server, also when
an earlier leader stopped between the write and the Events (T01, T03). Created anew when this process becomes leader.
Must not: decide, or touch a workload.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, Final

from vllm_autotuner.api.annotations import PREFIX
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, Outcome, VLLMServiceStatus, parse_status
from vllm_autotuner.api.status_size import fitted
from vllm_autotuner.change.world import Ending
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import Conflict, NotFound, Unavailable
from vllm_autotuner.control.decide.unreadable_object import unreadable
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.read.views import Body, ServiceEntry
from vllm_autotuner.control.write.announcements import announcements, standing
from vllm_autotuner.control.write.event_outbox import Outbox
from vllm_autotuner.control.write.lost_parts import MOST_TOLD, lost_parts

__all__ = ["StatusWriter"]

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5
"""Of one status write, while another controller writes fields that the operator does not read. As client-go's
RetryOnConflict, but without pauses: a read lies between two attempts."""
IGNORED_METADATA: Final = frozenset({"resourceVersion", "managedFields", "annotations"})
"""Parts of the metadata that change with every write, or by writes of other controllers."""


class StatusWriter:
    """Writes statuses, and keeps track of the services whose Events are all posted."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        registry: Registry,
        wall: Callable[[], datetime],
        count_ending: Callable[[ActiveChange, Outcome], None],
        wrote: Callable[[str], None] = lambda uid: None,
    ) -> None:
        """`wrote` is told the uid of each object whose status was written."""
        self._cluster = cluster
        self._registry = registry
        self._wall = wall
        self._count_ending = count_ending
        self._wrote = wrote
        self._told: set[str] = set()
        self._compared: set[str] = set()
        self.outbox = Outbox(cluster=cluster, wall=wall)

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self._told &= uids
        self._compared &= uids
        self.outbox.keep_only(uids)

    async def persist(
        self,
        entry: ServiceEntry,
        service: VLLMService,
        after: VLLMServiceStatus,
        *,
        ended: tuple[ActiveChange, Ending] | None,
    ) -> tuple[VLLMService, ServiceEntry]:
        """Write the decision, then post its Events. Raises Conflict when the object changed since it was read."""
        try:
            written = await self._write(entry, service.status, after)
        except Unavailable:
            # The write may have succeeded with the answer lost: then its Events are not posted yet (T03).
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
        """Post the queued Events, and those that an earlier leader may not have posted."""
        news = () if entry.uid in self._told else tuple(standing(status, now=self._wall()))
        self._told.add(entry.uid)
        if news or self.outbox.waiting(entry.uid, status):
            await self.outbox.post(news, about=entry, status=status)

    async def report_unreadable(self, entry: ServiceEntry, service: InvalidService) -> None:
        """Report an unreadable status in the object's conditions, and keep everything else in it."""
        before, now = entry.body["status"], self._wall()
        after = unreadable(service, before, now=now)
        if after != before:
            with self._forgotten_if_gone(entry):
                body = await self._cluster.write_status(
                    entry.namespace, entry.name, after, resource_version=entry.resource_version
                )
            self._seen(body, unwritten=not self._cluster.writes)

    async def read(self, entry: ServiceEntry) -> ServiceEntry:
        """Read the object of `entry` from the API server. Raises NotFound when it was deleted."""
        with self._forgotten_if_gone(entry):
            body = await self._cluster.read_service(entry.namespace, entry.name)
        return self._seen(body)

    async def is_unchanged(self, entry: ServiceEntry) -> bool:
        """Whether spec and status are still those of `entry`; metadata is ignored, other controllers write it."""
        one, other = entry.body, (await self.read(entry)).body
        return (one["metadata"]["uid"], one["spec"], one.get("status")) == (
            other["metadata"]["uid"],
            other["spec"],
            other.get("status"),
        )

    async def _write(self, entry: ServiceEntry, before: VLLMServiceStatus, after: VLLMServiceStatus) -> ServiceEntry:
        """Write the status if it says anything new. Raises StatusUnreadable when it is no valid status."""
        stored = bool(entry.body.get("status"))
        if stored and after == before:
            return entry  # as nearly always; what they look like on the wire need not be known then
        wire = fitted(to_wire(after))
        if stored and wire == to_wire(before):
            return entry
        # One list that is too long, and the API server refuses this and every later status: the service is frozen, its
        # rollback with it. So what is sent has been read like a stored one, which cuts lists and texts (T43).
        wire = to_wire(parse_status(wire))
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                with self._forgotten_if_gone(entry):
                    body = await self._cluster.write_status(
                        entry.namespace, entry.name, wire, resource_version=entry.resource_version
                    )
                break
            except Conflict:
                if not attempts_left:
                    raise
                fresh = await self.read(entry)
                if _read_by_us(fresh.body) != _read_by_us(entry.body):
                    raise
                entry = fresh
        self._wrote(entry.uid)
        self._tell_what_is_lost(entry)
        # Take the answer instead of waiting for the watch: the next tick must not decide on the old status.
        return self._seen(body, unwritten=not self._cluster.writes)

    def _tell_what_is_lost(self, stored: ServiceEntry) -> None:
        """Log what the first write of this leader leaves out of the status that it found: another version wrote it."""
        if stored.uid in self._compared:
            return
        self._compared.add(stored.uid)
        raw = stored.body.get("status") or {}
        lost = list(islice(lost_parts(raw, to_wire(parse_status(raw))), MOST_TOLD))
        if lost:
            where = f"{stored.namespace}/{stored.name}"
            logger.warning("left out of a status that another version wrote", extra={"service": where, "parts": lost})

    @contextmanager
    def _forgotten_if_gone(self, entry: ServiceEntry) -> Iterator[None]:
        # Here and not where all errors end up: a child that is not there says nothing about its VLLMService.
        try:
            yield
        except NotFound:
            self._registry.services.evict(Key(entry.namespace, entry.name), uid=entry.uid)
            raise

    def _seen(self, body: Body, *, unwritten: bool = False) -> ServiceEntry:
        """Put an answer into the registry and return its entry. Raises NotFound when the object was deleted."""
        self._registry.services.see(body, unwritten=unwritten)
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        found = self._registry.services.get(key)
        if found is None:
            raise NotFound(f"{'/'.join(key)} was deleted", reason="Deleted")
        return found


def _read_by_us(body: Body) -> tuple[Any, ...]:
    """The parts that a decision is based on: while they are unchanged, writes of other controllers do not matter."""
    metadata = body["metadata"]
    requests = {name: text for name, text in (metadata.get("annotations") or {}).items() if name.startswith(PREFIX)}
    own = {name: value for name, value in metadata.items() if name not in IGNORED_METADATA}
    return own, requests, body["spec"], body.get("status")
