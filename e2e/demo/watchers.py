"""What is watched in the background while the acts play: that a service stays Ready, and when its queue begins."""

import asyncio
import time
from typing import Final

import httpx

from e2e.stage import Stage, condition, until

EVERY: Final = 0.25


class ReadyWatch:
    """Samples a service four times a second; a lapse is a moment without a serving pod, or Ready not True."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.lapses: list[str] = []
        self.samples = 0
        self._task = asyncio.create_task(self._watch(stage, name))

    async def _watch(self, stage: Stage, name: str) -> None:
        while True:
            try:
                ready = condition(await stage.status(name), "Ready")
                available = (await stage.deployment(name)).get("status", {}).get("availableReplicas", 0)
            except httpx.HTTPError:
                await asyncio.sleep(EVERY)
                continue
            self.samples += 1
            if ready != "True" or available < 1:
                self.lapses.append(f"Ready={ready}, {available} available")
            await asyncio.sleep(EVERY)

    def end(self) -> None:
        """Stop watching."""
        self._task.cancel()

    @staticmethod
    async def waiting_since(stage: Stage, name: str) -> float:
        """Wait until an engine of the service reports a waiting request; return when that was seen."""

        async def waits() -> bool:
            for pod in await stage.ready_pods(name):
                async with httpx.AsyncClient(trust_env=False) as client:
                    page = (await client.get(f"http://{pod['status']['podIP']}:8000/metrics")).text
                lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_waiting{")]
                if any(float(line.rsplit(" ", 1)[1]) > 0 for line in lines):
                    return True
            return False

        await until(f"requests wait at {name}", waits, seconds=60)
        return time.time()
