"""The fleet loop: one tick every interval for all services."""

import asyncio

from vllm_autotuner.control.context import ControlContext


async def run_fleet_loop(context: ControlContext, stop: asyncio.Event) -> None:
    """Tick until `stop`."""
    while not stop.is_set():
        context.heartbeat.beat()
        try:
            async with asyncio.timeout(context.settings.interval.total_seconds()):
                await stop.wait()
        except TimeoutError:
            continue
