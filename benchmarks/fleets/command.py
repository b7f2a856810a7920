"""Measures one operator beside a fleet of services (see `benchmarks/fleet.py`).

API server, etcd, controllers, scheduler and the operator are real: the operator is a process with the rights of its
chart. The pods are played (`played_node`), and Prometheus is a stand-in with the bytes of a real one
(`benchmarks/tenants`), because neither fits on a machine for tests; with `--real-prometheus` it is a real one, which
scrapes one engine under the names of all.
Must not: judge a figure.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.fleets.canary import canaries
from benchmarks.fleets.fleet import HOME, INTERVAL, LOOK, Fleet, Operator, fleet_on, settled
from benchmarks.fleets.metrics_servers import MetricsServer, RealPrometheus, StandIn, samples_of, scraping
from benchmarks.fleets.page import CANARY_COLUMNS, FLEET_COLUMNS, SHARD_COLUMNS, canary_row_of, row_of, rows_of_shards
from benchmarks.fleets.played_node import played_node
from benchmarks.fleets.reference_loop import machine_speed
from benchmarks.fleets.troubles import behind_a_bad_api, in_trouble
from benchmarks.result_files import require_clean_tree, write_result
from benchmarks.tenants.answering import answering
from benchmarks.tenants.inside import enter_bed
from benchmarks.tenants.shapes import recorded
from e2e.bed import NODE, Bed, import_path
from e2e.binaries import ensure_binaries
from e2e.errors import BedError
from e2e.hostile.cost import Cost, process
from e2e.hostile.limits import chart_limits
from e2e.network import GATEWAY
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.prometheus import pod_discovery
from e2e.stage import MODEL, SIMULATED_ENGINE, Stage, engine_env, until
from vllm_autotuner.control.shard import WHOLE, Shard
from vllm_autotuner.simulation.load import Load, Traffic

SAMPLED: Final = 90.0
"""Seconds for which the real engine is scraped before its answers are recorded: a state window, and some more."""


async def cell(
    fleet: Fleet, operator: Operator, *, server: MetricsServer, minutes: float, troubles: bool, console: Console
) -> dict[str, Any]:
    """Create the fleet beside a running operator, let it settle, measure it, and kill the operator once."""
    operator.start()
    async with Cost(operator.place, every=LOOK) as cost:
        await until("the first tick", lambda: cost.ticks >= 1, seconds=120)
        idle_bytes = cost.peak_bytes
        waits = await grown(fleet, [cost], server=server, console=console)
        before = await server.counted()
        async with machine_speed() as speed:
            found = await steady(fleet, operator, cost, minutes=minutes)
        after = await server.counted()
        found |= speed | {
            "rss_before_mib": round(idle_bytes / 2**20, 1),
            "queries_per_tick": round((after.asked - before.asked) / found["ticks"], 1),
            "mib_per_tick": round((after.sent - before.sent) / found["ticks"] / 2**20, 2),
        }
        # Before the troubles, which take a quarter of an hour.
        console.print(f"a steady fleet: {found}")
        troubled = []
        if troubles:
            assert isinstance(server, StandIn), "a real Prometheus has no troubles on demand"
            troubled = await in_trouble(fleet, cost, stand_in=server, console=console)
    again = await taken_over(fleet, operator, server=server)
    hindered = await behind_a_bad_api(fleet, operator, console=console) if troubles else []
    return {
        "services": fleet.services,
        "engines": fleet.all_engines,
        **waits,
        **found,
        **again,
        "troubles": troubled,
        "api_troubles": hindered,
    }


async def in_shards(
    fleet: Fleet, operators: Sequence[Operator], *, server: MetricsServer, minutes: float, console: Console
) -> dict[str, Any]:
    """Create the fleet beside an operator for each shard, let it settle, and measure what each costs; then once more
    how much memory, of processes that have not seen the creation."""
    shards = [("--shard", f"{number}/{len(operators)}") for number in range(len(operators))]
    async with AsyncExitStack() as stack:
        costs = []
        for operator, shard in zip(operators, shards, strict=True):
            operator.start(*shard)
            costs.append(await stack.enter_async_context(Cost(operator.place, every=LOOK)))
        await until("the first ticks", lambda: all(cost.ticks >= 1 for cost in costs), seconds=120)
        waits = await grown(fleet, costs, server=server, console=console)
        async with machine_speed() as speed:
            each = await asyncio.gather(
                *(steady(fleet, *pair, minutes=minutes) for pair in zip(operators, costs, strict=True))
            )
    again = await asyncio.gather(*(started_again(*pair) for pair in zip(operators, shards, strict=True)))
    return {
        "services": fleet.services,
        "engines": fleet.all_engines,
        **waits,
        **speed,
        "shards": [found | {"start_peak_rss_mib": peak} for found, peak in zip(each, again, strict=True)],
    }


async def beside_others(
    fleet: Fleet,
    others: Fleet,
    operator: Operator,
    *,
    shard: Shard,
    server: MetricsServer,
    minutes: float,
    console: Console,
) -> dict[str, Any]:
    """As `in_shards`, but of one shard alone, beside what the others would have made: their operators and their pods'
    controllers do not fit on the same machine."""
    arguments = ("--shard", f"{shard.number}/{shard.of}")
    await others.create_with_pods()
    console.print(f"{others.services} services of other shards were created")
    operator.start(*arguments)
    async with Cost(operator.place, every=LOOK) as cost:
        await until("the first tick", lambda: cost.ticks >= 1, seconds=120)
        waits = await grown(fleet, [cost], server=server, console=console)
        async with machine_speed() as speed:
            found = await steady(fleet, operator, cost, minutes=minutes)
    found |= {"start_peak_rss_mib": await started_again(operator, arguments)}
    return {
        "services": fleet.services + others.services,
        "engines": fleet.all_engines + others.all_engines,
        **waits,
        **speed,
        "number": shard.number,
        "of": shard.of,
        "shards": [found],
    }


async def started_again(operator: Operator, arguments: Sequence[str]) -> float:
    """Kill an operator and start it; the most memory (MiB) that it has taken after some ticks."""
    operator.stage.kill_operator()
    operator.start(*arguments)
    async with Cost(operator.place, every=LOOK) as cost:
        await settled(cost, ticks=4)
    return round(process(operator.pid).peak_bytes / 2**20, 1)


async def grown(fleet: Fleet, costs: Sequence[Cost], *, server: MetricsServer, console: Console) -> dict[str, Any]:
    """Create the fleet beside what runs, and let it be seen; how long was waited for what."""
    began = time.monotonic()
    await fleet.create()
    created = time.monotonic() - began
    console.print(f"{fleet.services} services were created in {created:.0f} s")

    async def all_told() -> bool:
        return await fleet.with_status() == fleet.services

    await until("every service has a status", all_told, seconds=1200, every=1)
    told = time.monotonic() - began
    console.print(f"every service has a status after {told:.0f} s")

    async def all_serve() -> bool:
        return sum(map(len, (await fleet.pods()).values())) == fleet.all_engines

    await until("every engine runs", all_serve, seconds=1800, every=3)
    console.print(f"every engine runs after {time.monotonic() - began:.0f} s")
    await server.serve(await fleet.pods())

    async def all_seen() -> bool:
        return await fleet.with_metrics() == fleet.services

    await until("the operator has metrics of every service", all_seen, seconds=1200, every=5)
    console.print(f"it has metrics of every service after {time.monotonic() - began:.0f} s")
    # What came with the metrics (conditions, diagnoses) is written by then, and what ends with the minute of warm-up:
    # that is told with the fourth tick, or the fifth.
    await asyncio.gather(*(settled(cost, ticks=6) for cost in costs))
    return {"created_s": round(created, 1), "status_for_all_s": round(told, 1)}


async def steady(fleet: Fleet, operator: Operator, cost: Cost, *, minutes: float) -> dict[str, Any]:
    """What an operator costs beside a fleet in which nothing happens; peaks are those since its start."""
    writes, ticks, cpu, at = await fleet.writes(), cost.ticks, cost.cpu_seconds, time.monotonic()
    cost.longest_tick = 0.0
    await until("ticks of a steady fleet", lambda: time.monotonic() - at > minutes * 60, seconds=minutes * 90)
    await settled(cost, ticks=1)
    ticks, cpu, writes = cost.ticks - ticks, cost.cpu_seconds - cpu, await fleet.writes() - writes
    lasted = time.monotonic() - at
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        told_by_it = (await client.get((await operator.place()).metrics)).text
    return {
        "cpu_s_per_tick": round(cpu / ticks, 3),
        "longest_tick_s": round(cost.longest_tick, 2),
        "cycle_s": round(lasted / ticks, 2),
        "status_writes": writes,
        "ticks": ticks,
        "peak_rss_mib": round(cost.peak_bytes / 2**20, 1),
        "loop_lag_s": round(cost.loop_lag, 3),
        "failed": cost.failed,
        **kinds(told_by_it),
    }


def kinds(page: str) -> dict[str, Any]:
    """Services by diagnosis, and how many of them rested in the last tick, as the operator's metrics tell."""
    samples = list(samples_of(page))
    return {
        "calm": next(each.value for each in samples if each.name == "vllm_autotuner_calm_services"),
        "diagnoses": {
            each.labels["diagnosis"]: each.value for each in samples if each.name == "vllm_autotuner_services"
        },
    }


