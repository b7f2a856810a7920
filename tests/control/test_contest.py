"""Somebody else writes the workload: what was changed by hand comes back, a machine that insists wins and is named."""

from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta

import pytest
from tests.control.cluster_model import Body, Load
from tests.control.desk import SCALED
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import until

from vllm_autotuner.api.conditions import Condition, ConditionType, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome

ARGO = "argocd-controller"
STEADY = 6


def engine(deployment: Body) -> Body:
    container: Body = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def seats(value: int) -> Callable[[Body], None]:
    def change(deployment: Body) -> None:
        kept = [each for each in engine(deployment)["args"] if not each.startswith("--max-num-seqs")]
        engine(deployment)["args"] = [*kept, f"--max-num-seqs={value}"]

    return change


def image(deployment: Body) -> None:
    engine(deployment)["image"] = "vllm/vllm-openai:nightly"


def variable(deployment: Body) -> None:
    next(each for each in engine(deployment)["env"] if each["name"] == "HF_HOME")["value"] = "/elsewhere"


def no_variable(deployment: Body) -> None:
    engine(deployment)["env"] = []


def replicas(count: int) -> Callable[[Body], None]:
    return lambda deployment: deployment["spec"].update(replicas=count)


def applies(found: Bed) -> int:
    return found.api.requests["apply Deployment"]


def conflict(found: Bed) -> Condition | None:
    return find_condition(found.status().conditions, ConditionType.OWNERSHIP_CONFLICT)


async def insists(found: Bed, change: Callable[[Body], None], *, by: str = ARGO, ticks: int) -> None:
    """Somebody resets a field, before every look of ours."""
    for _ in range(ticks):
        found.api.overwrite("chat", change, by=by)
        await found.tick()


WITH_ENV = {
    "podTemplate": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "HF_HOME", "value": "/models"}]}]}}
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(seats(16), "args", id="arguments, which leave the recorded hash as it is"),
        pytest.param(image, "image", id="the image"),
        pytest.param(variable, "env HF_HOME", id="a variable of ours"),
        pytest.param(no_variable, "env HF_HOME", id="a variable of ours is removed"),
        pytest.param(replicas(5), "replicas", id="kubectl scale is a person's edit"),
    ],
)
async def test_what_a_person_changes_by_hand_is_written_back_once_and_told(
    change: Callable[[Body], None], says: str
) -> None:
    found = bed(spec=WITH_ENV)
    await found.ticks(STEADY)
    before, spec = applies(found), found.deployment()["spec"]
    found.api.overwrite("chat", change, by="kubectl-edit")
    assert found.deployment()["spec"] != spec
    await found.ticks(STEADY)
    assert applies(found) == before + 1
    assert found.deployment()["spec"] == spec
    assert [event.note for event in found.api.events.values() if event.reason == "WorkloadRestored"] == [
        f"Restored {says} of the workload, overwritten by kubectl-edit"
    ]
    assert conflict(found) is None


async def test_a_variable_that_somebody_adds_is_his() -> None:
    found = bed(spec=WITH_ENV)
    await found.ticks(STEADY)
    before = applies(found)
    found.api.overwrite("chat", lambda body: engine(body)["env"].append({"name": "X", "value": "1"}), by=ARGO)
    await found.ticks(STEADY)
    assert (applies(found), found.status().contest) == (before, None)


async def test_a_webhook_that_changes_what_we_write_is_no_contest() -> None:
    found = bed()
    await found.ticks(STEADY)
    before = applies(found)
    # A mutating webhook works within our own request: the field stays ours.
    live = found.deployment()
    found.api.overwrite("chat", image, by="webhook")
    mutated = found.deployment()
    mutated["metadata"]["managedFields"] = live["metadata"]["managedFields"]
    found.start()
    await found.ticks(STEADY)
    assert (applies(found), found.status().contest) == (before, None)


