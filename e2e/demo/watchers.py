"""Background watchers of the demo, beside `Monitor`: pods, and the start of a queue."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx

from e2e.stage import Stage, condition, plain_client, until
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.workload.labels import SERVICE, TRACK

EVERY: Final = 0.25


@dataclass(slots=True, kw_only=True)
class SeenPod:
    """One pod of a service, as it was seen over time."""

    name: str
    track: str
    """stable, canary or baseline."""
    seats: int | None
    """The max-num-seqs it was started with."""
    was_ready: bool = False
    waits_for: str = ""
    """The scheduler's message while no node fits."""


class PodWatch:
    """Looks at all pods four times a second and forgets none: no engine starts and ends in less."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._pods: dict[str, dict[str, SeenPod]] = {}
        self._now: dict[str, list[str]] = {}
        self._task = asyncio.create_task(self._watch())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def of(self, service: str) -> list[SeenPod]:
        """Every pod of the service that there ever was, oldest first."""
        return list(self._pods.get(service, {}).values())

    def ready_now(self, service: str) -> list[SeenPod]:
        """Those that serve."""
        return [self._pods[service][name] for name in self._now.get(service, [])]

    async def _watch(self) -> None:
        while True:
            try:
                found = await self._stage.get(
                    f"/api/v1/namespaces/{self._stage.namespace}/pods?labelSelector={SERVICE}"
                )
            except httpx.HTTPError:
                found = {}
            if "items" in found:
                self._now.clear()
            for pod in found.get("items", []):
                self._look(pod)
            await asyncio.sleep(EVERY)

    def _look(self, pod: Mapping[str, Any]) -> None:
        labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
        service = labels[SERVICE]
        new = SeenPod(
            name=name, track=labels[TRACK], seats=parse_flags(pod["spec"]["containers"][0]["args"]).max_num_seqs
        )
        seen = self._pods.setdefault(service, {}).setdefault(name, new)
        if condition(pod["status"], "Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            seen.was_ready = True
            self._now.setdefault(service, []).append(name)
        for each in pod["status"].get("conditions", []):
            if each["type"] == "PodScheduled" and each["status"] == "False":
                seen.waits_for = each.get("message", "")


async def waiting_since(stage: Stage, name: str) -> float:
    """Wait until an engine of the service reports a waiting request; return when that was seen."""

    async def waits() -> bool:
        for pod in await stage.ready_pods(name):
            async with plain_client() as client:
                page = (await client.get(f"http://{pod['status']['podIP']}:8000/metrics")).text
            lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_waiting{")]
            if any(float(line.rsplit(" ", 1)[1]) > 0 for line in lines):
                return True
        return False

    await until(f"requests wait at {name}", waits, seconds=60)
    return time.time()
