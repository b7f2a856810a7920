"""Prometheus goes away in every way it can: nothing is changed, a change under way waits, and all goes on by itself.

One after the other, because an outage hits every service that is measured; the services are those of the module.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from e2e import odd_engines
from e2e.bed import Bed
from e2e.prometheus import Prometheus, pod_discovery
from e2e.side_by_side import CROWD, PATIENCE, QUICK, Play, change_of, staged
from e2e.stage import condition, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = {**QUICK, "analysis": "10m"}
"""A verdict that does not come before the outages are over."""
WATCHED = ("trying", "advised", "wide")
"""The services about which every outage asks the same."""


@dataclass(frozen=True, slots=True)
class World:
    """The stage, and the Prometheus of its own that is taken away."""

    play: Play
    prometheus: Prometheus
    config: dict[str, Any]

    @asynccontextmanager
    async def outage(self, kind: str) -> AsyncIterator[None]:
        """Take the metrics away in one of the ways, and give them back."""
        prometheus = self.prometheus
        slow = {"scrape_interval": "24h", "scrape_timeout": "900ms"}
        begin: dict[str, Callable[[], None]] = {
            "stopped": prometheus.kill,
            "frozen": prometheus.pause,
            "without targets": lambda: prometheus.reconfigure({**self.config, "scrape_configs": []}),
            "not scraping": lambda: prometheus.reconfigure({**self.config, "global": slow}),
        }
        begin[kind]()
        try:
            yield
        finally:
            if kind == "stopped":
                await prometheus.start()
            elif kind == "frozen":
                prometheus.resume()
            else:
                prometheus.reconfigure()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(bed: Bed, engines: None) -> AsyncIterator[World]:
    """Services in every situation that an outage may meet."""
    token = bed.control_plane.admin_token_file
    config = pod_discovery(api_url=bed.api_url, ca_file=bed.ca_file, token_file=token)
    data = bed.state_dir / "data" / "prometheus-of-faults"
    prometheus = Prometheus(
        binaries=bed.bin, processes=bed.processes, data=data, mode=bed.mode, config=config, name="prometheus-of-faults"
    )
    await prometheus.start()
    try:
        async with staged(bed, "metric-faults", operator=["--prometheus-url", prometheus.url]) as play:
            await play.apply("trying", tuning={"strategy": LONG})
            await play.apply("impatient", tuning={"strategy": {**LONG, "dataBudget": "1s"}})
            await play.apply("advised", tuning={"mode": "Recommend"})
            await play.apply(
                "wide",
                scaling={"minReplicas": 1, "maxReplicas": 3, "scaleOut": {"waitingFor": "10s"}},
                tuning={"maxNumSeqs": None},
            )
            await play.apply("leaving", tuning={"strategy": LONG})
            await play.apply("nonsense", engine={"image": odd_engines.image("nonsense")})
            for name, clients in (
                ("trying", CROWD),
                ("impatient", CROWD),
                ("advised", CROWD),
                ("leaving", CROWD),
                ("nonsense", CROWD),
                ("wide", 2),
            ):
                await play.load(name, clients)
            # Together: a busy machine may leave the impatient one without metrics for a second, and it is over.
            await asyncio.gather(*(play.change_is(name, "Analyzing") for name in ("trying", "impatient", "leaving")))
            await play.until("advised", "a recommendation", lambda status: status.get("recommendation"))
            yield World(play, prometheus, config)
    finally:
        prometheus.kill()


def blind(status: Any) -> bool:
    return condition(status, "MetricsAvailable") == "False"


def seeing(status: Any) -> bool:
    return condition(status, "MetricsAvailable") == "True"


async def generations(play: Play) -> list[int]:
    return [(await play.stage.deployment(name))["metadata"]["generation"] for name in WATCHED]


@pytest.mark.fault("T10", "T13")
@pytest.mark.parametrize("kind", ["stopped", "frozen", "without targets", "not scraping"])
async def test_without_metrics_nothing_is_changed_and_a_change_waits(world: World, kind: str) -> None:
    play = world.play
    process = play.stage.bed.processes.identity(play.stage.operator)
    change, before = await play.change_is("trying", "Analyzing"), await generations(play)
    async with world.outage(kind):
        for name in WATCHED:
            await play.until(name, "MetricsAvailable is False", blind)
        held = await play.change_is("trying", "Held")
        assert (held["id"], held["resumeState"], held["stateReason"]) == (
            change["id"],
            "Analyzing",
            "metrics are missing",
        )
        await play.ticks(4)
        assert await generations(play) == before
        for name in WATCHED:
            status = await play.status(name)
            assert condition(status, "Ready") == "True", "silence about a service is no outage of it"
            assert status["diagnosis"]["class"] == "MetricsBlind"
    for name in WATCHED:
        await play.until(name, "MetricsAvailable is True again", seeing)
    resumed = await play.change_is("trying", "Analyzing")
    assert resumed["id"] == change["id"]
    assert await generations(play) == before
    assert play.stage.bed.processes.identity(play.stage.operator) == process, "it took a restart to recover"


@pytest.mark.fault("T11")
async def test_a_change_that_waits_beyond_its_data_budget_is_rolled_back_without_blame(world: World) -> None:
    entry = await world.play.finished("impatient")
    assert (entry["outcome"], entry["reason"]) == ("RolledBack", "metrics are missing for over 1s")
    await world.play.rolled_out("impatient", seats=4)
    assert not (await world.play.status("impatient")).get("failureMemory")
    world.play.served_all_along("impatient")


async def test_waiting_requests_add_no_replica_before_they_are_seen_and_never_more_than_allowed(world: World) -> None:
    play = world.play
    async with world.outage("stopped"):
        await play.until("wide", "MetricsAvailable is False", blind)
        play.stage.loads["wide"].clients = 30
        await play.ticks(12)
        assert (await play.stage.deployment("wide"))["spec"]["replicas"] == 1
    await play.until("wide", "three replicas", lambda status: status["effective"].get("replicas") == 3)

    async def served() -> bool:
        return len(await play.stage.ready_pods("wide")) == 3

    await until("three replicas serve", served, seconds=PATIENCE)
    await play.ticks(3)
    assert (await play.stage.deployment("wide"))["spec"]["replicas"] == 3
    assert {(status.get("effective") or {}).get("replicas", 1) for status in play.monitor.statuses("wide")} <= {1, 2, 3}


@pytest.mark.fault("T26")
async def test_a_service_can_be_deleted_in_the_middle_of_a_change_while_nothing_is_measured(world: World) -> None:
    play = world.play
    # It may still be held by the outage before.
    await play.change_is("leaving", "Analyzing")
    async with world.outage("stopped"):
        await play.change_is("leaving", "Held")
        await play.delete("leaving")

        async def gone() -> bool:
            return not await play.stage.service("leaving")

        await until("the object is gone", gone, seconds=PATIENCE)
        generation = (await play.stage.deployment("leaving"))["metadata"]["generation"]
        await play.ticks(3)
        deployment = await play.stage.deployment("leaving")
        assert (deployment["metadata"]["generation"], deployment["status"]["availableReplicas"]) == (generation, 1)


@pytest.mark.fault("T12")
async def test_an_engine_that_exports_nonsense_counts_as_silent(world: World) -> None:
    status = await world.play.until("nonsense", "MetricsAvailable is False", blind)
    assert condition(status, "Ready") == "True"
    assert (await world.play.stage.deployment("nonsense"))["metadata"]["generation"] == 1
    assert not world.play.monitor.states("nonsense")


@pytest.mark.fault("T10")
async def test_the_change_that_waited_so_often_is_finished(world: World) -> None:
    await world.play.edit("trying", tuning={"strategy": QUICK})
    entry = await world.play.finished("trying")
    assert entry["outcome"] == "Succeeded", entry
    assert await world.play.events("trying", "ChangeStarted") == [
        f"Started maxNumSeqs 4 -> 8: {_reason(world, 'trying')}"
    ]
    world.play.served_all_along("trying")


async def test_everything_was_as_it_must_always_be(world: World) -> None:
    await world.play.went_well()


def _reason(world: World, name: str) -> str:
    return next(str(found["reason"]) for status in world.play.monitor.statuses(name) if (found := change_of(status)))
