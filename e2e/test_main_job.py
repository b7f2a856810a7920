"""The main job on the real control plane: follow the spec, recommend, change what helps, undo what hurts, scale."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from e2e.short_of_memory import healed_by_a_shorter_context
from e2e.side_by_side import CROWD, PATIENCE, Play, degrading, side_by_side
from e2e.stage import condition, until
from vllm_autotuner.workload.rendering import pod_selector

pytestmark = pytest.mark.asyncio(loop_scope="session")


@side_by_side(stage="main-job")
async def test_recommend_writes_nothing_but_the_status(play: Play) -> None:
    await play.serves("advised", clients=CROWD, tuning={"mode": "Recommend"})
    # While the crowd is still coming, a busy machine sees another queue at first, and advises something else.
    status = await play.until("advised", "eight seats recommended", lambda found: advised(found) == "8")
    assert (status["recommendation"]["knob"], status["diagnosis"]["class"]) == ("maxNumSeqs", "ConcurrencyCapped")
    before = await untouched(play, "advised")
    await play.ticks(6)
    assert await untouched(play, "advised") == before
    assert not play.monitor.states("advised")

    async def each_told_once() -> bool:
        # Of advice that has just come, the status is written first.
        return len(await play.events("advised", "Recommended")) == len(asked(play.monitor.statuses("advised")))

    await until("each advice is told once", each_told_once, seconds=PATIENCE)
    play.served_all_along("advised")


async def untouched(play: Play, name: str) -> list[Any]:
    """Everything about a service that only a write to it or a restart of a pod would change."""
    service, deployment = await play.stage.service(name), await play.stage.deployment(name)
    pods = await play.stage.pods(name)
    return [
        *(service["spec"], service["metadata"]["generation"], service["metadata"].get("annotations")),
        *(deployment["spec"], deployment["metadata"]["resourceVersion"]),
        [(pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods],
    ]


EDITS: list[tuple[dict[str, Any], str]] = [
    ({"maxNumSeqs": 6}, "--max-num-seqs=6"),
    ({"maxModelLen": 8192}, "--max-model-len=8192"),
    ({"kvCacheDtype": "fp8"}, "--kv-cache-dtype=fp8"),
    ({"tensorParallelSize": 2}, "--tensor-parallel-size=2"),
    ({"args": ["--max-num-batched-tokens=4096"]}, "--max-num-batched-tokens=4096"),
    ({"image": "vllm/vllm-openai:v0.31.0"}, "vllm/vllm-openai:v0.31.0"),
]


@side_by_side(stage="main-job")
async def test_editing_any_engine_knob_in_spec_rolls_the_deployment(play: Play) -> None:
    await play.serves("edited", tuning={"mode": "Off"})
    for number, (edit, asked) in enumerate(EDITS):
        generation = (await play.stage.deployment("edited"))["metadata"]["generation"]
        former = {pod["metadata"]["uid"] for pod in await play.stage.pods("edited")}
        await play.edit("edited", engine=edit)

        async def rolled(asked: str = asked, former: set[str] = former) -> bool:
            pods, ready = await play.stage.pods("edited"), await play.stage.ready_pods("edited")
            new = [pod for pod in ready if asked in told(pod)]
            return bool(new) and len(new) == len(pods) and not former & {pod["metadata"]["uid"] for pod in pods}

        await until(f"a pod that runs {asked}, and no other", rolled, seconds=PATIENCE)
        assert (await play.stage.deployment("edited"))["metadata"]["generation"] == generation + 1
        await play.until("edited", "Ready again", partial(ready_for, generation=number + 2))
    assert "no pod of the Deployment is available" not in play.monitor.lapses("edited")


def told(pod: dict[str, Any]) -> list[str]:
    """What a pod's engine container was told: image and arguments."""
    container = pod["spec"]["containers"][0]
    return [container["image"], *container["args"]]


def advised(status: Mapping[str, Any]) -> str:
    """The value that is recommended, empty while there is none."""
    return str((status.get("recommendation") or {}).get("recommended", ""))


