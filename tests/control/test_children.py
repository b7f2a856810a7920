"""Each child object is written for itself: one that is refused is in nobody's way, one that is deleted comes back."""

from datetime import timedelta

import pytest
from tests.control.cluster_model import Body
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import ask, extras, until

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.cluster.errors import Refused, Unavailable
from vllm_autotuner.control.write.workload_writer import LOOK_AFTER

REFUSALS = {
    "a missing permission": Refused("services is forbidden", reason="Forbidden", status=403),
    "a quota": Refused("exceeded quota: services", reason="Forbidden", status=403),
    "a webhook that is down": Unavailable("failed calling webhook", reason="InternalError", status=500),
}


def refuse(found: Bed, error: Exception, *refused: str) -> None:
    found.api.refuses = lambda verb, name: error if verb in refused else None


@pytest.mark.fault("T45")
@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_service_that_is_refused_does_not_keep_the_deployment_from_being_rolled_back(error: Exception) -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    found.restart()  # another leader applies the Service again
    refuse(found, error, "apply Service")
    await found.tick()
    ask(found, "rollback", "now")
    await found.ticks(2)
    assert found.seats() == 64
    while found.change() is not None:
        await found.tick()
    assert [entry.outcome for entry in found.status().history] == [Outcome.ROLLED_BACK]
    await found.ticks(2)
    if isinstance(error, Refused):
        stalled = find_condition(found.status().conditions, ConditionType.STALLED)
        assert stalled is not None
        assert str(error) in stalled.message


@pytest.mark.fault("T45")
async def test_a_trial_that_cannot_be_deleted_does_not_keep_the_service_from_being_rolled_back() -> None:
    found = bed(load=queueing, spec={"replicas": 3})
    await until(found, ChangeState.PROMOTING)
    await found.tick()
    assert found.seats() == 128
    refuse(found, REFUSALS["a webhook that is down"], "delete Deployment")
    ask(found, "rollback", "now")
    await found.ticks(2)
    assert (found.seats(), "canary" in extras(found)) == (64, True)


async def test_no_trial_begins_where_the_workload_itself_is_refused() -> None:
    found = bed(load=queueing, spec={"replicas": 3})
    await found.ticks(3)
    found.restart()
    refuse(found, REFUSALS["a quota"], "apply Service")
    await found.ticks(6)
    assert extras(found) == {}


@pytest.mark.fault("T46")
async def test_a_service_that_was_deleted_is_created_again() -> None:
    found = bed()
    await found.ticks(4)
    del found.api.objects["Service", "chat"]
    await found.ticks(int(LOOK_AFTER / timedelta(seconds=15)) + 2)
    assert ("Service", "chat") in found.api.objects
    writes = found.api.requests["apply Service"]
    reads = found.api.requests["read Service"]
    await found.ticks(200)
    assert found.api.requests["apply Service"] == writes, "what is there is only looked at"
    assert found.api.requests["read Service"] - reads <= 200 * timedelta(seconds=15) / LOOK_AFTER + 1


def label(found: Bed, **labels: str) -> None:
    """What a user writes into spec.workloadMetadata; no label takes the field away."""

    def edit(body: Body) -> None:
        body["spec"].pop("workloadMetadata", None)
        if labels:
            body["spec"]["workloadMetadata"] = {"labels": labels}

    found.api.edit("chat", edit)


def team(found: Bed) -> set[str | None]:
    kinds = ("Deployment", "Service")
    return {found.api.objects[kind, "chat"]["metadata"]["labels"].get("team") for kind in kinds}


async def test_labels_of_the_workload_are_applied_once_and_restart_no_pod() -> None:
    found = bed()
    await found.ticks(6)
    pods = [pod.name for pod in found.api.pods]
    for labels, expected in (({"team": "chat"}, "chat"), ({"team": "search"}, "search"), ({}, None)):
        label(found, **labels)
        await found.ticks(2)
        assert team(found) == {expected}
        writes = found.api.requests["apply Service"], found.api.requests["apply Deployment"]
        await found.ticks(20)
        assert (found.api.requests["apply Service"], found.api.requests["apply Deployment"]) == writes
    assert [pod.name for pod in found.api.pods] == pods


async def test_a_service_that_was_refused_its_labels_gets_them_later() -> None:
    found = bed()
    await found.ticks(6)
    refuse(found, REFUSALS["a webhook that is down"], "apply Service")
    label(found, team="chat")
    await found.ticks(3)
    assert found.api.objects["Deployment", "chat"]["metadata"]["labels"]["team"] == "chat"
    found.api.refuses = lambda verb, name: None
    await found.ticks(2)
    assert team(found) == {"chat"}
