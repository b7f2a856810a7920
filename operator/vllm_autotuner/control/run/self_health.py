"""Whether the operator itself is well enough to begin anything: its source of metrics, its writes, its pace (G40).

Apart from the diagnosis, which is about services: an operator that could not write a minute ago may not be able to undo
what it begins now. Only beginnings wait; what runs is judged, and undoing waits for nothing.
Must not: be needed after a restart. A new leader watches one whole window anyway, and sees all of this again.
"""

from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.guardrails.concurrency import Share

__all__ = ["FAILING", "LATEST", "SelfHealth"]

LATEST: Final = timedelta(seconds=30)
"""A look at the fleet that takes longer (or longer than two intervals) acts on what was. Research T36: two intervals;
the seconds are our choice, so that a fast interval on a busy machine does not stop everything."""


FAILING: Final = Share(percent=10)
"""Of all services, and at least two: writes of so many failed within a window, and it is not the objects. One object
whose writes always fail (a webhook that does not answer) must not stop the fleet. Our choice."""


class SelfHealth:
    """What went wrong lately, and when."""

    def __init__(self, *, interval: timedelta, window: timedelta) -> None:
        self._limit = max(2 * interval, LATEST)
        self._window = window
        self._sources: dict[str, datetime] = {}
        self._writes: dict[str, datetime] = {}
        self._late = False

    def source_failed(self, name: str, *, at: datetime) -> None:
        """A source of metrics gave no usable answer."""
        self._sources[name] = at

    def api_failed(self, uid: str, *, at: datetime) -> None:
        """The API server did not answer, or was not able to, when asked for this service."""
        self._writes[uid] = at

    def looked(self, *, took: timedelta, now: datetime) -> None:
        """A look at the whole fleet came to its end."""
        self._late = took > self._limit
        self._writes = {uid: at for uid, at in self._writes.items() if self._recent(at, now=now)}

    def trouble(self, uid: str, *, source: str, services: int, now: datetime) -> str:
        """Say what is wrong for a service with this source; empty when all is well. One cause has always one text."""
        failing = sum(self._recent(at, now=now) for at in self._writes.values())
        if self._recent(self._writes.get(uid), now=now) or failing >= max(2, FAILING.of(services)):
            return "the API server failed to answer within the last window"
        if self._recent(self._sources.get(source), now=now):
            return f"the metrics source {source or 'default'} failed to answer within the last window"
        if self._late:
            return f"the last look at the fleet took more than {self._limit.total_seconds():.0f} s"
        return ""

    def _recent(self, moment: datetime | None, *, now: datetime) -> bool:
        # What lies ahead of a clock that was set back is recent: better late than unwell.
        return moment is not None and now - moment < self._window
