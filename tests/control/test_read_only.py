"""A read-only operator over the model of its world: it decides as ever, and nothing of it reaches the cluster."""

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import pytest
from tests.control.cluster_model import ApiServer
from tests.control.desk import START
from tests.control.loop_bed import Bed, bed, queueing, service_body

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.cluster.read_only import ReadOnlyCluster
from vllm_autotuner.control.read.registry import Key

STEADY = 6
CHAT = Key("prod", "chat")


class Seen(ApiServer):
    """The model as the adapter of a read-only operator shows it."""

    writes: ClassVar[bool] = False
    write_status = ReadOnlyCluster.write_status
    post_event = ReadOnlyCluster.post_event


def looking(world: ApiServer) -> Bed:
    """A read-only operator in this world; what is stored says nothing of it."""
    found = Bed(Seen(**{each.name: getattr(world, each.name) for each in fields(world)}))
    found.api.stored = lambda name, by_hand: None
    found.read_only = True
    found.start()
    return found


async def serving(spec: Mapping[str, Any] | None = None, **world: Any) -> ApiServer:
    """A world in which a service serves, from the time of an operator that wrote; the load comes later."""
    found = bed(spec={"tuning.mode": "Off", **(spec or {})})
    await found.ticks(STEADY)
    for name, value in world.items():
        setattr(found.api, name, value)
    return found.api


def written(world: ApiServer) -> list[tuple[str, int]]:
    return sorted((verb, count) for verb, count in world.requests.items() if not verb.startswith(("read", "log")))


def decided(found: Bed) -> VLLMService:
    entry = found.registry.services.get(CHAT)
    assert entry is not None
    assert isinstance(entry.service, VLLMService)
    return entry.service


def lines(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    return [str(vars(each)["note"]) for each in caplog.records if each.getMessage() == message]


async def test_what_it_would_recommend_is_in_its_metrics_and_once_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = await serving(load=queueing)
    world.edit("chat", lambda body: body["spec"]["tuning"].update(mode="Automatic"))
    stored, before = world.objects["VLLMService", "chat"], written(world)
    found = looking(world)
    caplog.clear()
    await found.ticks(STEADY)
    first = decided(found).status.recommendation
    assert first is not None
    assert (first.knob, first.recommended) == ("maxNumSeqs", "128")
    assert "the operator is read-only (--read-only)" in first.reason
    await found.ticks(20)
    assert decided(found).status.recommendation == first, "it is another one in each tick"
    (told,) = (each for each in lines(caplog, "read-only, event not posted") if each.startswith("Recommended"))
    assert "maxNumSeqs 64 -> 128" in told
    assert len(lines(caplog, "read-only, status not written")) < STEADY
    page = found.metrics.page().decode()
    assert f'vllm_autotuner_held_recommendations{{reason="{first.held_by}"}} 1.0' in page
    assert 'vllm_autotuner_services{diagnosis="ConcurrencyCapped"} 1.0' in page
    assert "vllm_autotuner_leader 1.0" in page
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 0.0' in page
    assert written(found.api) == before
    assert found.api.objects["VLLMService", "chat"] is stored
    assert found.seats() == 64


async def test_a_service_without_a_workload_gets_none() -> None:
    world = ApiServer(now=START)
    world.create(service_body())
    found = looking(world)
    await found.ticks(STEADY)
    assert set(found.api.objects) == {("VLLMService", "chat")}
    assert written(found.api) == []
    ready = find_condition(decided(found).status.conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status.value == "False"
    page = found.metrics.page().decode()
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 0.0' in page


async def test_an_edit_is_decided_on_anew() -> None:
    world = await serving(load=queueing)
    found = looking(world)
    await found.ticks(STEADY)
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    await found.ticks(2)
    assert decided(found).status.observed_generation == 2
    assert found.seats() == 64, "the workload is nobody's here"


async def test_a_change_in_progress_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Watched only, it would overrun its deadlines and count as a rollback that failed."""
    wrote = bed(load=queueing)
    while wrote.change() is None:
        await wrote.tick()
    stored, before = wrote.api.objects["VLLMService", "chat"], written(wrote.api)
    found = looking(wrote.api)
    caplog.clear()
    await found.ticks(200)
    assert found.api.objects["VLLMService", "chat"]["status"] == stored["status"]
    assert written(found.api) == before
    assert lines(caplog, "read-only, event not posted") == []
    page = found.metrics.page().decode()
    assert 'outcome="RollbackFailed"} 1.0' not in page
    assert 'vllm_autotuner_active_changes{state="Provisioning"} 1.0' in page


async def test_an_object_that_cannot_be_read_is_told_of_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = looking(await serving())
    found.api.older_crd = True
    found.api.edit("chat", lambda body: body["spec"].update(replicas="many"))
    before = written(found.api)
    caplog.clear()
    await found.ticks(STEADY)
    assert written(found.api) == before
    assert len(lines(caplog, "read-only, status not written")) == 1