@pytest.mark.fault("T29")
async def test_a_self_healing_tool_wins_after_two_tries_and_nothing_is_written_any_more() -> None:
    found = bed()
    await found.ticks(STEADY)
    before = applies(found)
    await insists(found, seats(16), ticks=20)
    assert applies(found) == before + 2
    said = conflict(found)
    assert said is not None
    assert (said.status.value, said.reason) == ("True", "FieldManagerConflict")
    assert said.message.startswith(
        "argocd-controller keeps overwriting args of Deployment chat: gave up after 2 restores"
    )
    assert found.seats() == 16
    ready = find_condition(found.status().conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status.value == "True", "it serves, and tuning is no reason to call it broken"
    assert found.told.count("OwnershipConflict") == 1
    everything = sum(count for verb, count in found.api.requests.items() if not verb.startswith(("read", "log")))
    await insists(found, seats(16), ticks=50)
    assert (
        sum(count for verb, count in found.api.requests.items() if not verb.startswith(("read", "log"))) == everything
    )


@pytest.mark.fault("T29")
async def test_a_restart_does_not_begin_the_contest_anew() -> None:
    found = bed()
    await found.ticks(STEADY)
    before = applies(found)
    for _ in range(5):
        await insists(found, seats(16), ticks=2)
        found.restart()
    assert applies(found) == before + 2


async def test_an_edit_of_the_service_ends_the_contest() -> None:
    found = bed()
    await found.ticks(STEADY)
    await insists(found, seats(16), ticks=5)
    before = applies(found)
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    await found.ticks(2)
    assert applies(found) == before + 1
    assert found.seats() == 32
    await found.ticks(STEADY)
    assert conflict(found) is None


async def test_a_person_who_asks_to_go_on_ends_the_contest() -> None:
    found = bed()
    await found.ticks(STEADY)
    await insists(found, seats(16), ticks=5)
    assert conflict(found) is not None
    found.api.edit("chat", lambda body: body["metadata"].update(annotations={"vllm-autotuner.dev/retry": "1"}))
    await found.ticks(STEADY)
    assert (conflict(found), found.seats()) == (None, 64)


async def test_peace_for_a_while_ends_the_contest() -> None:
    found = bed()
    await found.ticks(STEADY)
    await insists(found, seats(16), ticks=5)
    found.api.overwrite("chat", seats(64), by=ARGO)
    await found.ticks(2)
    assert conflict(found) is not None, "it was right for a moment only"
    await found.ticks(int(timedelta(minutes=11) / timedelta(seconds=15)))
    assert (conflict(found), found.status().contest) == (None, None)


@pytest.mark.fault("T29")
async def test_a_change_that_is_not_let_happen_is_over_without_blame() -> None:
    found = bed(load=queueing)
    while found.change() is None:
        await found.tick()
    before = applies(found)
    await insists(found, seats(64), ticks=6)
    (entry,) = found.status().history
    assert (entry.outcome, entry.reason) == (
        Outcome.SUPERSEDED,
        "argocd-controller overwrote args during the change",
    )
    assert (found.status().failure_memory, found.status().circuit) == ((), None)
    assert applies(found) == before + 1, "the value under test is not written over an edit"
    await found.ticks(30)
    assert found.change() is None
    assert found.seats() == 64


def slow_once(found: Bed) -> None:
    """From now on, the value under test makes tokens and first tokens late."""
    slow = Load(running=128.0, kv=0.6, ttft=9.0, tpot=0.2)
    found.api.load = lambda value: slow if value > 64 else queueing(value)


@pytest.mark.fault("T44")
async def test_someone_who_scales_three_times_under_a_harmful_change_keeps_his_number_and_loses_the_candidate() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    slow_once(found)
    for _ in range(3):
        found.api.overwrite("chat", replicas(5), by="kubectl", via="scale")
        await found.tick()
    assert found.deployment()["spec"]["replicas"] == 5
    while found.change() is not None:
        await found.tick()
    (entry,) = found.status().history
    assert (entry.outcome, found.seats()) == (Outcome.ROLLED_BACK, 64)
    assert found.deployment()["spec"]["replicas"] == 5
    await found.ticks(STEADY)
    said = conflict(found)
    assert said is not None
    assert said.message.startswith("kubectl keeps overwriting replicas of Deployment chat: gave up after 2 restores")
    ready = find_condition(found.status().conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status.value == "True"


@pytest.mark.fault("T44")
@pytest.mark.parametrize("change", [pytest.param(image, id="the image"), pytest.param(variable, id="a variable")])
async def test_another_field_that_is_contested_under_a_change_leaves_no_candidate_behind(
    change: Callable[[Body], None],
) -> None:
    found = bed(load=queueing, spec=WITH_ENV)
    await until(found, ChangeState.ANALYZING)
    assert found.seats() == 128
    await insists(found, change, ticks=8)
    theirs = deepcopy(found.deployment())
    change(theirs)
    assert found.deployment() == theirs, "it is left to whoever insists"
    assert (found.seats(), found.change()) == (64, None)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUPERSEDED]
    found.api.edit("chat", lambda body: body["spec"].update(replicas=2))
    await insists(found, change, ticks=STEADY)
    assert found.deployment()["spec"]["replicas"] == 2, "every other field is still ours"


@pytest.mark.fault("T44")
async def test_a_canary_is_deleted_where_the_service_itself_is_contested() -> None:
    found = bed(load=queueing, spec={"replicas": 3})
    await until(found, ChangeState.ANALYZING)
    await insists(found, seats(48), ticks=8)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUPERSEDED]
    assert (found.seats(), [name for kind, name in found.api.objects if kind == "Deployment"]) == (48, ["chat"])


