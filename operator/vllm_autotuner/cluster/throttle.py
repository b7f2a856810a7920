"""Rate limit for writes to the API server: writes per second, burst, and concurrent writes.

Apart from `adapter`, because it is about the whole process: a fleet that changes at once must not overload the API
server. Assumes one event loop.
Must not: delay the Lease, which has a connection of its own (a throttled renewal is a lost leadership).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleSettings:
    """The pace of writes to the API server."""

    per_second: float = 100.0
    """Sustained writes per second, as long as the API server does not ask for a pause: its priority and fairness knows
    better than a number here what it can take. 1,000 new services need 3,000 writes. Our choice."""

    burst: int = 200
    """Writes that may follow each other without a pause after a quiet time."""

    concurrent: int = 16
    """Concurrent writes; the size of the connection pool, above which they would only queue there."""


class Throttle:
    """A token bucket and a semaphore: `async with throttle:` around each write. Waiting is first come, first served."""

    def __init__(
        self,
        settings: ThrottleSettings,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._slots = asyncio.Semaphore(settings.concurrent)
        self._bucket = asyncio.Lock()
        self._tokens = float(settings.burst)
        self._filled_at = monotonic()
        self._closed_until = self._filled_at

    async def __aenter__(self) -> None:
        """Wait for a slot and a token."""
        await self._slots.acquire()
        try:
            async with self._bucket:
                await self._take()
        except BaseException:
            self._slots.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Free the slot."""
        self._slots.release()

    def pause(self, seconds: float) -> None:
        """Let no further write start for this long, as the server requested (Retry-After)."""
        self._closed_until = max(self._closed_until, self._monotonic() + seconds)

    async def _take(self) -> None:
        while (wait := self._seconds_to_wait()) > 0:
            await self._sleep(wait)
        self._tokens -= 1

    def _seconds_to_wait(self) -> float:
        now = self._monotonic()
        self._tokens = min(
            float(self._settings.burst), self._tokens + (now - self._filled_at) * self._settings.per_second
        )
        self._filled_at = now
        if now < self._closed_until:
            return self._closed_until - now
        # A rounding error must not become a sleep of nothing, again and again.
        return max(0.0, (1 - self._tokens) / self._settings.per_second) if self._tokens < 1 - 1e-9 else 0.0
