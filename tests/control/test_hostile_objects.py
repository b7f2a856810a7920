"""One service under change, and beside it an object that its owner has poisoned: the change ends as it does alone."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from tests.api.cases import SMALLEST
from tests.control.loop_bed import Bed, bed, queueing

from vllm_autotuner.api.conditions import ConditionType, Reason, find_condition
from vllm_autotuner.api.fields import EARLIEST_YEAR, LATEST_YEAR
from vllm_autotuner.api.service import InvalidReason, InvalidService, parse_service
from vllm_autotuner.api.status import Outcome, parse_status
from vllm_autotuner.cluster.errors import from_response

Body = dict[str, Any]
TICKS: Final = 60
CHANGE: Final = {
    "id": "c", "generation": 1, "knob": "maxNumSeqs", "toValue": "8", "state": "Analyzing", "from": {}, "to": {},
}  # fmt: skip


def dated(text: str) -> Callable[[Body], None]:
    """Its change has a deadline then."""
    return lambda body: body["status"].update(activeChange={**CHANGE, "deadline": text, "startedAt": text})


POISONS: Final[dict[str, tuple[Callable[[Body], None], Reason]]] = {
    "a date at the end of the calendar": (dated("9999-12-31T23:59:59Z"), Reason.INVALID_STATUS),
    "a date before its beginning": (dated("0001-01-01T00:00:00+14:00"), Reason.INVALID_STATUS),
    "a pod template without an end": (
        lambda body: body["spec"].update(podTemplate=json.loads('{"a":' * 150 + "1" + "}" * 150)),
        Reason.INVALID_SPEC,
    ),
    "a pod on the network of its node": (
        lambda body: body["spec"].update(podTemplate={"spec": {"hostNetwork": True}}),
        Reason.INVALID_SPEC,
    ),
    "a pod template as large as an object may be": (
        lambda body: body["spec"].update(podTemplate={"spec": {"x": {str(key): {} for key in range(100_000)}}}),
        Reason.INVALID_SPEC,
    ),
}


async def until_it_ends(found: Bed) -> tuple[Outcome, int]:
    for ticks in range(TICKS):
        await found.tick()
        if history := found.status().history:
            return history[0].outcome, ticks
    raise AssertionError("the change never ended")


@pytest.mark.parametrize("poison", POISONS)
async def test_a_poisoned_object_is_reported_on_itself_and_costs_no_other(poison: str) -> None:
    alone = await until_it_ends(bed("chat", load=queueing))
    found = bed("chat", "odd", load=queueing)
    await found.ticks(1)
    poisoned, reason = POISONS[poison]
    found.api.edit("odd", poisoned)
    found.restart()
    outcome, ticks = await until_it_ends(found)
    assert outcome is alone[0]
    assert ticks <= alone[1] + 1
    conditions = parse_status(
        {"conditions": found.api.objects["VLLMService", "odd"]["status"]["conditions"]}
    ).conditions
    stalled = find_condition(conditions, ConditionType.STALLED)
    assert stalled is not None
    assert (stalled.status, stalled.reason) == ("True", reason)


async def test_a_typo_in_a_pod_template_is_told_on_the_object_and_is_no_outage() -> None:
    found = bed("chat", "odd", "odd2", "odd3", load=queueing)
    message = (
        "failed to create typed patch object (prod/odd; apps/v1, Kind=Deployment): "
        ".spec.template.spec.nodeSelectr: field not declared in schema"
    )
    body = json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": 500}).encode()
    error = from_response(status=500, body=body, headers={}, request="PATCH deployments/odd")
    found.api.refuses = lambda verb, name: error if verb == "apply Deployment" and name.startswith("odd") else None
    outcome, _ = await until_it_ends(found)
    assert outcome is Outcome.SUCCEEDED
    stalled = find_condition(found.status("odd").conditions, ConditionType.STALLED)
    assert stalled is not None
    assert (stalled.status, stalled.reason) == ("True", Reason.INVALID_SPEC)
    assert "nodeSelectr: field not declared in schema" in stalled.message


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2500-01-01T00:00:00Z"],
)
def test_a_date_near_the_end_of_the_calendar_is_an_unreadable_status(text: str) -> None:
    metadata = {"namespace": "a", "name": "chat"}
    found = parse_service({"metadata": metadata, "spec": SMALLEST, "status": {"measured": {"at": text}}})
    assert isinstance(found, InvalidService)
    assert found.reason is InvalidReason.STATUS
    assert found.message == f"status.measured.at: write a time between the years {EARLIEST_YEAR} and {LATEST_YEAR}"


def test_the_zero_of_a_clock_without_a_battery_is_a_date() -> None:
    found = parse_status({"measured": {"at": "1970-01-01T00:00:00Z"}}).measured
    assert found is not None
    assert found.at == datetime(1970, 1, 1, tzinfo=UTC)
