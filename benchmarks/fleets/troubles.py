"""What a fleet's operator does while Prometheus or the API server is slow, fails or is busy, one after the other.

Must not: judge a figure.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console

from benchmarks.fleets.fleet import INTERVAL, LOOK, Fleet, Operator, settled
from benchmarks.fleets.metrics_servers import StandIn
from e2e.api_proxy import ApiProxy
from e2e.hostile.cost import Cost
from e2e.stage import until

__all__ = ["behind_a_bad_api", "in_trouble"]

TROUBLES: Final[Mapping[str, Mapping[str, float | bool]]] = {
    "each answer takes 3 s": {"delay": 3.0},
    "every third answer fails": {"fails": 3},
    "no answer in time": {"delay": 60.0},
    "all series are lost": {"empty": True},
}
"""What is wrong with Prometheus, one after the other."""
TROUBLED: Final = 120.0
"""Seconds of each trouble: eight ticks."""
LONG: Final[Mapping[str, float]] = {"no answer in time": 600.0}
"""Seconds of those that last longer."""


async def in_trouble(fleet: Fleet, cost: Cost, *, stand_in: StandIn, console: Console) -> list[dict[str, Any]]:
    """Let Prometheus have each trouble for some minutes; what the operator does meanwhile, and after it.

    At the begin of each a running change is left behind.
    """
    found = []
    for number, (name, trouble) in enumerate(TROUBLES.items()):
        console.print(f"trouble: {name}")
        cost.longest_tick, ticks, writes = 0.0, cost.ticks, await fleet.writes()
        transitions = await fleet.transitions()
        await stand_in.trouble(trouble)
        goes_on_after = await _goes_on(fleet, fleet.services - 5 - number)
        lasts = LONG.get(name, TROUBLED)
        await asyncio.sleep(max(0.0, lasts - goes_on_after))
        seeing, ticks = await fleet.with_metrics(), cost.ticks - ticks
        longest, writes = max(cost.longest_tick, cost.silent_for), await fleet.writes() - writes
        # The change has brought its service another pod.
        await stand_in.serve(await fleet.pods())
        await stand_in.trouble({})
        began = time.monotonic()

        async def all_see() -> bool:
            return await fleet.with_metrics() == fleet.services

        await until("metrics of every service again", all_see, seconds=600, every=1)
        found.append(
            {
                "trouble": name,
                "seconds": lasts,
                "ticks": ticks,
                "longest_tick_s": round(longest, 1),
                "change_goes_on_s": round(goes_on_after, 1),
                "status_writes": writes,
                "blind": fleet.services - seeing,
                "seeing_again_s": round(time.monotonic() - began, 1),
                "leases_lost": await fleet.transitions() - transitions,
                "peak_rss_mib": round(cost.peak_bytes / 2**20, 1),
            }
        )
        # What came with it is written by then.
        await settled(cost, ticks=4)
    return found


@dataclass(slots=True)
class Hindrance:
    """What is wrong with the way to the API server, the Lease's requests included."""

    late: float = 0.0
    """Seconds before each request is passed on."""
    busy: int = 0
    """Each so many requests one is answered with 429; 0: none."""
    _asked: int = 0

    def is_busy(self) -> bool:
        """Whether this request is refused."""
        self._asked += 1
        return bool(self.busy) and self._asked % self.busy == 0


async def behind_a_bad_api(fleet: Fleet, operator: Operator, *, console: Console) -> list[dict[str, Any]]:
    """Start the operator behind a proxy, and let the API server have each trouble for `TROUBLED` seconds; at the begin
    of each a running change is left behind, and it is told how long that waits."""
    found, way, bed = [], Hindrance(), fleet.stage.bed
    proxy = ApiProxy(api_url=bed.api_url, ca_file=bed.ca_file, late=lambda: way.late, busy=lambda: way.is_busy())
    async with proxy:
        operator.start("--kubeconfig", str(proxy.kubeconfig(fleet.stage.kubeconfig)))
        async with Cost(operator.place, every=LOOK) as cost:
            await settled(cost, ticks=4)
            troubles = {"each answer takes 2 s": Hindrance(late=2.0), "every third gets 429": Hindrance(busy=3)}
            for number, (name, trouble) in enumerate(troubles.items()):
                console.print(f"trouble of the API server: {name}")
                way = trouble
                cost.longest_tick, ticks, writes = 0.0, cost.ticks, await fleet.writes()
                transitions = await fleet.transitions()
                goes_on_after = await _goes_on(fleet, fleet.services - 2 - number)
                await asyncio.sleep(max(0.0, TROUBLED - goes_on_after))
                found.append(
                    {
                        "trouble": name,
                        "ticks": cost.ticks - ticks,
                        "longest_tick_s": round(max(cost.longest_tick, cost.silent_for), 1),
                        "change_goes_on_s": round(goes_on_after, 1),
                        "status_writes": await fleet.writes() - writes,
                        "leases_lost": await fleet.transitions() - transitions,
                        "peak_rss_mib": round(cost.peak_bytes / 2**20, 1),
                    }
                )
                way = Hindrance()
                await settled(cost, ticks=2)
            console.print("two leaders for a moment")
            found.append(await _two_leaders(fleet, operator))
    operator.stage.stop_operator()
    return found


async def _goes_on(fleet: Fleet, changing: int) -> float:
    """Leave a running change behind in a service; seconds until the operator has acted on it."""
    began = time.monotonic()
    left = await fleet.leave_a_change(changing)

    async def goes_on() -> bool:
        return await fleet.change_of(changing) != left

    await until("the running change goes on", goes_on, seconds=600)
    return time.monotonic() - began


async def _two_leaders(fleet: Fleet, operator: Operator) -> dict[str, Any]:
    """Stop the leader's process, let another one take over, and let the first go on."""
    processes, stage = operator.stage.bed.processes, operator.stage
    other = Operator(replace(stage, operator=f"{stage.operator}-2"), operator.prometheus)
    other.start()
    async with Cost(other.place, every=LOOK) as cost:
        await until("the other one waits", lambda: processes.listens(other.stage.operator, port=other.port), seconds=60)
        await asyncio.sleep(INTERVAL)  # until its watches have listed the fleet
        writes, transitions = await fleet.writes(), await fleet.transitions()
        processes.pause(stage.operator)
        goes_on_after = await _goes_on(fleet, fleet.services - 4)
        processes.resume(stage.operator)
        await asyncio.sleep(max(0.0, TROUBLED - goes_on_after))
        return {
            "trouble": "the leader is stopped, and goes on when another one leads",
            "ticks": cost.ticks,
            "longest_tick_s": round(max(cost.longest_tick, cost.silent_for), 1),
            "change_goes_on_s": round(goes_on_after, 1),
            "status_writes": await fleet.writes() - writes,
            "leases_lost": await fleet.transitions() - transitions,
            "peak_rss_mib": round(cost.peak_bytes / 2**20, 1),
        }
