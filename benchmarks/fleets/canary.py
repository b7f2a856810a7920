"""One canary's change, alone and while a fleet of services is created beside it.

API server, Prometheus and operator are real, the canary's engines are simulated, the pods of the fleet are played.
Must not: judge a figure.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console

from benchmarks.fleets.fleet import HOME, INTERVAL, Fleet, Operator, fleet_on
from benchmarks.fleets.played_node import NAME, played_node
from e2e.bed import Bed
from e2e.hostile.scraping import prometheus_of
from e2e.monitor import Monitor
from e2e.side_by_side import CROWD, Play, change_of
from e2e.stage import SIMULATED_ENGINE, Stage, until

CHAT: Final = "chat"
REPLICAS: Final = 2
WINDOW: Final = "30s"
STRATEGY: Final = {"warmUp": "30s", "analysis": "3m", "bake": "30s", "provisioningDeadline": "10m"}
"""Six windows of analysis, as by default; shorter than the defaults in all."""
PATIENCE: Final = 1200.0
"""Seconds for the whole change: four times what it takes alone."""
PLAYED: Final = {
    "spec": {
        "nodeSelector": {"kubernetes.io/hostname": NAME},
        "tolerations": [{"key": NAME, "operator": "Exists"}],
    }
}
"""The pods of the fleet go to the node that plays them, and no others."""


async def canaries(
    sizes: Sequence[int], *, keep: Callable[[Mapping[str, Any]], object], console: Console
) -> dict[str, Any]:
    """Play one change alone, and then one beside the creation of each fleet, each on a control plane of its own.

    `sizes`: services of each fleet. `keep` gets the figures after each.
    """
    cells: list[dict[str, Any]] = []
    figures = {"cells": cells}
    for services in (0, *sizes):
        cells.append(found := await _played(services))
        console.print(found, highlight=False)
        keep(figures)
    return figures


async def _played(services: int) -> dict[str, Any]:
    async with Bed(images=[SIMULATED_ENGINE]) as bed:
        # It would look for the metrics of all pods, and those of the fleet have none.
        bed.prometheus.stop()
        await asyncio.to_thread(bed.create_namespace, HOME)
        prometheus = prometheus_of(bed, name="prometheus-of-the-canary", namespaces=[HOME])
        await prometheus.start()
        stage = Stage(bed, HOME, interval=f"{INTERVAL:g}s", window=WINDOW)
        async with stage, Monitor(stage) as monitor, played_node(bed.admin_kubeconfig):
            bed.kubectl("taint", "node", NAME, f"{NAME}=:NoSchedule")
            fleet = await fleet_on(stage, services=services, engines=1)
            fleet.spec = {"podTemplate": PLAYED}
            Operator(stage, prometheus.url).start("--window", WINDOW)
            return await _changed(Play(stage, monitor), fleet)


async def _changed(play: Play, fleet: Fleet) -> dict[str, Any]:
    """Let the canary's change begin and end; what was seen of it."""
    await play.serves(CHAT, clients=REPLICAS * CROWD, replicas=REPLICAS, tuning={"strategy": STRATEGY})
    await play.change_is(CHAT, "Analyzing", seconds=PATIENCE)
    created = asyncio.create_task(_created(fleet)) if fleet.services else None
    entry = await play.finished(CHAT, seconds=PATIENCE)
    told = None if created is None else await created
    await play.monitor.at_rest(CHAT)
    return {
        "services": fleet.services,
        "outcome": f"{entry['outcome']}, {entry['knob']} {entry.get('fromValue')} -> {entry.get('toValue')}",
        "after_s": _seconds(play.monitor.statuses(CHAT), entry=entry),
        "lapses": play.monitor.lapses(CHAT),
        "broken": play.monitor.broken(CHAT),
        "status_for_all_s": told,
    }


def _seconds(statuses: Iterable[Mapping[str, Any]], *, entry: Mapping[str, Any]) -> dict[str, float]:
    """Seconds from the begin of a change until it was in each of its states, and until it was over."""
    found: dict[str, float] = {}
    for change in filter(None, map(change_of, statuses)):
        since = datetime.fromisoformat(change["stateSince"]) - datetime.fromisoformat(change["startedAt"])
        found.setdefault(change["state"], since.total_seconds())
    over = datetime.fromisoformat(entry["finishedAt"]) - datetime.fromisoformat(entry["startedAt"])
    return found | {"over": over.total_seconds()}


async def _created(fleet: Fleet) -> float:
    """Create the fleet; seconds until each has a status."""
    began = time.monotonic()
    await fleet.create()

    async def all_told() -> bool:
        return await fleet.with_status() >= fleet.services + 1

    await until("every service has a status", all_told, seconds=PATIENCE, every=1)
    return round(time.monotonic() - began, 1)
