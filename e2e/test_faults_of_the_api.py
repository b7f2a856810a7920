"""The way to the API server is bad, or closed, or closed for one verb: the operator waits, and goes on by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from e2e.api_proxy import ApiProxy, Write
from e2e.bed import NODE
from e2e.node_client import NodeClient
from e2e.release import RELEASE
from e2e.side_by_side import CROWD, PATIENCE, Play, Refused, seats_of, side_by_side
from e2e.stage import condition, recovered, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{{namespace}}-{RELEASE}"
"""The chart's own, of this stage alone."""
SERVICES = "/vllmservices"


@dataclass(slots=True)
class Network:
    """What lies between the operator and the API server."""

    play: Play
    closed: bool = False
    loses: bool = False
    """The first answer of each kind of write is lost, after the write was carried out."""
    copies: int = 1
    """How often an event arrives."""
    lost: set[str] = field(default_factory=set)

    def proxy(self) -> ApiProxy:
        bed = self.play.stage.bed
        return ApiProxy(
            api_url=bed.api_url,
            ca_file=bed.ca_file,
            lose=self._lose,
            refuse=lambda: self.closed,
            copies=lambda path: self.copies if path.endswith(SERVICES) else max(1, self.copies),
        )

    def _lose(self, write: Write) -> bool:
        kind = f"{write.method} {write.answer.get('kind')} {write.body.get('reason', '')}"
        if write.answer.get("kind") == "Lease" or not self.loses or kind in self.lost:
            return False
        self.lost.add(kind)
        return True


async def behind(play: Play, network: Network, scene: Callable[[], Awaitable[None]]) -> None:
    """Play a scene with an operator that sees the API server through this network."""
    play.stage.stop_operator()
    async with network.proxy() as proxy:
        play.stage.start_operator("--kubeconfig", str(proxy.kubeconfig(play.stage.kubeconfig)))
        try:
            await scene()
        finally:
            play.stage.stop_operator()


@pytest.mark.fault("T03", "T06")
@side_by_side(stage="bad-network")
async def test_answers_that_are_lost_and_events_that_come_twice_make_one_change_as_ever(play: Play) -> None:
    network = Network(play, loses=True, copies=2)

    async def scene() -> None:
        await play.serves("muddled", clients=CROWD)
        entry = await play.finished("muddled")
        assert (entry["outcome"], entry["toValue"]) == ("Succeeded", "8"), entry
        await play.rolled_out("muddled", seats=8)
        await until("its end is told", lambda: play.events("muddled", "ChangeSucceeded"), seconds=PATIENCE)

    await behind(play, network, scene)
    assert {"PATCH Deployment ", "PATCH Service ", "PUT VLLMService ", "POST Event ChangeStarted"} <= network.lost
    assert (await play.stage.deployment("muddled"))["metadata"]["generation"] == 2
    assert len(await play.events("muddled", "ChangeStarted")) == 1
    assert (await play.status("muddled"))["budget"]["changesToday"] == 1
    play.served_all_along("muddled")


@pytest.mark.fault("T05")
@side_by_side(stage="deaf")
async def test_an_edit_there_and_back_that_the_watch_did_not_bring_rolls_nothing(play: Play) -> None:
    network = Network(play)

    async def scene() -> None:
        await play.serves("unheard", tuning={"mode": "Recommend"})
        # With nothing left to tell: a status that is written collides, and is written again from a fresh read.
        await play.until("unheard", "Idle", lambda found: found.get("diagnosis", {}).get("class") == "Idle")

        async def all_told() -> bool:
            told = len(play.monitor.statuses("unheard"))
            await play.ticks(10)
            return len(play.monitor.statuses("unheard")) == told

        await until("nothing is left to tell", all_told, seconds=PATIENCE)
        network.copies = 0
        for seats in (6, 4):
            await play.edit("unheard", engine={"maxNumSeqs": seats})
        await play.ticks(10)
        assert (await play.status("unheard"))["observedGeneration"] == 1, "the watch brought it all the same"
        network.copies = 1
        await play.edit("unheard", annotations={"example.com/seen": "again"})
        await play.until("unheard", "the last generation", lambda found: found["observedGeneration"] == 3)
        await play.ticks(3)

    await behind(play, network, scene)
    assert (await play.stage.deployment("unheard"))["metadata"]["generation"] == 1
    assert not play.monitor.states("unheard")


