"""Posts the Events about one object. A failed post never stops the work that it tells about.

Apart from `announcing`, which decides what is said and reaches nobody.
"""

import logging
from collections.abc import Iterable
from datetime import datetime

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.control.views import ServiceEntry

__all__ = ["FAILED", "post"]

FAILED = Event(
    reason="ServiceFailed",
    note="the operator failed on this object; its log has the cause. Other services are not affected",
    action="Reconcile",
    transition="failed",
    warning=True,
)
"""Said once an hour, as long as an Event lives: the same transition is the same Event."""

logger = logging.getLogger(__name__)


async def post(events: Iterable[Event], *, about: ServiceEntry, cluster: Cluster, now: datetime) -> bool:
    """Post Events about a service; return whether all of them stand. One that stood before counts as posted."""
    said = True
    for event in events:
        where = {"service": f"{about.namespace}/{about.name}", "reason": event.reason}
        try:
            await cluster.post_event(dict(about.body), event, now=now)
        except ClusterError as error:
            logger.warning("not announced", extra={**where, "error": str(error)})
            said = False
        else:
            logger.info("announced", extra={**where, "note": event.note})
    return said
