"""Stable pods are lost while a canary is tried: the real fleet loop over the model of its world."""

import pytest
from tests.control.loop_bed import Bed, bed, queueing

from vllm_autotuner.api.status import ChangeState


def serving(found: Bed, deployment: str = "chat") -> int:
    return sum(pod.ready_since is not None for pod in found.api.pods if pod.deployment == deployment)


@pytest.mark.fault("T22")
@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("state", [ChangeState.PROVISIONING, ChangeState.WARMING_UP, ChangeState.ANALYZING])
async def test_stable_pods_that_are_lost_come_back_before_a_canary_is_followed(state: ChangeState, left: int) -> None:
    found = bed(spec={"replicas": 3}, load=queueing)
    while (change := found.change()) is None or change.state is not state:
        await found.tick()
    found.harmed = True
    stable = [pod for pod in found.api.pods if pod.deployment == "chat"]
    found.api.pods = [pod for pod in found.api.pods if pod.deployment != "chat"] + stable[:left]
    for _ in range(70):
        whole = serving(found) == 3
        await found.tick()
        change = found.change()
        if not whole and change is not None:
            assert change.state is not ChangeState.PROMOTING, "promoted on a service that is not whole"
    assert (found.change(), serving(found), len(found.api.pods)) == (None, 3, 3)
    assert found.seats() in (64, 128)
    (entry,) = found.status().history
    assert (entry.outcome.value == "Succeeded") is (found.seats() == 128)
