"""Liveness of the process: the age of the fleet loop's last heartbeat, and the lag of the event loop.

Apart from `probes`, which reports it, so that the fleet loop does not depend on the HTTP server.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_SAMPLED_EVERY: Final = 1.0
"""Seconds between two samples of the event loop's lag."""


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


async def sample_loop_lag(
    stop: asyncio.Event, *, monotonic: Callable[[], float], report: Callable[[float], None]
) -> None:
    """Report once a second by how many seconds a timer came late; until `stop`."""
    while not stop.is_set():
        due = monotonic() + _SAMPLED_EVERY
        try:
            async with asyncio.timeout(_SAMPLED_EVERY):
                await stop.wait()
        except TimeoutError:
            report(max(0.0, monotonic() - due))