@pytest.mark.fault("T44")
async def test_on_call_takes_the_candidate_back_by_hand_and_is_obeyed() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    found.api.overwrite("chat", seats(64), by="kubectl-rollout")
    for _ in range(STEADY):
        await found.tick()
        assert found.seats() == 64
    (entry,) = found.status().history
    assert (entry.outcome, entry.reason) == (Outcome.SUPERSEDED, "kubectl-rollout overwrote args during the change")


@pytest.mark.fault("T30")
async def test_an_autoscaler_of_the_deployment_owns_its_replicas_and_nothing_else() -> None:
    found = bed(spec=SCALED, load=lambda seats: queueing(128))
    await found.ticks(STEADY)
    found.api.overwrite("chat", replicas(6), by="kube-controller-manager", via="scale")
    await found.ticks(STEADY)
    assert found.deployment()["spec"]["replicas"] == 6
    said = conflict(found)
    assert said is not None
    assert said.reason == "ReplicasControlledElsewhere"
    assert said.message.startswith("an autoscaler (HorizontalPodAutoscaler) sets the replicas of Deployment chat")
    effective = found.status().effective
    assert effective is not None
    assert effective.replicas is None
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    await found.ticks(STEADY)
    assert (found.seats(), "replicas" in found.deployment()["spec"]) == (32, True)
    assert found.deployment()["spec"]["replicas"] == 6
    found.api.overwrite("chat", replicas(3), by="kube-controller-manager", via="scale")
    await found.ticks(STEADY)
    assert found.deployment()["spec"]["replicas"] == 3


@pytest.mark.fault("T30")
async def test_an_autoscaler_in_the_middle_of_a_change_keeps_its_replicas_and_the_change_goes_on() -> None:
    found = bed(load=queueing)
    while found.change() is None:
        await found.tick()
    found.api.overwrite("chat", replicas(3), by="kube-controller-manager", via="scale")
    seen = []
    while found.change() is not None:
        await found.tick()
        assert found.deployment()["spec"]["replicas"] == 3
        change = found.change()
        ready = [pod for pod in found.api.pods if pod.ready_since is not None]
        if change is not None and change.state.value == "Analyzing":
            seen.append(len(ready))
            assert len({pod.config_hash for pod in ready}) == 1, "it is judged while pods of two kinds serve"
    assert set(seen) == {3}
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]
    assert found.seats() == 128
