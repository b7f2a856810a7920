"""The time that something gets to end by itself."""

import asyncio
from typing import Any


class GracePeriod:
    """A deadline that a second deletion may bring nearer, never farther."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._nearer = asyncio.Event()

    def shorten(self, other: "GracePeriod") -> None:
        """End no later than the other one."""
        self._until = min(self._until, other._until)
        self._nearer.set()

    async def outlasts(self, task: "asyncio.Task[Any]") -> bool:
        """Wait for the task or for the end of the period; True when the task was first."""
        while not task.done() and (remaining := self._until - self._loop.time()) > 0:
            self._nearer.clear()
            nearer = asyncio.create_task(self._nearer.wait())
            try:
                await asyncio.wait({task, nearer}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            finally:
                nearer.cancel()
        return task.done()
