"""One restart is no verdict on a value: neither a node that restarts, nor a start that needs two attempts."""

from collections.abc import Callable
from typing import Any

import pytest
import tests.control.cluster_model as model
from tests.control.cluster_model import Body, Pod
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import until

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.cluster.errors import NotFound

Ends = Callable[[Bed, Pod], int]
"""How often the engine of a pod has ended."""


def ending(found: Bed, monkeypatch: pytest.MonkeyPatch, ends: Ends) -> Bed:
    """The same world where engines end and come back, and no log tells why."""
    real = model._pod_body

    def body(pod: Pod, **seen: Any) -> Body:
        made = real(pod, **seen)
        if count := ends(found, pod):
            end = {"exitCode": 1, "reason": "Error", "finishedAt": found.api.now.isoformat()}
            made["status"]["containerStatuses"][0] |= {"restartCount": count, "lastState": {"terminated": end}}
        return made

    async def no_log(*_: Any, **__: Any) -> str:
        raise NotFound("no such log", reason="NotFound", status=404)

    monkeypatch.setattr(model, "_pod_body", body)
    monkeypatch.setattr(found.api, "pod_log", no_log)
    return found


def under_test(pod: Pod) -> bool:
    return model.seats_of(pod.args) > 64


async def outcome(found: Bed) -> Outcome:
    await until(found, ChangeState.PROVISIONING)
    await until(found, None, at_most=120)
    (entry,) = found.status().history
    return entry.outcome


@pytest.mark.fault("T49")
@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_pods_that_need_two_starts_old_and_new_alike_are_no_fault_of_the_value(
    monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    found = ending(bed(load=queueing, spec={"replicas": replicas}), monkeypatch, lambda found, pod: 1)
    assert await outcome(found) is Outcome.SUCCEEDED, found.status().history
    assert (found.seats(), found.status().failure_memory, found.status().circuit) == (128, (), None)


@pytest.mark.fault("T49")
async def test_a_baseline_that_ends_as_often_as_the_canary_clears_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ending(bed(load=queueing, spec={"replicas": 3}), monkeypatch, lambda found, pod: 3)
    assert await outcome(found) is Outcome.SUCCEEDED, found.status().history


@pytest.mark.fault("T49")
@pytest.mark.parametrize("state", [ChangeState.WARMING_UP, ChangeState.ANALYZING])
async def test_a_node_that_restarts_in_a_trial_is_no_fault_of_the_value(
    monkeypatch: pytest.MonkeyPatch, state: ChangeState
) -> None:
    struck: list[str] = []

    def ends(found: Bed, pod: Pod) -> int:
        change = found.change()
        if not struck and change is not None and change.state is state:
            struck.extend(each.name for each in found.api.pods)
        return int(pod.name in struck)

    found = ending(bed(load=queueing, spec={"replicas": 2}), monkeypatch, ends)
    assert await outcome(found) is Outcome.SUCCEEDED, found.status().history
    assert struck


@pytest.mark.fault("T49")
@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_a_value_whose_engine_ends_twice_is_to_blame(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    found = ending(
        bed(load=queueing, spec={"replicas": replicas}), monkeypatch, lambda found, pod: 2 if under_test(pod) else 0
    )
    assert await outcome(found) is Outcome.ROLLED_BACK
    assert [memory.value for memory in found.status().failure_memory] == ["128"]
    assert found.seats() == 64
