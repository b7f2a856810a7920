"""Two clusters behind one address: the real Thanos over two Prometheus that know a pod of the same name each.

Apart from the Prometheus with two jobs (`test_doctor_and_watch`), because a Thanos adds the label that tells clusters
apart itself, answers with warnings, and forgets a store that is gone.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

from e2e.bed import Bed, import_path
from e2e.operator_account import vllm_service
from e2e.ports import free_ports
from e2e.prometheus import SCRAPE_CONFIG, Prometheus, pod_discovery
from e2e.side_by_side import CROWD, PATIENCE
from e2e.stage import ENGINE_IMAGE, MODEL, Stage, condition, engine_env, until
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.simulation.load import Load, Traffic

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.control_plane, pytest.mark.thanos]

HERE, THERE = "eu", "us"
"""The cluster of the operator, and another one."""
SEATS: Final = 4
QUERY: Final = "thanos-query"


@dataclass(frozen=True, slots=True)
class Thanos:
    """One address for the Prometheus of both clusters."""

    bed: Bed
    url: str

    async def clusters_of(self, pod: str) -> set[str]:
        """In which clusters an engine is seen under this pod's name."""
        query = f'vllm:num_requests_running{{pod="{pod}"}}'
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.get(f"{self.url}/api/v1/query", params={"query": query})
        return {series["metric"]["cluster"] for series in answer.json()["data"]["result"]}

    def lose(self, cluster: str) -> None:
        """The other cluster's metrics are out of reach."""
        self.bed.processes.stop(_sidecar(cluster))


def _sidecar(cluster: str) -> str:
    return f"thanos-{cluster}"


@asynccontextmanager
async def behind_one_address(
    bed: Bed, thanos: Path, servers: Mapping[str, str], *, folder: Path
) -> AsyncIterator[Thanos]:
    """A sidecar for the Prometheus of each cluster, and a querier over them."""
    grpc: dict[str, str] = {}
    for cluster, url in servers.items():
        ports = free_ports(2)
        grpc[cluster] = f"127.0.0.1:{ports[0]}"
        command = [
            *(str(thanos), "sidecar", f"--prometheus.url={url}", f"--tsdb.path={folder / cluster}"),
            *(f"--grpc-address={grpc[cluster]}", f"--http-address=127.0.0.1:{ports[1]}"),
        ]
        (folder / cluster).mkdir()
        bed.processes.start(_sidecar(cluster), command)
    (port, other) = free_ports(2)
    endpoints = [f"--endpoint={address}" for address in grpc.values()]
    addresses = [f"--http-address=127.0.0.1:{port}", f"--grpc-address=127.0.0.1:{other}"]
    bed.processes.start(QUERY, [str(thanos), "query", *endpoints, *addresses])
    try:
        yield Thanos(bed, f"http://127.0.0.1:{port}")
    finally:
        for name in (QUERY, *map(_sidecar, servers)):
            bed.processes.stop(name)


@asynccontextmanager
async def engine_under_load(bed: Bed) -> AsyncIterator[str]:
    """An engine with more people than seats, which is no pod of this cluster; yields its URL."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm_autotuner.simulation.server", "serve", MODEL, "--max-num-seqs", f"{SEATS}"]
    slow = {"SIM_STEP_BASE_MS": "40", "SIM_STARTUP_SECONDS": "1", "PYTHONPATH": import_path()}
    name = f"engine-{THERE}"
    bed.processes.start(name, [*command, "--host", "127.0.0.1", "--port", f"{port}"], environment=os.environ | slow)
    try:
        async with Load(lambda: [url], Traffic(model=MODEL), clients=CROWD):
            yield url
    finally:
        bed.processes.stop(name)


@asynccontextmanager
async def prometheus_of_the_other_cluster(
    bed: Bed, engine: str, *, namespace: str, pod: str, folder: Path
) -> AsyncIterator[str]:
    """Another Prometheus, which scrapes an engine as that pod; yields its URL."""
    target = {"targets": [engine.removeprefix("http://")], "labels": {"namespace": namespace, "pod": pod}}
    config = {
        "global": {**SCRAPE_CONFIG, "external_labels": {"cluster": THERE}},
        "scrape_configs": [{"job_name": "engines", "static_configs": [target]}],
    }
    server = Prometheus(
        binaries=bed.bin, processes=bed.processes, data=folder, config=config, mode=bed.mode, name=f"prometheus-{THERE}"
    )
    await server.start()
    try:
        yield server.url
    finally:
        server.stop()


@asynccontextmanager
async def named_cluster(bed: Bed) -> AsyncIterator[None]:
    """The bed's Prometheus says in which cluster it is."""
    discovery = pod_discovery(api_url=bed.api_url, ca_file=bed.ca_file, token_file=bed.control_plane.admin_token_file)
    labelled = {**SCRAPE_CONFIG, "external_labels": {"cluster": HERE}}
    bed.prometheus.reconfigure({**discovery, "global": labelled})
    try:
        yield
    finally:
        bed.prometheus.reconfigure()


