"""Ctrl-C and SIGTERM as an event, for commands that stop gracefully.

Must not: end the process; a second Ctrl-C after the event was handled does.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupted"]


@contextmanager
def interrupted() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C and SIGTERM set inside this context; afterwards they end the program again."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
