"""What was decided, on its way to the cluster: several services at a time, the most urgent first.

Apart from the fleet loop, which decides: nothing that the API server does slowly may hold up the next decisions. A
service is on its way at most once; until it has arrived it is not decided again. Work may end with more work, which
waits anew behind all that is as urgent.
Must not: know what is carried out, or lose what it raises.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

__all__ = ["AT_ONCE", "Effects", "Urgency", "Waits", "Work"]

Work: TypeAlias = Callable[[], Awaitable["Work | None"]]
"""Carries something out, and returns what is left of it for later."""

AT_ONCE: Final = 16
"""Services that are carried out at a time: the throttle admits as many writes."""


class Urgency(IntEnum):
    """What is carried out first where many services wait: a smaller number."""

    CHANGE = 0
    """A change runs or ends."""
    REPLICAS = 1
    """The number of replicas is another one, or a change begins."""
    BEGIN = 2
    """A service is new."""
    REPORT = 3
    """Nothing but what the status says."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How many services have not arrived, and since how many seconds the first of them."""

    services: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    urgency: Urgency
    since: float


class Effects:
    """The queue. Of one event loop."""

    def __init__(self, *, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: list[tuple[int, bool, int, str, Work]] = []
        """Urgency, whether a part has been carried out, number, uid, and work."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._on_their_way: dict[str, _OnItsWay] = {}
        self._count = 0
        self._drops = 0
        self._broken: BaseException | None = None

    def __len__(self) -> int:
        """How many services wait or are being carried out."""
        return len(self._on_their_way)

    def on_their_way(self) -> frozenset[str]:
        """The uids of the services that wait or are being carried out."""
        return frozenset(self._on_their_way)

    def waits(self) -> Mapping[Urgency, Waits]:
        """What has not arrived, by its urgency."""
        now, found = asyncio.get_running_loop().time(), {urgency: Waits() for urgency in Urgency}
        for each in self._on_their_way.values():
            known = found[each.urgency]
            found[each.urgency] = Waits(known.services + 1, max(known.seconds, now - each.since))
        return found

    def add(self, uid: str, work: Work, *, urgency: Urgency) -> None:
        """Carry `work` out when it is its turn: what is more urgent first, then in the order of adding. Raises
        ValueError for a service that is on its way."""
        if uid in self._on_their_way:
            raise ValueError(f"{uid} is on its way")
        self._on_their_way[uid] = _OnItsWay(urgency, asyncio.get_running_loop().time())
        self._wait(uid, work, urgency=urgency, begun=False)
        self._begin()

    async def settled(self, *, within: float) -> None:
        """Wait until everything has arrived, at most `within` seconds. Raises what any of it has raised."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within
        while self._broken is None and self._running and (left := deadline - clock()) > 0:
            await asyncio.wait(self._running.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if (broken := self._broken) is not None:
            self._broken = None
            raise broken

    def drop_waiting(self) -> None:
        """Forget what is not being carried out now, and what will be left of that: another process leads, or this one
        stops.
        """
        self._drops += 1
        for *_, uid, _ in self._waiting:
            self._on_their_way.pop(uid, None)
        self._waiting.clear()

    def _wait(self, uid: str, work: Work, *, urgency: Urgency, begun: bool) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (urgency, begun, self._count, uid, work))

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            urgency, _, _, uid, work = heapq.heappop(self._waiting)
            running = self._run(uid, work, urgency=Urgency(urgency))
            self._running[uid] = asyncio.get_running_loop().create_task(running, name=f"effects of {uid}")

    async def _run(self, uid: str, work: Work, *, urgency: Urgency) -> None:
        left, drops = None, self._drops
        try:
            left = await work()
        except BaseException as error:
            # Raised where somebody waits: a task that nobody awaits would keep it to itself.
            self._broken = error
        finally:
            del self._running[uid]
            if left is not None and drops == self._drops:
                self._wait(uid, left, urgency=urgency, begun=True)
            else:
                self._on_their_way.pop(uid, None)
            self._begin()