async def classes(url: str, *match: str) -> tuple[int, list[str]]:
    """Exit code of `diagnose`, and what it says of each service."""
    arguments = ["diagnose", "--prometheus", url, "--output", "json", *match]
    found = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    services = json.loads(found.stdout)["services"] if found.stdout.startswith("{") else []
    return found.exit_code, [each["diagnosis"]["class"] for each in services]


async def test_two_services_of_one_name_stay_two(
    bed: Bed, engines: None, namespace: str, thanos: Path, tmp_path: Path
) -> None:
    """An idle service here, one of the same name that drowns there: each is seen for what it is, by the operator and
    by `diagnose`; and a cluster out of reach is blindness, never the other one's figures."""
    async with Stage(bed, namespace, interval="1s", window="6s") as stage, named_cluster(bed):
        spec = {"engine": {"image": ENGINE_IMAGE, "maxNumSeqs": SEATS}, "podTemplate": engine_env(startup_seconds=1)}
        stage.apply(vllm_service(namespace, "chat", **spec))
        stage.start_operator()
        [pod] = await until("the engine serves", partial(stage.ready_pods, "chat"), seconds=PATIENCE)
        stage.stop_operator()
        name = pod["metadata"]["name"]
        async with (
            engine_under_load(bed) as engine,
            prometheus_of_the_other_cluster(
                bed, engine, namespace=namespace, pod=name, folder=tmp_path / "prometheus"
            ) as other,
            behind_one_address(bed, thanos, {HERE: bed.prometheus_url, THERE: other}, folder=tmp_path) as both,
        ):

            async def seen_twice() -> bool:
                try:
                    return await both.clusters_of(name) == {HERE, THERE}
                except httpx.HTTPError:
                    return False  # it does not listen yet

            await until("Thanos has the pod of both clusters", seen_twice, seconds=PATIENCE)

            async def told(cluster: str, expected: set[str]) -> bool:
                status: dict[str, Any] = await stage.status("chat")
                found = (status.get("diagnosis") or {}).get("class")
                return found in expected and condition(status, "MetricsAvailable") == "True"

            drowning = {"ConcurrencyCapped", "PastKnee"}
            for cluster, expected in ((HERE, {"Idle"}), (THERE, drowning)):
                stage.start_operator("--prometheus-url", both.url, "--prometheus-match", f"cluster={cluster}")
                await until(f"the service of {cluster}", partial(told, cluster, expected), seconds=PATIENCE)
                code, [named] = await classes(both.url, "--match", f"cluster={cluster}")
                assert (code, named in expected) == (0, True), named
                if cluster == HERE:
                    stage.stop_operator()

            both.lose(THERE)

            async def blind() -> bool:
                return condition(await stage.status("chat"), "MetricsAvailable") == "False"

            await until("the lost cluster is blindness", blind, seconds=PATIENCE)
            stage.stop_operator()
            # Refused by Thanos as long as it remembers the store, and nothing to diagnose once it has forgotten it.
            code, found = await classes(both.url, "--match", f"cluster={THERE}")
            assert (code in (1, 2), found) == (True, [])
            assert await classes(both.url, "--match", f"cluster={HERE}") == (0, ["Idle"])
