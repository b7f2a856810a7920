"""Posts the Events about objects, each once, and keeps those that could not be posted until they can be.

What waits is remembered here and, with the next write, in `status.untold`: a permission that is missing for hours, or a
leader that ends meanwhile, delays an Event and does not lose it. A failed post never stops the work it tells about.
Apart from `announcing`, which decides what is said and reaches nobody. Must not: decide, or write a status.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from vllm_autotuner.api.status import UntoldEvent, VLLMServiceStatus
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import FORBIDDEN, ClusterError, Refused
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.control.read.views import ServiceEntry

__all__ = ["FAILED", "Outbox", "remembering"]

FAILED = Event(
    reason="ServiceFailed",
    note="the operator failed on this object; its log has the cause. Other services are not affected",
    action="Reconcile",
    transition="failed",
    warning=True,
)
"""Said once an hour, as long as an Event lives: the same transition is the same Event."""

logger = logging.getLogger(__name__)


class Outbox:
    """What could not be posted yet, by uid; of a service that this leader has not seen yet, what its status says."""

    def __init__(self, *, cluster: Cluster, wall: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._wall = wall
        self._waiting: dict[str, tuple[Event, ...]] = {}

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self._waiting = {uid: events for uid, events in self._waiting.items() if uid in uids}

    def waiting(self, uid: str, status: VLLMServiceStatus) -> tuple[Event, ...]:
        """The Events that wait to be posted, oldest first."""
        found = self._waiting.get(uid)
        return tuple(_event(each) for each in status.untold) if found is None else found

    async def post(self, events: Iterable[Event], *, about: ServiceEntry, status: VLLMServiceStatus) -> None:
        """Post what waits and then these; from the first on that cannot be posted now, all wait for the next time."""
        known = {(each.reason, each.transition): each for each in (*self.waiting(about.uid, status), *events)}
        queue = list(known.values())
        while queue and await self.say(queue[0], about=about):
            queue.pop(0)
        self._waiting[about.uid] = tuple(queue)

    async def say(self, event: Event, *, about: ServiceEntry) -> bool:
        """Post one Event; False when it may be posted later. One that stood before counts as posted."""
        where = {"service": f"{about.namespace}/{about.name}", "reason": event.reason}
        try:
            await self._cluster.post_event(dict(about.body), event, now=self._wall())
        except ClusterError as error:
            logger.warning("not announced", extra={**where, "error": str(error)})
            # One that is wrong in itself would be in the way of all others for ever.
            return isinstance(error, Refused) and error.status != FORBIDDEN
        logger.info("announced", extra={**where, "note": event.note})
        return True


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
