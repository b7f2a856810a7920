"""The operator dies at every write of a change, and goes on where it was; of two operators one leads at a time."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest
from aiohttp import web

from e2e.api_proxy import WRITES, ApiProxy, Write
from e2e.crashing import LEASE, Crashes
from e2e.side_by_side import CROWD, Play, degrading, side_by_side
from e2e.stage import until
from vllm_autotuner.cluster.events import micro_time

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE: Final = 900.0
"""Seconds for a change during which the operator starts again a dozen times."""
KEPT: Final = (
    *(("status", state) for state in ("Provisioning", "Verifying", "WarmingUp", "Analyzing", "Baking", "over")),
    ("event", "ChangeStarted"),
    ("event", "ChangeSucceeded"),
    ("deployment", "Provisioning"),
)
UNDONE: Final = (
    ("status", "RollingBack"),
    ("event", "ChangeRollingBack"),
    ("deployment", "RollingBack"),
    ("status", "over"),
    ("event", "ChangeRolledBack"),
)
STEPS: Final = frozenset({*(("helped", *step) for step in KEPT), *(("hurt", *step) for step in UNDONE)})
"""Every write of a change that is kept but for further windows of its analysis, and of the way back of another."""


@dataclass(slots=True)
class Steps:
    """Which writes are a step that nobody was asked about yet: each once."""

    taken: list[tuple[str, ...]] = field(default_factory=list)
    _states: dict[str, str] = field(default_factory=dict)

    def due(self, write: Write) -> bool:
        """Whether this write is such a step; it is taken then."""
        step = self._step(write)
        if step not in STEPS - set(self.taken):
            return False
        self.taken.append(step)
        return True

    def _step(self, write: Write) -> tuple[str, ...]:
        """Name the step of a change that a write makes; empty for every other write."""
        if write.path.endswith("/status"):
            name, status = write.body["metadata"]["name"], write.body["status"]
            state = (status.get("activeChange") or {}).get("state") or ("over" if status.get("history") else "")
            self._states[name] = state
            return name, "status", state
        if write.path.endswith("/events"):
            name, reason = write.body["regarding"]["name"], write.body["reason"]
            return name, "event", reason
        if "/deployments/" in write.path:
            name = write.body["metadata"]["name"]
            return name, "deployment", self._states.get(name, "")
        return ()


@pytest.mark.fault("T01", "T02", "T03")
@side_by_side(stage="crashes")
async def test_killed_at_every_step_of_a_change_the_operator_ends_where_it_would_have_ended(play: Play) -> None:
    await ends_as_undisturbed(play, answered=False)


@pytest.mark.fault("T01", "T02")
@side_by_side(stage="late-crashes")
async def test_killed_after_every_answer_of_a_change_the_operator_ends_where_it_would_have_ended(play: Play) -> None:
    await ends_as_undisturbed(play, answered=True)


async def ends_as_undisturbed(play: Play, *, answered: bool) -> None:
    """Play a change that helps and one that hurts, with a crash at each of their steps."""
    for name, simulated in (("helped", {}), ("hurt", degrading())):
        await play.serves(name, simulated=simulated)
    play.stage.stop_operator()
    steps = Steps()
    crashes = Crashes(play, answered, steps.due)
    async with crashes.proxy() as proxy:
        crashes.start_operator_behind(proxy)
        for name in ("helped", "hurt"):
            await play.load(name, CROWD)
        kept = await play.finished("helped", seconds=PATIENCE)
        undone = await play.finished("hurt", seconds=PATIENCE)
        for name, reason in (("helped", "ChangeSucceeded"), ("hurt", "ChangeRolledBack")):
            await until(f"{reason} is told", partial(play.events, name, reason), seconds=PATIENCE)
        await crashes.over()
        play.stage.stop_operator()
    assert (kept["outcome"], kept["toValue"]) == ("Succeeded", "8")
    assert (undone["outcome"], undone["toValue"]) == ("RolledBack", "8")
    await play.rolled_out("helped", seats=8)
    await play.rolled_out("hurt", seats=4)
    for name, generation, candidates in (("helped", 2, []), ("hurt", 3, ["maxNumSeqs=8"])):
        assert (await play.stage.deployment(name))["metadata"]["generation"] == generation
        status = await play.status(name)
        assert status["budget"]["changesToday"] == 1
        assert [one["candidate"] for one in status.get("failureMemory", [])] == candidates
        assert len(await play.events(name, "ChangeStarted")) == 1
        play.served_all_along(name)
    assert set(steps.taken) == STEPS, f"it was not killed at {STEPS - set(steps.taken)}"


@pytest.mark.fault("T09")
@side_by_side(stage="two-operators")
async def test_of_two_operators_one_leads_and_the_other_goes_on_when_it_is_killed(play: Play) -> None:
    play.stage.start_operator(standby=True)
    both = {play.stage.operator, play.stage.standby}
    await until(
        "there are two", lambda: all(said(play, each, "initial list complete") for each in both), seconds=PATIENCE
    )
    await play.serves("handed-over", clients=CROWD)
    change = await play.change_is("handed-over", "Analyzing")
    former = await holder(play)
    # On a machine that stalls the other may have led before.
    (leader,) = (each for each in both if former in {one["identity"] for one in said(play, each, "became leader")})
    (other,) = both - {leader}
    led = len(said(play, other, "became leader"))
    play.stage.bed.processes.stop(leader)
    entry = await play.finished("handed-over")
    assert (entry["id"], entry["outcome"]) == (change["id"], "Succeeded"), entry
    assert await holder(play) not in ("", former)
    assert len(said(play, other, "became leader")) > led
    assert len(await play.events("handed-over", "ChangeStarted")) == 1
    await play.rolled_out("handed-over", seats=8)
    play.served_all_along("handed-over")


@pytest.mark.fault("T09")
@side_by_side(stage="frozen-leader")
async def test_a_leader_that_slept_past_its_lease_begins_no_write_when_it_wakes(play: Play) -> None:
    stage = play.stage
    await play.serves("taken-over")
    stage.stop_operator()
    lease = LEASE.format(namespace=stage.namespace)
    written: list[Write] = []
    refused: list[str] = []

    def seen(write: Write) -> bool:
        written.append(write)
        return False

    def answered(request: web.Request, status: int) -> None:
        if request.method in WRITES and status >= 400 and request.path != lease:
            refused.append(request.path)

    async with ApiProxy(api_url=stage.bed.api_url, ca_file=stage.bed.ca_file, lose=seen, answered=answered) as proxy:
        stage.start_operator("--kubeconfig", str(proxy.kubeconfig(stage.kubeconfig)))
        await until("it leads", lambda: said(play, stage.operator, "became leader"), seconds=PATIENCE)
        stage.start_operator(standby=True)
        await play.load("taken-over", CROWD)
        change = await play.change_is("taken-over", "Analyzing")
        # Frozen in the middle of whatever it does, it wakes there: only the clock tells it that its Lease is over.
        stage.bed.processes.pause(stage.operator)
        paused = micro_time(datetime.now(UTC))
        await until("the other leads", lambda: said(play, stage.standby, "became leader"), seconds=PATIENCE)
        assert {write.path for write in written} - {lease}, "it wrote nothing before either"
        written.clear()
        refused.clear()
        stage.bed.processes.resume(stage.operator)
        await until("it knows", lambda: said(play, stage.operator, "lost leadership"), seconds=PATIENCE)
        entry = await play.finished("taken-over")
        await until("its end is told", lambda: play.events("taken-over", "ChangeSucceeded"), seconds=PATIENCE)
        # One write that had passed its look at the clock when the process froze goes out when it wakes, as from any
        # client of the API. An object's carries the version that was read and is refused; an Event has none.
        events = f"/apis/events.k8s.io/v1/namespaces/{stage.namespace}/events"
        assert len(written) + len(refused) <= 1, "it went on writing after its Lease was over"
        for write in written:
            was_on_its_way = write.path == events and write.body["eventTime"] < paused
            assert was_on_its_way, f"it began to write {write.path} when it woke"
    assert (entry["id"], entry["outcome"]) == (change["id"], "Succeeded"), entry
    assert len(await play.events("taken-over", "ChangeStarted")) == 1
    assert len(await play.events("taken-over", "ChangeSucceeded")) == 1
    await play.rolled_out("taken-over", seats=8)
    play.served_all_along("taken-over")


async def holder(play: Play) -> str:
    """Who holds the Lease."""
    lease = await play.stage.get(LEASE.format(namespace=play.stage.namespace))
    return str(lease["spec"]["holderIdentity"])


def said(play: Play, process: str, message: str) -> list[dict[str, Any]]:
    """The log lines of an operator with this message."""
    lines = play.stage.bed.processes.log(process).read_text(encoding="utf-8").splitlines()
    return [found for line in lines if line.startswith("{") and (found := json.loads(line))["message"] == message]
