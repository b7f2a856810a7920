"""What a fleet's operator does while Prometheus or the API server is slow, fails or is busy, one after the other.

Must not: judge a figure.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from benchmarks.fleets.fleet import LOOK, Fleet, Operator, settled
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


async def in_trouble(fleet: Fleet, cost: Cost, *, stand_in: StandIn, console: Console) -> list[dict[str, Any]]:
    """Let Prometheus have each trouble for `TROUBLED` seconds; what the operator does meanwhile, and after it."""
    found = []
    for name, trouble in TROUBLES.items():
        console.print(f"trouble: {name}")
        cost.longest_tick, ticks, writes = 0.0, cost.ticks, await fleet.writes()
        transitions = await fleet.transitions()
        await stand_in.trouble(trouble)
        await asyncio.sleep(TROUBLED)
        seeing, ticks = await fleet.with_metrics(), cost.ticks - ticks
        longest, writes = max(cost.longest_tick, cost.silent_for), await fleet.writes() - writes
        await stand_in.trouble({})
        began = time.monotonic()

        async def all_see() -> bool:
            return await fleet.with_metrics() == fleet.services

        await until("metrics of every service again", all_see, seconds=600, every=1)
        found.append(
            {
                "trouble": name,
                "ticks": ticks,
                "longest_tick_s": round(longest, 1),
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
                transitions, began = await fleet.transitions(), time.monotonic()
                changing = fleet.services - 2 - number
                left = await fleet.leave_a_change(changing)

                async def goes_on(changing: int = changing, left: object = left) -> bool:
                    return await fleet.change_of(changing) != left

                await until("the running change goes on", goes_on, seconds=600)
                goes_on_after = time.monotonic() - began
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
    operator.stage.stop_operator()
    return found
