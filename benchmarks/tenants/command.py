"""Measures the operator's memory and CPU time by tenants and series (see `benchmarks/operator_cost.py`).

The control plane, the pods and the operator are real: a process with the rights of its chart, started anew for each
cell. Prometheus is a stand-in with the byte-exact answers of a real one, which is asked at the beginning.
Must not: judge a figure.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from benchmarks.tenants.answering import STAND_IN, answering
from benchmarks.tenants.inside import enter_bed
from benchmarks.tenants.page import COST_COLUMNS, cost_of
from benchmarks.tenants.shapes import largest, loaded, recorded
from e2e import release
from e2e.bed import Bed
from e2e.binaries import ensure_binaries
from e2e.errors import BedError
from e2e.hostile.cost import Cost, Place
from e2e.hostile.limits import chart_limits
from e2e.ports import free_ports
from e2e.side_by_side import capped
from e2e.stage import SIMULATED_ENGINE, Stage, condition, until

TENANTS: Final = (1, 10, 50)
SERIES: Final = (100, 1_000, 10_000, 100_000)
INTERVAL: Final = 15
"""Seconds between ticks: the chart's."""
TICKS: Final = 3
"""Of each cell. The first one meets every tenant for the first time; the others are what goes on."""
HOME: Final = "tenant-0"
"""The namespace of the first tenant, and of the operator's Lease."""


def namespaces(count: int) -> list[str]:
    """The namespaces of so many tenants."""
    return [f"tenant-{number}" for number in range(count)]