@pytest.mark.fault("T08")
@side_by_side(stage="cut-off")
async def test_an_api_server_that_is_away_in_the_middle_of_a_change_is_waited_for(play: Play) -> None:
    """For longer than the lease lasts, so that the operator has to win it again."""
    network = Network(play)

    async def scene() -> None:
        await play.serves("waiting", clients=CROWD)
        change = await play.change_is("waiting", "WarmingUp", "Analyzing")
        process = play.stage.bed.processes.identity(play.stage.operator)
        network.closed = True
        await play.ticks(25)
        assert play.stage.bed.processes.identity(play.stage.operator) == process
        assert process.alive(), "the operator ended"
        network.closed = False
        entry = await play.finished("waiting")
        assert (entry["id"], entry["outcome"]) == (change["id"], "Succeeded"), entry
        await play.rolled_out("waiting", seats=8)
        await until("its end is told", lambda: play.events("waiting", "ChangeSucceeded"), seconds=PATIENCE)

    await behind(play, network, scene)
    assert len(await play.events("waiting", "ChangeStarted")) == 1
    play.served_all_along("waiting")


@pytest.mark.fault("T38")
@side_by_side(stage="forbidden")
async def test_a_permission_that_is_taken_away_is_told_on_the_object_until_it_is_back(play: Play) -> None:
    await play.serves("bound", tuning={"mode": "Off"})
    process = play.stage.bed.processes.identity(play.stage.operator)
    rules = (await play.stage.get(ROLE.format(namespace=play.stage.namespace)))["rules"]
    await _set_rules(play, [_read_only(rule) for rule in rules])
    await play.edit("bound", engine={"maxNumSeqs": 6})
    status = await play.until("bound", "Stalled", lambda found: condition(found, "Stalled") == "True")
    stalled = next(each for each in status["conditions"] if each["type"] == "Stalled")
    assert (stalled["reason"], "forbidden" in stalled["message"]) == ("Forbidden", True), stalled
    assert len(await play.stage.ready_pods("bound")) == 1
    await _set_rules(play, rules)
    await play.rolled_out("bound", seats=6)
    await play.until("bound", "Ready and not Stalled", recovered)
    assert play.stage.bed.processes.identity(play.stage.operator) == process, "it took a restart to recover"


def _read_only(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    if "deployments" not in rule["resources"]:
        return rule
    return {**rule, "verbs": [verb for verb in rule["verbs"] if verb not in ("create", "patch")]}


async def _set_rules(play: Play, rules: list[Mapping[str, Any]]) -> None:
    answer = await play.stage.api.patch(
        ROLE.format(namespace=play.stage.namespace),
        json={"rules": rules},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    if not answer.is_success:
        raise Refused(answer.json()["message"])


@pytest.mark.fault("T40")
@side_by_side(stage="faults")
async def test_whoever_kills_every_candidate_sees_two_of_them(play: Play) -> None:
    tuning = {"cooldown": "1s", "maxNumSeqs": {"min": 2, "max": 16}, "budget": {"changesPerDay": 10}}
    await play.serves("hunted", clients=2 * CROWD, tuning=tuning)
    # A candidate may be killed after it has replaced the pod that served before it.
    play.monitor.expect_harm("hunted")
    node = NodeClient.of(await play.stage.get(f"/api/v1/nodes/{NODE}"))

    async def hunt() -> None:
        while True:
            # A question that a busy machine leaves unanswered must not end the hunt: the next one would win.
            with suppress(httpx.HTTPError):
                for pod in await play.stage.ready_pods("hunted"):
                    if seats_of(pod) != 4:
                        await asyncio.to_thread(node.kill_if_there, play.stage.namespace, pod["metadata"]["name"])
            await asyncio.sleep(0.2)

    hunter = asyncio.create_task(hunt())
    try:
        status = await play.until("hunted", "an open circuit", lambda found: condition(found, "CircuitOpen") == "True")
        assert [entry["outcome"] for entry in status["history"]] == ["RolledBack", "RolledBack"]
        await play.rolled_out("hunted", seats=4)
        await play.ticks(10)
        assert not hunter.done(), "the hunt ended by itself"
    finally:
        hunter.cancel()
    assert len((await play.status("hunted"))["history"]) == 2
    assert len(await play.events("hunted", "ChangeStarted")) == 2
