"""No status is written that the API server would refuse: each list is cut to its limit."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.api.test_status_size import filled
from tests.control.crd_schema import violation
from tests.control.loop_bed import bed, queueing

from vllm_autotuner.api import status_size
from vllm_autotuner.api.crd import crd
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.scale_ins import SCALE_INS_LENGTH, ScaleInTried
from vllm_autotuner.api.status import VLLMServiceStatus, parse_status
from vllm_autotuner.budgets import STATUS_BYTES
from vllm_autotuner.control.decide.tick import decide
from vllm_autotuner.control.run import service_tick

TOO_MANY = 40
"""More than any list of the status may hold."""


def overgrown(schema: dict[str, Any], *, number: int = 0) -> Any:
    """A value of this schema in which every list is longer than it may be."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: overgrown(each, number=number) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [overgrown(schema["items"], number=count) for count in range(TOO_MANY)]
        case "string":
            return "2026-11-23T00:00:00Z" if schema.get("format") == "date-time" else f"auto{number}"
        case "boolean":
            return True
        case _:
            return int(schema.get("minimum", 1))


def status_schema() -> dict[str, Any]:
    (version,) = crd()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return schema


@pytest.mark.fault("T43")
def test_a_status_with_every_list_too_long_is_cut_when_it_is_read_and_can_be_written() -> None:
    raw = overgrown(status_schema())
    assert violation("status", raw)
    assert violation("status", to_wire(parse_status(raw))) == ""


@pytest.mark.fault("T43")
async def test_a_list_that_a_decision_let_grow_is_cut_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*args: Any, **kwargs: Any) -> Any:
        decision = decide(*args, **kwargs)
        grown = tuple(ScaleInTried(replicas=number) for number in range(TOO_MANY))
        object.__setattr__(decision, "status", decision.status.model_copy(update={"scale_ins": grown}))
        return decision

    monkeypatch.setattr(service_tick, "decide", forgetful)
    found = bed(load=queueing)
    await found.ticks(3)
    kept: VLLMServiceStatus = found.status()
    assert [each.replicas for each in kept.scale_ins] == list(range(TOO_MANY - SCALE_INS_LENGTH, TOO_MANY))
    assert kept.observed_generation == 1


async def test_a_status_that_is_too_large_is_sent_small_and_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full, limit = parse_status(filled(VLLMServiceStatus)), 8 * 1024

    def remembering(*args: Any, **kwargs: Any) -> Any:
        decision = decide(*args, **kwargs)
        status = decision.status.model_copy(update={"track_record": full.track_record})
        object.__setattr__(decision, "status", status)
        return decision

    monkeypatch.setattr(service_tick, "decide", remembering)
    monkeypatch.setattr(status_size, "STATUS_BYTES", replace(STATUS_BYTES, limit=limit))
    found = bed()
    await found.ticks(12)
    before = found.api.objects["VLLMService", "chat"]
    assert 0 < len(found.status().track_record) < len(full.track_record)
    assert len(json.dumps(before["status"], separators=(",", ":"))) <= limit
    await found.ticks(3)
    after = found.api.objects["VLLMService", "chat"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