class Fleet:
    """One VLLMService with one pod for each tenant."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.pods: dict[str, str] = {}

    async def begin(self, tenants: Sequence[str]) -> None:
        """Create the services, and wait until each has a pod that serves."""
        for namespace in tenants:
            body = capped(namespace, "chat", tuning={"mode": "Recommend"})
            await asyncio.to_thread(self._stage.apply, body)
        for namespace in tenants:
            beside = self._stage.beside(namespace)
            ready = partial(beside.ready_pods, "chat")
            (pod, *_) = await until(f"a pod of {namespace}", ready, seconds=600, every=1)
            self.pods[namespace] = pod["metadata"]["name"]

    async def seen(self, tenants: Sequence[str]) -> int:
        """Return of how many tenants the operator has metrics."""
        statuses = [await self._stage.beside(namespace).status("chat") for namespace in tenants]
        return sum(condition(status, "MetricsAvailable") == "True" for status in statuses)


async def cell(stage: Stage, fleet: Fleet, *, tenants: int, series: int, engines: int, stand_in: str) -> dict[str, Any]:
    """Run the operator for some ticks with so many tenants, each with so many engines."""
    served = namespaces(tenants)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        pods = {namespace: [fleet.pods[namespace]] for namespace in served}
        await client.put(f"{stand_in}/tenants", json={"pods": pods, "engines": engines})
        (port,) = free_ports(1)
        more = [part for namespace in served[1:] for part in ("--namespace", namespace)]
        stage.start_operator("--prometheus-url", stand_in, "--listen-address", f"127.0.0.1:{port}", *more)
        pid = stage.bed.processes.identity(stage.operator).pid

        async def find() -> Place:
            return Place(pid=pid, metrics=f"http://127.0.0.1:{port}/metrics")

        async with Cost(find) as cost:
            await until("the first tick", lambda: cost.ticks >= 1, seconds=180)
            first, cpu_first, began = cost.longest_tick, cost.cpu_seconds, time.monotonic()
            cost.longest_tick = 0.0
            await until("more ticks", lambda: cost.ticks >= TICKS, seconds=600)
            # Until the next one would begin: what is left behind by the last tick is done by then.
            await asyncio.sleep(INTERVAL - cost.longest_tick if cost.longest_tick < INTERVAL else 1)
            seen, lasted = await fleet.seen(served), time.monotonic() - began
        report = (await client.get(f"{stand_in}/report")).json()
        stage.stop_operator()
    if report["unknown"]:
        raise BedError(f"a question that was not recorded: {report['unknown'][0]}")
    return {
        "tenants": tenants,
        "series_per_tenant": series,
        "engines_per_tenant": engines,
        "tenants_with_metrics": seen,
        "sent_mib_per_tick": round(report["sent"] / cost.ticks / 2**20, 2),
        "peak_rss_mib": round(cost.peak_bytes / 2**20, 1),
        "cpu_s_per_minute": round((cost.cpu_seconds - cpu_first) / lasted * 60, 2),
        "first_tick_s": round(first, 2),
        "longest_tick_s": round(cost.longest_tick, 2),
        "loop_lag_s": round(cost.loop_lag, 3),
        "exceeded": {name: count for name, count in sorted(cost.exceeded.items()) if count},
    }


async def measured(*, tenants: Sequence[int], series: Sequence[int], console: Console) -> dict[str, Any]:
    """Measure every cell."""
    everybody = namespaces(max(tenants))
    cells = []
    async with Bed(images=[SIMULATED_ENGINE]) as bed:
        for namespace in everybody:
            await asyncio.to_thread(bed.create_namespace, namespace)
        async with Stage(bed, HOME, interval=f"{INTERVAL}s", window="30s") as stage:
            release.install_account(bed, namespace=HOME, served=everybody[1:])
            fleet = Fleet(stage)
            more = [part for namespace in everybody[1:] for part in ("--namespace", namespace)]
            stage.start_operator(*more)
            console.print(f"starting {len(everybody)} engines")
            await fleet.begin(everybody)
            stage.stop_operator()
            await asyncio.sleep(20)  # of scrapes, for the shapes
            shapes = await recorded(bed.prometheus_url, namespace=HOME, pod=fleet.pods[HOME], at=time.time())
            bed.prometheus.stop()
            answers = json.dumps(shapes)
            in_largest = largest(loaded(answers))
            stand_in = await answering(bed, answers)
            for count in tenants:
                for each in series:
                    found = await cell(
                        stage,
                        fleet,
                        tenants=count,
                        series=each,
                        engines=max(1, round(each / in_largest)),
                        stand_in=stand_in,
                    )
                    cells.append(found)
                    console.print(found, highlight=False)
            bed.processes.stop(STAND_IN)
    limits = chart_limits()
    return {
        "summary": {
            "peak_rss_mib": max(each["peak_rss_mib"] for each in cells),
            "rss_limit_mib": limits.memory_bytes / 2**20,
            "longest_tick_s": max(max(each["longest_tick_s"], each["first_tick_s"]) for each in cells),
            "tick_limit_s": limits.tick_seconds,
            "longest_loop_lag_s": max(each["loop_lag_s"] for each in cells),
            "series_of_an_engine_in_the_largest_answer": in_largest,
            "series_of_an_engine_in_all_answers": sum(len(shape["entries"]) for shape in shapes.values()),
        },
        "cells": cells,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, nargs="+", default=TENANTS, metavar="N")
    parser.add_argument("--series", type=int, nargs="+", default=SERIES, metavar="N", help="of each tenant")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/operator_cost.json")
    given = parser.parse_args(arguments)
    if min(*given.tenants, *given.series, 1) < 1:
        parser.error("numbers must be at least 1")
    if given.save:
        require_clean_tree()
    ensure_binaries()
    enter_bed()
    console = Console(width=180)
    try:
        figures = asyncio.run(measured(tenants=given.tenants, series=given.series, console=console))
    except BedError as error:
        print(error, file=sys.stderr)
        return 1
    if given.save:
        write_result("operator_cost", figures)
    table = Table(*COST_COLUMNS, "with metrics")
    for each in figures["cells"]:
        table.add_row(*cost_of(each), f"{each['tenants_with_metrics']} of {each['tenants']}")
    console.print(table)
    return 0