def asked(statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ids of the recommendations in these statuses, as they came: one that stands goes on to be the same."""
    ids = [(status.get("recommendation") or {}).get("id") for status in statuses]
    return [new for former, new in pairwise([None, *ids]) if new and new != former]


def class_of(status: Mapping[str, Any]) -> str:
    return str((status.get("diagnosis") or {}).get("class", ""))


def ready_for(status: Mapping[str, Any], *, generation: int) -> bool:
    return bool(condition(status, "Ready") == "True" and status["observedGeneration"] == generation)


@side_by_side(stage="main-job")
async def test_a_tuned_value_stands_beside_other_edits_and_gives_way_to_what_the_user_writes(play: Play) -> None:
    await play.serves("tuned", clients=CROWD)
    entry = await play.finished("tuned")
    assert entry["outcome"] == "Succeeded", entry
    await play.edit("tuned", engine={"args": ["--max-num-batched-tokens=4096"]})

    async def with_arguments() -> bool:
        pods = await play.stage.ready_pods("tuned")
        new = [pod for pod in pods if {"--max-num-batched-tokens=4096", "--max-num-seqs=8"} <= set(told(pod))]
        return bool(new) and new == pods

    await until("the new arguments beside the tuned value", with_arguments, seconds=PATIENCE)
    assert (await play.status("tuned"))["effective"]["source"] == "Tuned"
    await play.edit("tuned", engine={"maxNumSeqs": 5})
    await play.rolled_out("tuned", seats=5)
    # The status may be written after the pods have rolled.
    status = await play.until("tuned", "five seats", lambda found: found["effective"].get("maxNumSeqs") == 5)
    assert status["effective"]["source"] == "Spec"


@side_by_side(stage="main-job")
async def test_a_change_that_helps_is_kept(play: Play) -> None:
    """What the faults are compared with."""
    await play.serves("helped", clients=CROWD)
    entry = await play.finished("helped")
    assert (entry["outcome"], entry["fromValue"], entry["toValue"]) == ("Succeeded", "4", "8")
    await play.rolled_out("helped", seats=8)
    assert (await play.stage.deployment("helped"))["metadata"]["generation"] == 2
    assert len(await play.events("helped", "ChangeStarted")) == 1
    assert play.monitor.course("helped") == ["Provisioning", "Verifying", "WarmingUp", "Analyzing", "Baking"]
    play.served_all_along("helped")


@side_by_side(stage="main-job")
async def test_a_change_that_hurts_is_rolled_back_and_remembered(play: Play) -> None:
    await play.serves("hurt", clients=CROWD, simulated=degrading())
    entry = await play.finished("hurt")
    assert (entry["outcome"], entry["toValue"]) == ("RolledBack", "8")
    await play.rolled_out("hurt", seats=4)
    assert (await play.stage.deployment("hurt"))["metadata"]["generation"] == 3
    status = await play.status("hurt")
    assert [one["candidate"] for one in status["failureMemory"]] == ["maxNumSeqs=8"]
    assert len(await play.events("hurt", "ChangeStarted")) == 1
    play.served_all_along("hurt")


@side_by_side(stage="main-job")
async def test_in_mode_approve_a_person_decides_and_the_bounds_hold(play: Play) -> None:
    await play.serves("asked", clients=CROWD, tuning={"mode": "Approve", "maxNumSeqs": {"min": 2, "max": 6}})
    # The crowd asks for eight seats; the first ticks may see only some of it, and each advice has an id of its own.
    await play.until("asked", "six seats", lambda found: advised(found) == "6")
    await play.ticks(3)
    assert not play.monitor.states("asked"), "nobody had approved"

    async def approved() -> bool:
        # As a person would: what stands now. A busy machine may empty the queue for a moment; the question that then
        # comes back is another one.
        status = await play.status("asked")
        if advised(status) == "6":
            await play.edit("asked", annotations={"vllm-autotuner.dev/approve": status["recommendation"]["id"]})
        return bool(play.monitor.states("asked"))

    await until("a change that was approved", approved, seconds=PATIENCE, every=2)
    entry = await play.finished("asked")
    assert (entry["fromValue"], entry["toValue"]) == ("4", "6")


@side_by_side(stage="main-job")
async def test_replicas_go_out_to_the_maximum_under_load_and_back_when_it_is_quiet(play: Play) -> None:
    scaling = {
        "minReplicas": 1,
        "maxReplicas": 3,
        "scaleOut": {"waitingFor": "10s"},
        "scaleIn": {"stabilization": "10s"},
    }
    await play.serves("breathing", clients=30, scaling=scaling, tuning={"maxNumSeqs": None})
    await play.until("breathing", "three replicas", lambda found: found.get("readyReplicas") == 3)
    await play.ticks(5)
    assert (await play.stage.deployment("breathing"))["spec"]["replicas"] == 3
    play.stage.loads["breathing"].clients = 0
    await play.until("breathing", "one replica again", lambda found: found.get("replicas") == 1)
    asked = [(status.get("effective") or {}).get("replicas", 1) for status in play.monitor.statuses("breathing")]
    assert {*asked} <= {1, 2, 3}
    assert not play.monitor.states("breathing"), "without bounds no seat may be moved"


@side_by_side(stage="main-job")
async def test_replicas_without_scaling_are_the_users_and_follow_kubectl_scale(play: Play) -> None:
    await play.serves("scaled", tuning={"mode": "Automatic"})
    body = {"spec": {"replicas": 2}}
    await play.write("PATCH", "scaled/scale", body)
    await play.until("scaled", "two replicas", lambda found: found.get("readyReplicas") == 2)
    assert (await play.status("scaled"))["selector"] == pod_selector("scaled")


@side_by_side(stage="main-job")
async def test_an_engine_that_does_not_start_for_memory_is_healed_by_a_shorter_context(play: Play) -> None:
    await healed_by_a_shorter_context(play, "too-long")


@side_by_side(stage="main-job")
async def test_an_engine_that_hangs_is_named_and_never_scaled_out(play: Play) -> None:
    # Longer than it takes to tell a hanging engine from a busy one (120 s without a token).
    scaling = {"minReplicas": 1, "maxReplicas": 3, "scaleOut": {"waitingFor": "150s"}}
    simulated = {"wedge_after": 25}
    await play.serves("hanging", clients=CROWD, scaling=scaling, simulated=simulated, tuning={"maxNumSeqs": None})
    status = await play.until("hanging", "Wedged", lambda found: class_of(found) == "Wedged", seconds=240)
    assert "restart it; more replicas do not help" in status["diagnosis"]["message"]
    await play.ticks(20)
    # A busy machine may leave it without metrics for a moment.
    await play.until("hanging", "still Wedged", lambda found: class_of(found) == "Wedged")
    assert (await play.stage.deployment("hanging"))["spec"]["replicas"] == 1
    assert not await play.events("hanging", "ScaledOut")
