"""Posts Events, each once, and queues those that could not be posted until a later tick.

The queue is kept here and, with the next write, in `status.untold`: a permission that is missing for hours, or a change
of leader, delays an Event and does not lose it. A failed post never stops the tick.
Apart from `announcements`, which decides on the Events and does no I/O. Must not: decide, or write a status.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import UntoldEvent, VLLMServiceStatus
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import FORBIDDEN, NO_ANSWER, ClusterError, Refused
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.control.read.views import ServiceEntry

__all__ = ["FAILED", "OBJECT_TOO_LARGE", "Outbox", "remembering"]

FAILED = Event(
    reason="ServiceFailed",
    note="Failed to process this object; see the operator's log for the cause. Other services are not affected",
    action="Reconcile",
    transition="failed",
    warning=True,
)
"""Posted once an hour, the lifetime of an Event: the same transition is the same Event."""

OBJECT_TOO_LARGE = Event(
    reason="ObjectTooLarge",
    note="Failed to write the status: with it the object is larger than etcd allows. Shorten spec.podTemplate",
    action="Reconcile",
    transition="too-large",
    warning=True,
)
"""The same; there is no room in the object to say it."""

SILENT_FOR: Final = timedelta(seconds=30)
"""How long no queued Event is posted after one that got no answer. Events may have an etcd of their own, and while that
hangs each attempt takes ten seconds, in front of a rollback as well. Our choice: two ticks."""

logger = logging.getLogger(__name__)


class Outbox:
    """The Events that could not be posted yet, by uid; before the first post of this leader those in the status."""

    def __init__(self, *, cluster: Cluster, wall: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._wall = wall
        self._waiting: dict[str, tuple[Event, ...]] = {}
        self._silent_since: datetime | None = None

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self._waiting = {uid: events for uid, events in self._waiting.items() if uid in uids}

    def waiting(self, uid: str, status: VLLMServiceStatus) -> tuple[Event, ...]:
        """The Events that wait to be posted, oldest first."""
        found = self._waiting.get(uid)
        return tuple(_event(each) for each in status.untold) if found is None else found

    async def post(self, events: Iterable[Event], *, about: ServiceEntry, status: VLLMServiceStatus) -> None:
        """Post the queued Events and then these; after the first that fails, the rest stays queued in order."""
        known = {(each.reason, each.transition): each for each in (*self.waiting(about.uid, status), *events)}
        queue = list(known.values())
        while queue and not self._is_silent() and await self.say(queue[0], about=about):
            queue.pop(0)
        self._waiting[about.uid] = tuple(queue)

    async def say(self, event: Event, *, about: ServiceEntry) -> bool:
        """Post one Event; False when a later attempt may succeed. One that exists already counts as posted."""
        where = {"service": f"{about.namespace}/{about.name}", "reason": event.reason}
        try:
            await self._cluster.post_event(dict(about.body), event, now=self._wall())
        except ClusterError as error:
            logger.warning("failed to post event", extra={**where, "error": str(error)})
            if error.reason == NO_ANSWER:
                self._silent_since = self._wall()
            # One that the API server rejects as invalid would block all others for ever.
            return isinstance(error, Refused) and error.status != FORBIDDEN
        return True

    def _is_silent(self) -> bool:
        # Not where the clock was set back since.
        return self._silent_since is not None and timedelta() <= self._wall() - self._silent_since < SILENT_FOR


def remembering(status: VLLMServiceStatus, waiting: Iterable[Event]) -> VLLMServiceStatus:
    """The status with the Events that wait, as another leader will find them."""
    untold = tuple(
        UntoldEvent(
            reason=each.reason, action=each.action, transition=each.transition, note=each.note, warning=each.warning
        )
        for each in waiting
    )
    return status if untold == status.untold else status.updated(untold=untold)


def _event(found: UntoldEvent) -> Event:
    return Event(
        reason=found.reason,
        note=found.note,
        action=found.action,
        transition=found.transition,
        warning=found.warning,
    )
