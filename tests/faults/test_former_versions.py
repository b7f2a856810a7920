"""The operator finds objects as former versions left them, in every state of a change (T57)."""

import copy
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.control.cluster_model import ApiServer, Body
from tests.control.crd_schema import violation
from tests.control.field_owners import Owners
from tests.control.loop_bed import Bed, queueing, slow_beyond_64
from tests.faults.test_valid_writes import overgrown, status_schema

from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import HISTORY_LENGTH, parse_status
from vllm_autotuner.control.write import status_writer
from vllm_autotuner.control.write.lost_parts import lost_parts
from vllm_autotuner.workload.labels import OPERATOR

FOLDER: Final = Path(__file__).resolve().parents[1] / "data" / "objects"
LOADS: Final = {"helps": queueing, "harms": slow_beyond_64, "canary": queueing}
GROWN: Final = ("history", "failureMemory", "scaleIns", "trackRecord", "handledRequests")
"""Lists that a former version let grow past their limits."""
TICKS: Final = 160
"""Forty minutes: a bake takes thirty where the spec does not say."""
AFTERWARDS: Final = 5
STORED: Final = [
    pytest.param(each, id=f"{path.stem} {each['story']} {each['state']}")
    for path in sorted(FOLDER.glob("*.json"))
    for each in json.loads(path.read_text(encoding="utf-8"))
]
every_object = pytest.mark.parametrize("stored", STORED)


def found_by_the_operator_of_today(stored: Body, service: Body) -> Bed:
    api = ApiServer(now=datetime.fromisoformat(stored["now"]), load=LOADS[stored["story"]])
    # The invariants are about what this operator has written from the beginning.
    bed = Bed(api)
    api.stored = lambda name, by_hand: None
    api.create(service)
    for body in stored["deployments"]:
        name = body["metadata"]["name"]
        api.owners["Deployment", name] = Owners()
        api.owners["Deployment", name].applied(body, by=OPERATOR)
        managed = {"managedFields": api.owners["Deployment", name].managed_fields()}
        api._store("Deployment", name, {**body, "metadata": {**body["metadata"], **managed}})
    return bed


def grown(service: Body) -> Body:
    """With longer lists than a status may have, and fields that no version knows."""
    body = copy.deepcopy(service)
    status = body.setdefault("status", {})
    everything = overgrown(status_schema())
    for name in GROWN:
        status[name] = [*everything[name], *status.get(name, [])]
    status["former"] = {"a": 1}
    if "activeChange" in status:
        status["activeChange"]["former"] = "b"
    return body


def told(caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    return [record.__dict__["parts"] for record in caplog.records if record.name == status_writer.__name__]


@pytest.mark.fault("T57")
@every_object
def test_they_are_read(stored: Body) -> None:
    for service in (stored["service"], grown(stored["service"])):
        found = parse_service(service)
        assert isinstance(found, VLLMService)
        change = service["status"].get("activeChange")
        assert (found.status.active_change is None) is (change is None)


@pytest.mark.fault("T57")
@every_object
async def test_nothing_is_left_out_of_what_they_say(stored: Body, caplog: pytest.LogCaptureFixture) -> None:
    bed = found_by_the_operator_of_today(stored, stored["service"])
    await bed.ticks(3)
    assert told(caplog) == []


@pytest.mark.fault("T57")
@every_object
async def test_lists_are_cut_with_the_first_write_and_what_is_left_out_is_logged_once(
    stored: Body, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    service = grown(stored["service"])
    assert violation("status", service["status"])
    bed = found_by_the_operator_of_today(stored, service)
    await bed.ticks(4)
    after = bed.api.objects["VLLMService", "chat"]["status"]
    assert violation("status", after) == ""
    [parts] = told(caplog)
    left = len(service["status"]["history"]) - HISTORY_LENGTH
    assert f"status.history: {left} of {left + HISTORY_LENGTH} entries" in parts
    assert {"status.former"} | ({"status.activeChange.former"} if "activeChange" in service["status"] else set()) < set(
        parts
    )
    kept = [each["id"] for each in service["status"]["history"][-HISTORY_LENGTH:]]
    assert [each["id"] for each in after["history"]][: HISTORY_LENGTH - 1] in (kept[:-1], kept[1:])


@pytest.mark.fault("T57")
@every_object
async def test_a_change_in_progress_comes_to_its_end(stored: Body) -> None:
    service = stored["service"]
    change = service["status"].get("activeChange")
    bed = found_by_the_operator_of_today(stored, service)
    for _ in range(TICKS if change is not None else 0):
        await bed.tick()
        if bed.change() is None:
            break
    await bed.ticks(AFTERWARDS)
    if change is not None:
        assert change["id"] in [each.id for each in bed.status().history]
    assert [name for kind, name in bed.api.objects if kind == "Deployment"] == ["chat"], "a trial was left"
    assert violation("status", bed.api.objects["VLLMService", "chat"]["status"]) == ""


@pytest.mark.parametrize(
    ("stored", "kept", "lost"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="nothing"),
        pytest.param({"a": [1, 2, 3]}, {"a": [3]}, ["status.a: 2 of 3 entries"], id="entries"),
        pytest.param({"a": {"b": 1}}, {"a": {}}, ["status.a.b"], id="a field"),
        pytest.param({"a": None, "b": [], "c": {}}, {}, [], id="what says nothing"),
        pytest.param({"a": [{"b": 1}]}, {"a": [{}]}, ["status.a[0].b"], id="a field of an entry"),
        pytest.param({"a": "x" * 9}, {"a": "xxx\N{HORIZONTAL ELLIPSIS}"}, ["status.a: 5 characters"], id="a long text"),
        pytest.param({"a": "2026-11-21T12:00:00.000Z"}, {"a": "2026-11-21T12:00:00Z"}, [], id="another spelling"),
    ],
)
def test_what_is_lost_is_named(stored: dict[str, Any], kept: dict[str, Any], lost: list[str]) -> None:
    assert list(lost_parts(stored, kept)) == lost


def test_every_list_of_a_status_of_today_is_among_those_that_are_cut() -> None:
    assert parse_status({name: [] for name in GROWN}) == parse_status({})
    assert set(GROWN) <= status_schema()["properties"].keys()