async def taken_over(fleet: Fleet, operator: Operator, *, server: MetricsServer) -> dict[str, Any]:
    """Kill the operator in the middle of a tick and start it: seconds until it acts on a change that was running, and
    until its first tick has ended; and what that took."""
    known = await server.counted()

    async def asks() -> bool:
        return (await server.counted()).asked > known.asked

    await until("questions of the next tick", asks, seconds=60, every=0.02)
    operator.stage.kill_operator()
    began = time.monotonic()
    changing = fleet.services - 1
    left = await fleet.leave_a_change(changing)
    operator.start()
    async with Cost(operator.place) as cost:

        async def goes_on() -> bool:
            return await fleet.change_of(changing) != left

        await until("the running change goes on", goes_on, seconds=600)
        decided = time.monotonic() - began
        await until("the first tick after a kill", lambda: cost.ticks >= 1, seconds=600)
        took = time.monotonic() - began
        figures = process(operator.pid)
    operator.stage.stop_operator()
    return {
        "change_goes_on_after_kill_s": round(decided, 1),
        "first_tick_after_kill_s": round(took, 1),
        "start_cpu_s": round(figures.cpu_seconds, 2),
        "start_peak_rss_mib": round(figures.peak_bytes / 2**20, 1),
    }


async def measured(
    sizes: Sequence[tuple[int, float]],
    *,
    minutes: float,
    troubles: bool,
    shards: int,
    others: int,
    real: bool,
    keep: Callable[[Mapping[str, Any]], object],
    console: Console,
) -> dict[str, Any]:
    """Measure each fleet, given as services and engines of each, on a control plane of its own.

    `keep` gets the figures after each: one more fleet may take half an hour. `troubles`: each has them. `shards`: so
    many operators share the fleet. `others`: the fleet is the first shard's, and so many services of the others stand
    beside it. `real`: beside a real Prometheus.
    """
    limits = chart_limits()
    cells: list[dict[str, Any]] = []
    figures = {"rss_limit_mib": limits.memory_bytes / 2**20, "tick_limit_s": limits.tick_seconds, "cells": cells}
    shapes = ""
    first = Shard(0, shards)
    for services, engines in sizes:
        async with Bed(images=[SIMULATED_ENGINE]) as bed:
            await asyncio.to_thread(bed.create_namespace, HOME)
            async with Stage(bed, HOME, interval=f"{INTERVAL:g}s", window="60s") as stage:
                if not real:
                    shapes = shapes or await one_engine(stage, console=console)
                of = first.has if others else WHOLE.has
                fleet = await fleet_on(stage, services=services, engines=engines, shards=shards, of=of)
                # Whatever is scheduled from now on is played.
                bed.kubectl("cordon", NODE)
                answered = scraped_for_all(bed) if real else repeated_for_all(bed, shapes)
                async with answered as server, played_node(bed.admin_kubeconfig):
                    if others:
                        beside = await fleet_on(
                            stage, services=others, engines=engines, shards=shards, of=lambda name: not first.has(name)
                        )
                        operator = Operator(replace(stage, operator=f"{stage.operator}-0"), server.url)
                        found = await beside_others(
                            fleet, beside, operator, shard=first, server=server, minutes=minutes, console=console
                        )
                    elif shards > 1:
                        names = [f"{stage.operator}-{number}" for number in range(shards)]
                        operators = [Operator(replace(stage, operator=name), server.url) for name in names]
                        found = await in_shards(fleet, operators, server=server, minutes=minutes, console=console)
                    else:
                        found = await cell(
                            fleet,
                            Operator(stage, server.url),
                            server=server,
                            minutes=minutes,
                            troubles=troubles,
                            console=console,
                        )
        cells.append(found)
        console.print(found, highlight=False)
        keep(figures)
    return figures


