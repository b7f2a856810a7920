"""What an operator costs while something plays: its ticks, the lag of its event loop, its memory, its restarts.

Apart from the stories, because all of it is seen from outside: its /metrics, the kernel's figures of its process, and
what the node says about its container.
Must not: judge a figure, or ask the operator anything that nobody else can.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from e2e.bed import NODE
from e2e.node_client import NodeClient
from e2e.stage import Stage

CONTAINER: Final = "operator"
PORT: Final = 8080
EVERY: Final = 0.4
"""Seconds between two looks: shorter than the shortest interval of the operator, so that no two ticks end between them
and the growth of the histogram's sum is the duration of one."""
TICKS: Final = "vllm_autotuner_tick_duration_seconds"
LAG: Final = "vllm_autotuner_loop_lag_seconds"
EXCEEDED: Final = "vllm_autotuner_budget_exceeded_total"
FAILED: Final = "vllm_autotuner_ticks_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The kernel's figures of one process."""

    peak_bytes: int
    """The largest resident set that it ever had."""
    cpu_seconds: float
    waited_seconds: float
    """For which its main thread could have gone on and got no CPU; 0 where the kernel does not count it."""


def process(pid: int) -> Process:
    """Read the figures of a process. Raises FileNotFoundError or ProcessLookupError where it has gone."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    # The second field is the name in brackets, which may hold spaces and brackets itself.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    scheduled = Path(f"/proc/{pid}/schedstat")
    return Process(
        peak_bytes=int(peak.split()[1]) * 1024,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        waited_seconds=int(scheduled.read_text(encoding="utf-8").split()[1]) / 1e9 if scheduled.exists() else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an operator runs now."""

    pid: int
    metrics: str
    """URL of its /metrics."""
    restarts: int = 0


Find = Callable[[], Awaitable[Place | None]]
"""Answers None while there is no such process."""


def in_pod(stage: Stage) -> Find:
    """The operator that the stage has installed as a pod."""
    pids: dict[tuple[str, int], int] = {}

    async def find() -> Place | None:
        node = NodeClient.of(await stage.get(f"/api/v1/nodes/{NODE}"))
        for pod in (await stage.get(f"/api/v1/namespaces/{stage.namespace}/pods")).get("items", []):
            for container in pod.get("status", {}).get("containerStatuses", []):
                if container["name"] != CONTAINER:
                    continue
                name, restarts = pod["metadata"]["name"], container["restartCount"]
                if (name, restarts) not in pids:
                    if (pid := await asyncio.to_thread(node.pid, stage.namespace, name, CONTAINER)) is None:
                        return None
                    pids[name, restarts] = pid
                metrics = f"http://{pod['status']['podIP']}:{PORT}/metrics"
                return Place(pid=pids[name, restarts], metrics=metrics, restarts=restarts)
        return None

    return find


@dataclass(slots=True)
class Cost:
    """`async with Cost(find) as cost`: watches an operator until the end."""

    find: Find
    every: float = EVERY
    """Seconds between two looks. A page of thousands of services takes as long to write as some of them to handle."""
    longest_tick: float = 0.0
    """Seconds. Where two ticks ended between two looks: both together."""
    longest_own: float = 0.0
    """The same without what the machine took from it: the seconds for which the operator had no CPU meanwhile."""
    ticks: int = 0
    loop_lag: float = 0.0
    """Seconds: the longest that the operator itself has told."""
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    """Of the process that runs now."""
    restarts: int = 0
    failed: int = 0
    """Services that could not be handled for an unexpected error, counted each time."""
    exceeded: Counter[str] = field(default_factory=Counter)
    """Times that data of others was larger than a budget allows, by budget."""
    began: float = field(default_factory=time.monotonic)
    _seen: dict[str, float] = field(default_factory=dict)
    _looks: list[tuple[float, float]] = field(default_factory=list)
    """When it was looked, and how long the process had waited for a CPU until then; of the process that runs now."""
    _told: int = 0
    """How many looks there were when its page was last read."""
    _pid: int = 0
    _ended_at: float | None = None
    _task: "asyncio.Task[None] | None" = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        (done,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(done, asyncio.CancelledError), f"the watch on the operator itself failed: {done!r}"

    @property
    def silent_for(self) -> float:
        """Seconds since the end of a tick was last seen: a tick that never ends is longer than all that did."""
        return time.monotonic() - (self._ended_at or self.began)

    @property
    def stalled_for(self) -> float:
        """The same without what the machine took from it."""
        silent = self.silent_for
        return silent - self._taken(silent, looks=len(self._looks))

    async def _watch(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            while True:
                # What cannot be read now is read a moment later; a late answer is the loop's lag, which is told then.
                with suppress(httpx.HTTPError, FileNotFoundError, ProcessLookupError):
                    if (place := await self.find()) is not None:
                        await self._look(client, place)
                await asyncio.sleep(self.every)

    async def _look(self, client: httpx.AsyncClient, place: Place) -> None:
        if place.pid != self._pid:
            self.restarts += bool(self._pid)
            self._pid = place.pid
            self._seen.clear()
            self._looks.clear()
            self._told = 0
        figures = process(place.pid)
        self._looks.append((time.monotonic(), figures.waited_seconds))
        self.restarts = max(self.restarts, place.restarts)
        self.peak_bytes = max(self.peak_bytes, figures.peak_bytes)
        self.cpu_seconds = figures.cpu_seconds
        self._take(dict(_values((await client.get(place.metrics)).text)))

    def _take(self, found: Mapping[str, float]) -> None:
        ended = found.get(f"{TICKS}_count", 0) - self._seen.get(f"{TICKS}_count", 0)
        if ended > 0:
            took = found[f"{TICKS}_sum"] - self._seen.get(f"{TICKS}_sum", 0)
            # It ended after the page that did not tell of it, and so after the look before that.
            own = took - self._taken(took, looks=self._told)
            self.longest_own = max(self.longest_own, own)
            self.longest_tick, self._ended_at = max(self.longest_tick, took), time.monotonic()
            self.ticks += round(ended)
        self.loop_lag = max(self.loop_lag, found.get(LAG, 0))
        self.failed = max(self.failed, round(found.get(FAILED, 0)))
        for name, value in found.items():
            if name.startswith(EXCEEDED + "/"):
                self.exceeded[name.partition("/")[2]] += round(value - self._seen.get(name, 0))
        self._seen, self._told = dict(found), len(self._looks)

    def _taken(self, seconds: float, *, looks: int) -> float:
        """For how much of the last `seconds` it got no CPU, as the first so many looks tell; never too much."""
        since = time.monotonic() - seconds
        waited = [waited for at, waited in self._looks[:looks] if at >= since]
        return waited[-1] - waited[0] if waited else 0.0


def _values(page: str) -> Iterator[tuple[str, float]]:
    """The metrics that are looked at, by name; those of a budget with its name behind a slash."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in (f"{TICKS}_sum", f"{TICKS}_count", LAG):
                yield sample.name, sample.value
            elif sample.name == EXCEEDED:
                yield f"{EXCEEDED}/{sample.labels['budget']}", sample.value
            elif sample.name == FAILED and sample.labels["outcome"] == "Failed":
                yield FAILED, sample.value
