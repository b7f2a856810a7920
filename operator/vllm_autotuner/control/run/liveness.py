"""Liveness of the process: the age of the fleet loop's last heartbeat, and the lag of the event loop.

Apart from `probes`, which reports it, so that the fleet loop does not depend on the HTTP server.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from vllm_autotuner.budgets import LOOP_LAG_SECONDS

_SAMPLED_EVERY: Final = 0.25
"""Seconds between two samples of the event loop's lag: what blocks it for longer is seen, if not in full."""
_REMEMBERED: Final = 60.0
"""Seconds: a Prometheus scrapes every 15 to 60 s, and must not miss a delay between two scrapes."""


class Heartbeat:
    """The last heartbeat of one loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._beaten_at = monotonic()

    def beat(self) -> None:
        """Record a heartbeat. To be called at least once per tick, also by followers and in long writes."""
        self._beaten_at = self._monotonic()

    def age(self) -> float:
        """Seconds since the last beat."""
        return self._monotonic() - self._beaten_at


class LoopLag:
    """By how much timers of the event loop came late lately."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, seconds: float) -> None:
        """Take note of one delay."""
        if seconds > LOOP_LAG_SECONDS.limit:
            LOOP_LAG_SECONDS.exceeded()
        self._seen.append((self._monotonic(), seconds))
        self._forget()

    def longest(self) -> float:
        """The longest delay of the last minute, in seconds."""
        self._forget()
        return max((seconds for _, seconds in self._seen), default=0.0)

    def _forget(self) -> None:
        while self._seen and self._monotonic() - self._seen[0][0] > _REMEMBERED:
            self._seen.popleft()


async def sample_loop_lag(
    stop: asyncio.Event, *, monotonic: Callable[[], float], report: Callable[[float], None]
) -> None:
    """Report four times a second by how many seconds a timer came late; until `stop`."""
    while not stop.is_set():
        due = monotonic() + _SAMPLED_EVERY
        try:
            async with asyncio.timeout(_SAMPLED_EVERY):
                await stop.wait()
        except TimeoutError:
            report(max(0.0, monotonic() - due))
