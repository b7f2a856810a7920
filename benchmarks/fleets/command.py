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
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.fleets.metrics_servers import MetricsServer, RealPrometheus, StandIn, samples_of, scraping
from benchmarks.fleets.page import FLEET_COLUMNS, row_of
from benchmarks.fleets.played_node import played_node
from benchmarks.result_files import require_clean_tree, write_result
from benchmarks.tenants.answering import answering
from benchmarks.tenants.inside import enter_bed
from benchmarks.tenants.shapes import recorded
from e2e import release
from e2e.api_proxy import ApiProxy
from e2e.bed import NODE, Bed, import_path
from e2e.binaries import ensure_binaries
from e2e.errors import BedError
from e2e.hostile.cost import Cost, Place, process
from e2e.hostile.limits import chart_limits
from e2e.network import GATEWAY
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.prometheus import pod_discovery
from e2e.stage import MODEL, SIMULATED_ENGINE, Stage, condition, engine_env, until
from vllm_autotuner.simulation.load import Load, Traffic

HOME: Final = "fleet-home"
"""The namespace of the operator's Lease, and of the one real engine, whose metrics all others repeat."""
PER_NAMESPACE: Final = 25
INTERVAL: Final = 15.0
"""Seconds between ticks: the chart's."""
SAMPLED: Final = 90.0
"""Seconds for which the real engine is scraped before its answers are recorded: a state window, and some more."""
LOOK: Final = 5.0
"""Seconds between two looks at the operator's metrics: about as often as a Prometheus scrapes them."""
SERVICES: Final = "/apis/vllm-autotuner.dev/v1alpha1/vllmservices"
CHANGE: Final = {
    "id": "left-behind",
    "generation": 1,
    "knob": "maxNumSeqs",
    "fromValue": "4",
    "toValue": "8",
    "from": {"maxNumSeqs": 4, "configHash": "aaaa"},
    "to": {"maxNumSeqs": 8, "configHash": "bbbb"},
    "target": "TTFT",
    "state": "Analyzing",
    "stateSince": "2026-03-01T12:00:00Z",
}
"""A change as a status has it whose operator is gone. Its canary is gone as well, so that the next one acts on it."""
CREATED_AT_ONCE: Final = 16
PAGE: Final = 500
TROUBLES: Final[Mapping[str, Mapping[str, float | bool]]] = {
    "each answer takes 3 s": {"delay": 3.0},
    "every third answer fails": {"fails": 3},
    "no answer in time": {"delay": 60.0},
    "all series are lost": {"empty": True},
}
"""What is wrong with Prometheus, one after the other."""
TROUBLED: Final = 120.0
"""Seconds of each trouble: eight ticks."""
WRITES: Final = ("POST", "PUT", "PATCH", "APPLY", "DELETE")