async def one_engine(stage: Stage, *, console: Console) -> str:
    """Run one engine under load, and record what Prometheus says of it."""
    console.print(f"recording the answers about one engine ({SAMPLED:.0f} s)")
    stage.apply(vllm_service(HOME, "recorded", podTemplate=engine_env(step_base_ms=10, startup_seconds=1)))
    stage.start_operator()
    (pod,) = await until("an engine", lambda: stage.ready_pods("recorded"), seconds=120)
    async with asyncio.timeout(SAMPLED + 60):
        await stage.load_on("recorded", clients=2)
        await asyncio.sleep(SAMPLED)
    shapes = await recorded(stage.bed.prometheus_url, namespace=HOME, pod=pod["metadata"]["name"], at=time.time())
    stage.stop_operator()
    await stage.loads.pop("recorded").__aexit__(None, None, None)
    stage.bed.kubectl("-n", HOME, "delete", "vllm", "recorded", "--wait=true")
    return json.dumps(shapes)


@asynccontextmanager
async def scraped_for_all(bed: Bed) -> AsyncIterator[RealPrometheus]:
    """Let the bed's Prometheus scrape one engine under load, a process, under the name of each pod of the fleet."""
    engine = f"{GATEWAY}:{free_ports(1)[0]}"
    host, port = engine.split(":")
    bed.processes.start(
        "engine",
        [sys.executable, "-m", "vllm_autotuner.simulation.server", "serve", MODEL, "--host", host, "--port", port],
        environment=os.environ | {"PYTHONPATH": import_path(), "SIM_STEP_BASE_MS": "10", "SIM_STARTUP_SECONDS": "1"},
    )
    await until("the engine listens", lambda: bed.processes.listens("engine", port=int(port)), seconds=60)
    pods = pod_discovery(api_url=bed.api_url, ca_file=bed.ca_file, token_file=bed.control_plane.admin_token_file)
    bed.prometheus.reconfigure(scraping(pods, engine=engine, namespaces="fleet-.*"))
    async with Load(lambda: (f"http://{engine}",), Traffic(model=MODEL), clients=2):
        yield RealPrometheus(bed.prometheus.url)


