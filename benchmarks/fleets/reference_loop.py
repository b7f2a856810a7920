"""How fast the machine is while something is measured on it: CPU time of a fixed loop, again and again.

CPU seconds of the same code differ by half from hour to hour where cores are shared with strangers; beside those of
this loop they can be compared. Must not: correct a figure.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from statistics import median
from typing import Final

__all__ = ["machine_speed"]

TURNS: Final = 500_000
"""Of the loop: a twentieth of a second."""
EVERY: Final = 10.0
"""Seconds between two loops: half a per cent of a core."""


@asynccontextmanager
async def machine_speed() -> AsyncIterator[dict[str, float]]:
    """Measure until the end of the block; the figure is in what was given by then, as a part of a result."""
    found: list[float] = []
    told: dict[str, float] = {}
    task = asyncio.create_task(_measure(found))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    if found:
        told["reference_loop_ms"] = round(1000 * median(found), 1)


async def _measure(found: list[float]) -> None:
    while True:
        found.append(await asyncio.to_thread(_loop))
        await asyncio.sleep(EVERY)


def _loop() -> float:
    """CPU seconds of the loop, without the time for which its thread waits."""
    began, total = time.thread_time(), 0
    for turn in range(TURNS):
        total += turn * turn % 7
    return time.thread_time() - began
