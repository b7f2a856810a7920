"""Whether the operator itself is healthy enough to start a change: its metrics source, its writes, its pace (G40).

Apart from `diagnosis`, which is about services: an operator that could not write a minute ago may be unable to roll
back what it starts now. Only the start of a change waits; running changes are judged, and rollbacks are never delayed.
Must not: be needed after a restart. A new leader watches one whole window first, and sees the same failures again.
"""

from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.guardrails.concurrency import Share

__all__ = ["FAILING", "LATEST", "OWN_FAULT", "SelfHealth"]

LATEST: Final = timedelta(seconds=30)
"""A tick that takes longer (or longer than two intervals) acts on outdated metrics. Research T36: two intervals; the
seconds are our choice, so that a short interval on a busy machine does not stop everything."""


FAILING: Final = Share(percent=10)
"""Of all services, and at least two: writes of so many failed within a window, and it is not the objects. One object
whose writes always fail (a webhook that does not answer) must not stop the fleet. Our choice."""

OWN_FAULT: Final = 10
"""Windows (5 minutes) for which the requests of an object have failed without an end, while those of others were
executed: then it is the object, however many such objects there are (a webhook of its namespace that does not answer
makes each of its writes a 500). Its own changes wait, those of others do not. An outage is no shorter for it: nothing
of others is executed meanwhile. Our choice."""


class SelfHealth:
    """What went wrong lately, and when."""

    def __init__(self, *, interval: timedelta, window: timedelta) -> None:
        self._limit = max(2 * interval, LATEST)
        self._window = window
        self._sources: dict[str, datetime] = {}
        self._writes: dict[str, datetime] = {}
        self._failing_since: dict[str, datetime] = {}
        self._executed: dict[str, datetime] = {}
        self._late = False

    def source_failed(self, name: str, *, at: datetime) -> None:
        """Note that a query to this metrics source failed."""
        self._sources[name] = at

    def api_failed(self, uid: str, *, at: datetime) -> None:
        """Note that a request for this service failed at the API server."""
        if not self._recent(self._writes.get(uid), now=at):
            self._failing_since[uid] = at
        self._writes[uid] = at

    def api_wrote(self, uid: str, *, at: datetime) -> None:
        """Note that a write for this service was executed."""
        self._executed[uid] = at

    def looked(self, *, took: timedelta, now: datetime) -> None:
        """Note the duration of a tick over the whole fleet."""
        self._late = took > self._limit
        self._writes = {uid: at for uid, at in self._writes.items() if self._recent(at, now=now)}
        self._failing_since = {uid: at for uid, at in self._failing_since.items() if uid in self._writes}
        since = min(self._failing_since.values(), default=now)
        self._executed = {uid: at for uid, at in self._executed.items() if at >= since}

    def trouble(self, uid: str, *, source: str, services: int, now: datetime) -> str:
        """What is wrong for a service with this source; empty when healthy. The same cause has always the same text."""
        failing = sum(
            self._recent(at, now=now) and not self._is_own_fault(each, now=now) for each, at in self._writes.items()
        )
        if self._recent(self._writes.get(uid), now=now) or failing >= max(2, FAILING.of(services)):
            return "requests to the API server failed within the last window"
        if self._recent(self._sources.get(source), now=now):
            return f"queries to metrics source {source or 'default'} failed within the last window"
        if self._late:
            return f"the last tick took more than {self._limit.total_seconds():.0f} s"
        return ""

    def _is_own_fault(self, uid: str, *, now: datetime) -> bool:
        """Whether only objects like this one fail: for long, and writes of objects that do not fail were executed."""
        since = self._failing_since[uid]
        others = (at for other, at in self._executed.items() if other not in self._writes)
        return now - since >= OWN_FAULT * self._window and max(others, default=since) > since

    def _recent(self, moment: datetime | None, *, now: datetime) -> bool:
        # What lies ahead of a clock that was set back is recent: better late than unwell.
        return moment is not None and now - moment < self._window
