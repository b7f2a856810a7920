"""A VLLMService that is deleted during a change: there is no finalizer, so a person is told what was left behind."""

from typing import Any

import pytest
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_canary import until

from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.control.read.registry import Key


def delete(found: Bed) -> None:
    """The object is gone at once; its Deployment stays where the spec says so."""
    body = found.api.objects.pop(("VLLMService", "chat"))
    found.registry.services.see(body, deleted=True)


def told(found: Bed) -> list[str]:
    return [event.note for event in found.api.events.values() if event.reason == "ChangeAbandoned"]


@pytest.mark.fault("T55")
@pytest.mark.parametrize("state", [ChangeState.PROVISIONING, ChangeState.ANALYZING, ChangeState.BAKING])
async def test_the_value_under_test_that_stays_is_named_once(state: ChangeState) -> None:
    found = bed(load=queueing)
    await until(found, state)
    delete(found)
    await found.ticks(4)
    assert found.registry.services.get(Key("prod", "chat")) is None
    (note,) = told(found)
    assert note.startswith("Deleted during a change: Deployment chat keeps maxNumSeqs=128, which was under test.")
    assert note.endswith("To return to 64: kubectl rollout undo -n prod deployment/chat")


@pytest.mark.fault("T55")
@pytest.mark.parametrize(
    ("state", "spec"),
    [
        pytest.param(ChangeState.ANALYZING, {"replicas": 3}, id="a canary goes with its owner"),
        pytest.param(ChangeState.ANALYZING, {"deletionPolicy": "Delete"}, id="the Deployment goes as well"),
        pytest.param(None, {}, id="nothing was under test"),
    ],
)
async def test_where_nothing_untried_stays_nothing_is_said(state: ChangeState | None, spec: dict[str, Any]) -> None:
    found = bed(load=queueing, spec=spec)
    await until(found, state)
    delete(found)
    await found.ticks(4)
    assert told(found) == []


async def test_a_service_whose_deletion_no_watch_told_of_is_forgotten_at_the_next_request() -> None:
    found = bed(load=queueing)
    await until(found, ChangeState.ANALYZING)
    found.api.remove("chat")
    await found.ticks(4)
    assert found.registry.services.get(Key("prod", "chat")) is None