@dataclass(slots=True)
class Fleet:
    """The services of one measurement, and what the API server says of them."""

    stage: Stage
    services: int
    engines: int
    """Of each service."""
    namespaces: list[str] = field(default_factory=list)

    def name_of(self, number: int) -> tuple[str, str]:
        """Namespace and name of a service."""
        return self.namespaces[number // PER_NAMESPACE], f"svc-{number:05}"

    async def create(self) -> None:
        """Create all services at once, as a pipeline does."""
        limit = asyncio.Semaphore(CREATED_AT_ONCE)

        async def one(number: int) -> None:
            namespace, name = self.name_of(number)
            body = vllm_service(namespace, name, replicas=self.engines)
            path = f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices"
            async with limit:
                answer = await self.stage.api.post(path, json=body)
            if answer.status_code != httpx.codes.CREATED:
                raise BedError(f"{name}: {answer.json()['message']}")

        await asyncio.gather(*(one(number) for number in range(self.services)))

    async def listed(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        """Everything of a list, page by page."""
        items: list[dict[str, Any]] = []
        asked = {"limit": str(PAGE), **parameters}
        while True:
            answer = await self.stage.api.get(path, params=asked)
            answer.raise_for_status()
            found = answer.json()
            items += found["items"]
            if not (more := found["metadata"].get("continue")):
                return items
            asked["continue"] = more

    async def with_status(self) -> int:
        """How many services have a status."""
        return sum(bool(each.get("status")) for each in await self.listed(SERVICES))

    async def with_metrics(self) -> int:
        """How many services the operator has metrics of."""
        found = [each.get("status") or {} for each in await self.listed(SERVICES)]
        return sum(condition(status, "MetricsAvailable") == "True" for status in found)

    async def pods(self) -> Mapping[str, list[str]]:
        """The names of the pods that serve, by namespace."""
        found: dict[str, list[str]] = {}
        for pod in await self.listed("/api/v1/pods", fieldSelector="spec.nodeName=played,status.phase=Running"):
            found.setdefault(pod["metadata"]["namespace"], []).append(pod["metadata"]["name"])
        return found

    async def leave_a_change(self, number: int) -> object:
        """Write a running change into the status of a service, as the operator that is gone would have; return it as
        the API server has stored it."""
        answer = await self.stage.api.patch(
            f"{self._path_of(number)}/status",
            json={"status": {"activeChange": CHANGE}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        answer.raise_for_status()
        return answer.json()["status"]["activeChange"]

    async def change_of(self, number: int) -> object:
        """The running change of a service, None without one."""
        return ((await self.stage.get(self._path_of(number))).get("status") or {}).get("activeChange")

    def _path_of(self, number: int) -> str:
        namespace, name = self.name_of(number)
        return f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices/{name}"

    async def transitions(self) -> int:
        """How many times the operator's Lease has changed hands."""
        lease = await self.stage.get(f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/{release.RELEASE}")
        return int(lease["spec"].get("leaseTransitions") or 0)

    async def writes(self) -> int:
        """How many writes of VLLMServices the API server has answered: those of their status are the operator's."""
        page = (await self.stage.api.get("/metrics")).text
        return sum(
            round(sample.value)
            for sample in samples_of(page)
            if sample.name == "apiserver_request_total"
            and sample.labels.get("resource") == "vllmservices"
            and sample.labels.get("subresource") == "status"
            and sample.labels.get("verb") in WRITES
        )


@dataclass(slots=True)
class Operator:
    """The operator's process of a stage, started with these arguments."""

    stage: Stage
    prometheus: str
    port: int = 0

    def start(self, *arguments: str) -> None:
        """Start it, over all namespaces."""
        (self.port,) = free_ports(1)
        self.stage.start_operator(
            "--prometheus-url", self.prometheus, "--listen-address", f"127.0.0.1:{self.port}",
            "--interval", f"{INTERVAL:g}s", "--window", "60s", *arguments,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process."""
        return self.stage.bed.processes.identity(self.stage.operator).pid

    async def place(self) -> Place:
        """Where it is watched."""
        return Place(pid=self.pid, metrics=f"http://127.0.0.1:{self.port}/metrics")


async def cell(
    fleet: Fleet, operator: Operator, *, server: MetricsServer, minutes: float, troubles: bool, console: Console
) -> dict[str, Any]:
    """Create the fleet beside a running operator, let it settle, measure it, and kill the operator once."""
    operator.start()
    async with Cost(operator.place, every=LOOK) as cost:
        await until("the first tick", lambda: cost.ticks >= 1, seconds=120)
        idle_bytes, began = cost.peak_bytes, time.monotonic()
        await fleet.create()
        created = time.monotonic() - began
        console.print(f"{fleet.services} services were created in {created:.0f} s")

        async def all_told() -> bool:
            return await fleet.with_status() == fleet.services

        await until("every service has a status", all_told, seconds=1200, every=1)
        told = time.monotonic() - began
        console.print(f"every service has a status after {told:.0f} s")
        engines = fleet.services * fleet.engines

        async def all_serve() -> bool:
            return sum(map(len, (await fleet.pods()).values())) == engines

        await until("every engine runs", all_serve, seconds=1800, every=3)
        console.print(f"every engine runs after {time.monotonic() - began:.0f} s")
        await server.serve(await fleet.pods())

        async def all_seen() -> bool:
            return await fleet.with_metrics() == fleet.services

        await until("the operator has metrics of every service", all_seen, seconds=1200, every=5)
        console.print(f"it has metrics of every service after {time.monotonic() - began:.0f} s")
        # What came with the metrics (conditions, diagnoses) is written by then.
        await settled(cost, ticks=4)
        before, writes = await server.counted(), await fleet.writes()
        ticks, cpu, at = cost.ticks, cost.cpu_seconds, time.monotonic()
        cost.longest_tick = 0.0
        await until("ticks of a steady fleet", lambda: time.monotonic() - at > minutes * 60, seconds=minutes * 90)
        await settled(cost, ticks=1)
        ticks, cpu, writes = cost.ticks - ticks, cost.cpu_seconds - cpu, await fleet.writes() - writes
        lasted, after = time.monotonic() - at, await server.counted()
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            told_by_it = (await client.get((await operator.place()).metrics)).text
        steady = {
            "cpu_s_per_tick": round(cpu / ticks, 3),
            "longest_tick_s": round(cost.longest_tick, 2),
            "cycle_s": round(lasted / ticks, 2),
            "queries_per_tick": round((after.asked - before.asked) / ticks, 1),
            "mib_per_tick": round((after.sent - before.sent) / ticks / 2**20, 2),
            "status_writes": writes,
            "ticks": ticks,
            **kinds(told_by_it),
        }
        peak, lag, failed = cost.peak_bytes, cost.loop_lag, cost.failed
        # Before the troubles, which take a quarter of an hour.
        console.print(f"a steady fleet: {steady}, peak RSS {peak / 2**20:.0f} MiB, loop lag {lag:.2f} s")
        troubled = []
        if troubles:
            assert isinstance(server, StandIn), "a real Prometheus has no troubles on demand"
            troubled = await in_trouble(fleet, cost, stand_in=server, console=console)
    again = await taken_over(fleet, operator, server=server)
    hindered = await behind_a_bad_api(fleet, operator, console=console) if troubles else []
    return {
        "services": fleet.services,
        "engines": engines,
        "peak_rss_mib": round(peak / 2**20, 1),
        "rss_before_mib": round(idle_bytes / 2**20, 1),
        "loop_lag_s": round(lag, 3),
        "created_s": round(created, 1),
        "status_for_all_s": round(told, 1),
        "failed": failed,
        **steady,
        **again,
        "troubles": troubled,
        "api_troubles": hindered,
    }


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


def kinds(page: str) -> dict[str, Any]:
    """Services by diagnosis, and how many of them rested in the last tick, as the operator's metrics tell."""
    samples = list(samples_of(page))
    return {
        "calm": next(each.value for each in samples if each.name == "vllm_autotuner_calm_services"),
        "diagnoses": {
            each.labels["diagnosis"]: each.value for each in samples if each.name == "vllm_autotuner_services"
        },
    }


async def settled(cost: Cost, *, ticks: int) -> None:
    """Wait for the end of so many ticks."""
    wanted = cost.ticks + ticks
    await until("ticks", lambda: cost.ticks >= wanted, seconds=600)


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
    sizes: Sequence[tuple[int, int]],
    *,
    minutes: float,
    troubles: int | None,
    real: bool,
    keep: Callable[[Mapping[str, Any]], object],
    console: Console,
) -> dict[str, Any]:
    """Measure each fleet, given as services and engines of each, on a control plane of its own.

    `keep` gets the figures after each: one more fleet may take half an hour. `troubles`: of the fleets of so many
    services. `real`: beside a real Prometheus.
    """
    limits = chart_limits()
    cells: list[dict[str, Any]] = []
    figures = {"rss_limit_mib": limits.memory_bytes / 2**20, "tick_limit_s": limits.tick_seconds, "cells": cells}
    shapes = ""
    for services, engines in sizes:
        async with Bed(images=[SIMULATED_ENGINE]) as bed:
            await asyncio.to_thread(bed.create_namespace, HOME)
            async with Stage(bed, HOME, interval=f"{INTERVAL:g}s", window="60s") as stage:
                if not real:
                    shapes = shapes or await one_engine(stage, console=console)
                fleet = await fleet_on(stage, services=services, engines=engines)
                answered = scraped_for_all(bed) if real else repeated_for_all(bed, shapes)
                async with answered as server, played_node(bed.admin_kubeconfig):
                    found = await cell(
                        fleet,
                        Operator(stage, server.url),
                        server=server,
                        minutes=minutes,
                        troubles=troubles == services,
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


async def fleet_on(stage: Stage, *, services: int, engines: int) -> Fleet:
    """The fleet to come: its namespaces, and an operator's rights over all of them."""
    bed = stage.bed
    # Whatever is scheduled from now on is played.
    bed.kubectl("cordon", NODE)
    fleet = Fleet(stage=stage, services=services, engines=engines)
    fleet.namespaces = [f"fleet-{number:03}" for number in range((services - 1) // PER_NAMESPACE + 1)]
    for namespace in fleet.namespaces:
        await asyncio.to_thread(bed.create_namespace, namespace)
    await asyncio.to_thread(release.install_account, bed, namespace=HOME, everywhere=True)
    stage.everywhere = True
    return fleet


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/fleet.py",
        description="Measure what one operator costs beside a fleet of VLLMServices, on a real control plane.",
        epilog="Example: python benchmarks/fleet.py --services 1000 2000 --engines-per-service 1 3 --minutes 3",
    )
    parser.add_argument("--services", type=int, nargs="+", default=[1000], metavar="N", help="fleets to measure")
    parser.add_argument("--engines-per-service", type=int, nargs="+", default=[1], metavar="R", help="one for each")
    parser.add_argument("--minutes", type=float, default=3.0, metavar="M", help="of the steady fleet (default 3)")
    parser.add_argument(
        "--troubles", type=int, metavar="N", help="let Prometheus and API server be slow and fail beside this fleet"
    )
    parser.add_argument(
        "--real-prometheus", action="store_true", help="instead of the stand-in; it holds some hundred engines"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results")
    given = parser.parse_args(arguments)
    if min(*given.services, *given.engines_per_service, 1) < 1 or given.minutes <= 0:
        parser.error("numbers must be at least 1")
    engines = given.engines_per_service * (len(given.services) if len(given.engines_per_service) == 1 else 1)
    if len(engines) != len(given.services):
        parser.error("--engines-per-service: give one number, or one for each of --services")
    if given.troubles not in (None, *given.services):
        parser.error(f"--troubles: {given.troubles} is none of --services")
    if given.troubles is not None and given.real_prometheus:
        parser.error("--troubles are the stand-in's: leave --real-prometheus out")
    if given.save:
        require_clean_tree()
    ensure_binaries()
    enter_bed()
    console = Console(width=180, stderr=True)
    try:
        sizes = list(zip(given.services, engines, strict=True))
        keep = (
            partial(write_result, "fleet_real_prometheus" if given.real_prometheus else "fleet")
            if given.save
            else lambda figures: None
        )
        figures = asyncio.run(
            measured(
                sizes,
                minutes=given.minutes,
                troubles=given.troubles,
                real=given.real_prometheus,
                keep=keep,
                console=console,
            )
        )
    except (BedError, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(figures, indent=1))
        return 0
    table = Table(*FLEET_COLUMNS)
    for each in figures["cells"]:
        table.add_row(*row_of(each))
    Console(width=180).print(table)
    return 0
