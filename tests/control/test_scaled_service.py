"""An autoscaler of the VLLMService writes its replicas: that is no edit of anything else."""

import copy

import pytest
from tests.control.cluster_model import Body, Load
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import ask, until
from tests.control.test_contest import applies, conflict, insists, seats

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.workload.labels import CONFIG_HASH, HASH_VERSION

FORMER = "0ther0ther"
"""The hash that another version of the operator gave to the same configuration."""


def scale(found: Bed, replicas: int) -> None:
    """What an autoscaler does through the scale subresource."""
    found.api.edit("chat", lambda body: body["spec"].update(replicas=replicas))


def rendered_by_another_version(found: Bed) -> None:
    deployment = copy.deepcopy(found.deployment())
    for metadata in (deployment["metadata"], deployment["spec"]["template"]["metadata"]):
        metadata["annotations"] |= {CONFIG_HASH: FORMER, HASH_VERSION: "0"}
    found.api._store("Deployment", "chat", deployment)
    for pod in found.api.pods:
        pod.config_hash = FORMER

    def record(body: Body) -> None:
        for part in ("effective", "lastKnownGood"):
            body["status"][part] |= {"configHash": FORMER, "hashVersion": 0}

    found.api.edit("chat", record)
    found.restart()
    found.witnesses.clear()


@pytest.mark.fault("T50")
async def test_no_pod_of_an_earlier_version_is_rolled() -> None:
    found = bed(load=lambda seats: Load(), spec={"replicas": 2})
    await found.ticks(8)
    rendered_by_another_version(found)
    await found.ticks(4)
    pods = {pod.name for pod in found.api.pods}
    scale(found, 3)
    await found.ticks(12)
    assert (found.deployment()["spec"]["replicas"], len(found.api.pods)) == (3, 3)
    assert pods <= {pod.name for pod in found.api.pods}, "they were rolled"
    assert found.status().observed_generation == 2


@pytest.mark.fault("T50")
async def test_a_failed_rollback_still_needs_a_person() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    found.api.crashes = lambda value: value == 64
    ask(found, "rollback", "1")
    await until(found, None, at_most=300)
    assert found.status().history[-1].outcome is Outcome.ROLLBACK_FAILED
    scale(found, 2)
    await found.ticks(4)
    assert found.status().rollback_failed is not None
    stalled = find_condition(found.status().conditions, ConditionType.STALLED)
    assert stalled is not None
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    await found.ticks(4)
    assert found.status().rollback_failed is None, "an edit resolves it"


@pytest.mark.fault("T50")
async def test_a_contest_stays_lost() -> None:
    found = bed()
    await found.ticks(6)
    await insists(found, seats(16), ticks=5)
    before = applies(found)
    scale(found, 2)
    await insists(found, seats(16), ticks=5)
    assert found.deployment()["spec"]["replicas"] == 2
    assert (applies(found), found.seats()) == (before + 1, 16), "its arguments are left alone"
    assert conflict(found) is not None


async def test_a_change_goes_on() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    scale(found, 2)
    await until(found, None, at_most=100)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]
