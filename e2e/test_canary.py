"""Canaries on the real control plane: one that is followed, two that harm, and one for which there is no room."""

from typing import Any, Final

import pytest

from e2e.monitor import PROMOTED
from e2e.side_by_side import CROWD, QUICK, Play, change_of, degrading, side_by_side
from e2e.stage import condition, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRIED: Final = {"strategy": QUICK | {"analysis": "60s", "bake": "4s"}}
"""A verdict needs six windows of 6 s, on a busy machine a few more."""
LONG: Final = 300.0
"""Seconds for a whole story, in which two sets of pods start one after the other."""
NO_ROOM: Final[dict[str, Any]] = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"vllm-autotuner.dev/service": "crowded"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
}
"""One pod of it a node, and there is one node."""


@side_by_side(stage="canary")
async def test_a_canary_that_does_better_is_followed_by_the_service_without_losing_a_pod(play: Play) -> None:
    await play.serves("followed", clients=2 * CROWD, replicas=2, tuning=TRIED)
    generation = (await play.stage.deployment("followed"))["metadata"]["generation"]
    change = await play.change_is("followed", "Analyzing", seconds=LONG)
    assert (change["strategy"], change["canaryRef"]["name"]) == ("Canary", f"followed-t-{change['id']}")
    assert (await play.flags("followed")).max_num_seqs == 4, "the service was touched before the verdict"
    entry = await play.finished("followed", seconds=LONG)
    assert (entry["outcome"], entry["toValue"]) == ("Succeeded", "8"), entry

    async def two_serve() -> bool:
        return len(await play.rolled_out("followed", seats=8)) == 2

    # The canary's own pod has as many seats, and is collected after its Deployment.
    await until("two pods are left", two_serve, seconds=LONG)
    assert play.monitor.course("followed") == PROMOTED
    assert play.monitor.trials("followed") == (["canary"], ["canary"])
    assert play.monitor.fewest_available("followed") == 2
    assert (await play.stage.deployment("followed"))["metadata"]["generation"] == generation + 1
    # How far they differ is the machine's: while the canary takes load as well, next to nothing waits on a busy one.
    assert all(entry[when]["ttftSeconds"] > 0 for when in ("before", "after"))
    play.served_all_along("followed")


@side_by_side(stage="canary")
async def test_a_canary_that_harms_goes_and_the_service_was_never_touched(play: Play) -> None:
    await play.serves("spared", clients=3 * CROWD, replicas=3, tuning=TRIED, simulated=degrading())
    generation = (await play.stage.deployment("spared"))["metadata"]["generation"]
    change = await play.change_is("spared", "Analyzing", seconds=LONG)
    assert change["baselineRef"]["name"] == f"spared-b-{change['id']}"
    entry = await play.finished("spared", seconds=LONG)
    assert entry["outcome"] == "RolledBack", entry
    deployment = await play.stage.deployment("spared")
    assert deployment["metadata"]["generation"] == generation
    await play.rolled_out("spared", seats=4)
    await until("both trials are deleted", lambda: len(play.monitor.trials("spared")[1]) == 2, seconds=LONG)
    assert play.monitor.trials("spared") == (["baseline", "canary"], ["baseline", "canary"])
    assert play.monitor.fewest_available("spared") == 3
    play.served_all_along("spared")


@pytest.mark.fault("T19")
@side_by_side(stage="canary")
async def test_a_canary_for_which_no_node_has_room_is_rejected_without_blame(play: Play) -> None:
    strategy = TRIED["strategy"] | {"type": "Canary", "provisioningDeadline": "30s"}
    env = {"name": "vllm", "env": [{"name": f"SIM_{name}", "value": value} for name, value in SIMULATED.items()]}
    template = {"spec": {"containers": [env], "terminationGracePeriodSeconds": 5, **NO_ROOM}}
    await play.serves("crowded", clients=CROWD, tuning={"strategy": strategy}, podTemplate=template)
    entry = await play.finished("crowded", seconds=LONG)
    assert entry["outcome"] == "Rejected", entry
    assert entry["reason"].startswith("Unschedulable: there is no room for one more pod"), entry
    await until("the canary is deleted", lambda: play.monitor.trials("crowded")[1] == ["canary"], seconds=LONG)
    status = await play.status("crowded")
    assert not status.get("failureMemory")
    assert condition(status, "CircuitOpen") == ""
    assert not change_of(status)
    assert (await play.stage.deployment("crowded"))["metadata"]["generation"] == 1
    play.served_all_along("crowded")


SIMULATED: Final = {"STEP_BASE_MS": "40", "STEP_PER_SEQ_MS": "0.5", "STARTUP_SECONDS": "1"}
"""As `capped` sets them."""


@pytest.mark.fault("T26")
@side_by_side(stage="canary")
async def test_deleting_the_service_takes_its_canary_along_and_leaves_its_pods_as_they_were(play: Play) -> None:
    await play.serves("outlived", clients=2 * CROWD, replicas=2, tuning=TRIED)
    await play.change_is("outlived", "WarmingUp", "Analyzing", seconds=LONG)
    await play.delete("outlived")
    await until("the canary is collected", lambda: play.monitor.trials("outlived")[1] == ["canary"], seconds=LONG)
    deployment = await play.stage.deployment("outlived")
    assert (deployment["metadata"]["generation"], deployment["status"]["availableReplicas"]) == (1, 2)
    await play.rolled_out("outlived", seats=4)
    await play.ticks(4)
    assert play.monitor.trials("outlived") == (["canary"], ["canary"])


@pytest.mark.fault("T25")
@side_by_side(stage="canary")
async def test_what_a_person_writes_meanwhile_ends_the_canary_and_is_what_runs(play: Play) -> None:
    await play.serves("rewritten", clients=2 * CROWD, replicas=2, tuning=TRIED)
    await play.change_is("rewritten", "WarmingUp", "Analyzing", seconds=LONG)
    await play.edit("rewritten", engine={"maxNumSeqs": 6})
    entry = await play.finished("rewritten", seconds=LONG)
    assert entry["outcome"] == "Superseded"
    await play.rolled_out("rewritten", seats=6)
    await until("the canary is deleted", lambda: play.monitor.trials("rewritten")[1] == ["canary"], seconds=LONG)
    assert play.monitor.trials("rewritten") == (["canary"], ["canary"])
    assert not (await play.status("rewritten")).get("failureMemory")
