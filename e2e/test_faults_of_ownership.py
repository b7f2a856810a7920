"""Somebody else writes the Deployment, on the real control plane: by hand, as Argo CD does, as an autoscaler does."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from e2e.side_by_side import CROWD, PATIENCE, Play, side_by_side
from e2e.stage import condition, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ARGO = "argocd-controller"
HEAL_EVERY = 0.5
"""Seconds; ten times as often as the fault test asks for, beside ticks of a second instead of fifteen."""


def path(play: Play, name: str, subresource: str = "") -> str:
    return f"/apis/apps/v1/namespaces/{play.stage.namespace}/deployments/{name}{subresource}"


async def declare(play: Play, name: str, *, args: list[str], manager: str) -> None:
    """Apply arguments as a GitOps tool does: server-side, with force, also over what was written since."""
    container = {"name": "vllm", "args": args}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": play.stage.namespace},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    answer = await play.stage.api.patch(
        path(play, name),
        params={"fieldManager": manager, "force": "true"},
        json=body,
        headers={"Content-Type": "application/apply-patch+yaml"},
    )
    answer.raise_for_status()


def with_seats(deployment: Mapping[str, Any], seats: int) -> list[str]:
    """Its engine's arguments with another max-num-seqs."""
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return [*(each for each in args if not each.startswith("--max-num-seqs")), f"--max-num-seqs={seats}"]


@asynccontextmanager
async def self_healing(play: Play, name: str, *, seats: int) -> AsyncIterator[None]:
    """Somebody resets the arguments all the time."""
    args = with_seats(await play.stage.deployment(name), seats)

    async def heal() -> None:
        while True:
            with suppress(httpx.TransportError):  # not answered in time, on a busy machine
                await declare(play, name, args=args, manager=ARGO)
            await asyncio.sleep(HEAL_EVERY)

    healing = asyncio.create_task(heal())
    try:
        yield
        assert not healing.done(), healing
    finally:
        healing.cancel()


@pytest.mark.fault("T29")
@side_by_side(stage="owners")
async def test_a_tool_that_resets_our_field_all_the_time_is_named_and_written_against_twice(play: Play) -> None:
    await play.serves("self-healed")
    async with self_healing(play, "self-healed", seats=6):
        status = await play.until(
            "self-healed", "a conflict", lambda status: condition(status, "OwnershipConflict") == "True"
        )
        said = next(each for each in status["conditions"] if each["type"] == "OwnershipConflict")
        assert said["reason"] == "FieldManagerConflict"
        assert said["message"].startswith(f"{ARGO} keeps overwriting args of Deployment self-healed")
        assert len(status["contest"]["restored"]) == 2
        before = await play.stage.deployment("self-healed")
        await play.ticks(8)
        after = await play.stage.deployment("self-healed")
        assert after["metadata"]["generation"] == before["metadata"]["generation"], "it was written again"
    assert len(await play.events("self-healed", "WorkloadRestored")) == 2
    assert len(await play.events("self-healed", "OwnershipConflict")) == 1
    assert condition(await play.status("self-healed"), "Ready") == "True"
    # While the Deployment is not what the spec says, it is not Ready; its pods serve on.
    assert "no pod of the Deployment is available" not in play.monitor.lapses("self-healed")


@pytest.mark.fault("T29", "T44")
@side_by_side(stage="owners")
async def test_a_change_whose_value_a_tool_overwrites_is_over_and_the_value_is_not_written_again(play: Play) -> None:
    await play.serves("overwritten")
    async with self_healing(play, "overwritten", seats=4):
        await play.load("overwritten", CROWD)
        entry = await play.finished("overwritten")
        assert (entry["outcome"], entry["reason"]) == ("Superseded", f"{ARGO} overwrote args during the change")
        await play.rolled_out("overwritten", seats=4)

        async def generation() -> int:
            found: int = (await play.stage.deployment("overwritten"))["metadata"]["generation"]
            return found

        async def written_back() -> bool:
            return await generation() >= 4

        # Created, changed, overwritten, and the rest of it written back once. The last comes after the status that
        # says that the change is over; the changed value written again and overwritten again would be two more.
        await until("the Deployment is written back", written_back, seconds=PATIENCE)
        await play.ticks(8)
        assert await generation() == 4, "it was written again"
    assert not (await play.status("overwritten")).get("failureMemory"), "the candidate is not to blame"
    assert "no pod of the Deployment is available" not in play.monitor.lapses("overwritten")


@side_by_side(stage="owners")
async def test_what_a_person_edits_in_the_deployment_is_written_back_once(play: Play) -> None:
    await play.serves("edited")
    args = with_seats(await play.stage.deployment("edited"), 6)
    await declare(play, "edited", args=args, manager="kubectl-edit")

    async def restored() -> bool:
        return (await play.flags("edited")).max_num_seqs == 4

    await until("the edit is written back", restored, seconds=PATIENCE)
    # The Event comes after the write.
    await until("it is told", lambda: play.events("edited", "WorkloadRestored"), seconds=PATIENCE)
    assert await play.events("edited", "WorkloadRestored") == [
        "Restored args of the workload, overwritten by kubectl-edit"
    ]
    await play.ticks(4)
    assert condition(await play.status("edited"), "OwnershipConflict") == ""
    assert len(await play.events("edited", "WorkloadRestored")) == 1
    await play.rolled_out("edited", seats=4)
    # While it is not what the spec says, it is not Ready; pods of the old template serve on.
    assert "no pod of the Deployment is available" not in play.monitor.lapses("edited")


@pytest.mark.fault("T30")
@side_by_side(stage="owners")
async def test_replicas_that_an_autoscaler_writes_are_left_to_it(play: Play) -> None:
    await play.serves("autoscaled")
    answer = await play.stage.api.patch(
        path(play, "autoscaled", "/scale"),
        params={"fieldManager": "kube-controller-manager"},
        json={"spec": {"replicas": 2}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    answer.raise_for_status()
    status = await play.until(
        "autoscaled", "a conflict", lambda status: condition(status, "OwnershipConflict") == "True"
    )
    said = next(each for each in status["conditions"] if each["type"] == "OwnershipConflict")
    assert said["reason"] == "ReplicasControlledElsewhere"
    await play.ticks(4)
    assert (await play.stage.deployment("autoscaled"))["spec"]["replicas"] == 2
    await play.edit("autoscaled", engine={"maxNumSeqs": 6})
    await play.rolled_out("autoscaled", seats=6)
    assert (await play.stage.deployment("autoscaled"))["spec"]["replicas"] == 2, "everything else is still written"