@asynccontextmanager
async def repeated_for_all(bed: Bed, shapes: str) -> AsyncIterator[StandIn]:
    """Have the stand-in in place of the bed's Prometheus."""
    bed.prometheus.stop()
    yield StandIn(await answering(bed, shapes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/fleet.py",
        description="Measure what one operator costs beside a fleet of VLLMServices, on a real control plane.",
        epilog="Example: python benchmarks/fleet.py --services 1000 2000 --engines-per-service 1 3 --minutes 3",
    )
    parser.add_argument("--services", type=int, nargs="+", default=[1000], metavar="N", help="fleets to measure")
    parser.add_argument(
        "--engines-per-service", type=float, nargs="+", default=[1], metavar="R", help="one for each; 2.5: two or three"
    )
    parser.add_argument("--minutes", type=float, default=3.0, metavar="M", help="of the steady fleet (default 3)")
    parser.add_argument(
        "--troubles", action="store_true", help="let Prometheus and API server be slow and fail beside each fleet"
    )
    parser.add_argument("--shards", type=int, default=1, metavar="S", help="operators that share each fleet")
    parser.add_argument(
        "--others",
        type=int,
        default=0,
        metavar="N",
        help="the fleet is that of the first of --shards; N services of the others stand beside it, without operators",
    )
    parser.add_argument(
        "--real-prometheus", action="store_true", help="instead of the stand-in; it holds some hundred engines"
    )
    parser.add_argument(
        "--canary", action="store_true", help="instead: one canary, judged alone and beside each fleet's creation"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results")
    given = parser.parse_args(arguments)
    if min(*given.services, *given.engines_per_service, given.shards) < 1 or given.minutes <= 0:
        parser.error("numbers must be at least 1")
    engines = given.engines_per_service * (len(given.services) if len(given.engines_per_service) == 1 else 1)
    if len(engines) != len(given.services):
        parser.error("--engines-per-service: give one number, or one for each of --services")
    asked = {
        "troubles": given.troubles,
        "real_prometheus": given.real_prometheus,
        "shards": given.shards > 1,
        "canary": given.canary,
    }
    if given.others and given.shards == 1:
        parser.error("--others: give --shards as well")
    kind = [name for name, wanted in asked.items() if wanted]
    if len(kind) > 1:
        parser.error("--troubles, --real-prometheus, --shards and --canary: one at a time")
    if given.save:
        require_clean_tree()
    ensure_binaries()
    enter_bed()
    console = Console(width=180, stderr=True)
    try:
        sizes = list(zip(given.services, engines, strict=True))
        kind += ["others"] * bool(given.others)
        keep = partial(write_result, "_".join(["fleet", *kind])) if given.save else lambda figures: None
        measuring = (
            canaries(given.services, keep=keep, console=console)
            if given.canary
            else measured(
                sizes,
                minutes=given.minutes,
                troubles=given.troubles,
                shards=given.shards,
                others=given.others,
                real=given.real_prometheus,
                keep=keep,
                console=console,
            )
        )
        figures = asyncio.run(measuring)
    except (BedError, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(figures, indent=1))
        return 0
    columns, rows = (
        (CANARY_COLUMNS, lambda each: [canary_row_of(each)])
        if given.canary
        else (SHARD_COLUMNS, rows_of_shards)
        if given.shards > 1
        else (FLEET_COLUMNS, lambda each: [row_of(each)])
    )
    table = Table(*columns)
    for each in figures["cells"]:
        for row in rows(each):
            table.add_row(*row)
    Console(width=180).print(table)
    return 0
