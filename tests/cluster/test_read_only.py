"""The adapter of an operator that only looks: the API server hears nothing but GET, whatever it is asked to do."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.control.objects import deployment_object, service_object

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import Connection
from vllm_autotuner.cluster.errors import READ_ONLY, Conflict, Refused
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.cluster.kinds import DEPLOYMENT
from vllm_autotuner.cluster.read_only import ReadOnlyCluster
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.workload.labels import SERVICE

NOW = datetime(2026, 11, 23, tzinfo=UTC)
READS = {"serves_crd", "read_service", "read", "pages", "pod_log"}
IN_THE_LOG = {"write_status", "post_event"}
HAPPENED = Event(reason="Recommended", note="Recommended maxNumSeqs 64 -> 128", action="Recommend", transition="r/1")


class Api:
    """An API server with one VLLMService; it remembers what it was asked."""

    def __init__(self) -> None:
        self.service = service_object(version="7")
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(method)
        return self.service


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def cluster(api: Api) -> ReadOnlyCluster:
    throttle = Throttle(ThrottleSettings(), monotonic=lambda: 0.0)
    return ReadOnlyCluster(cast(Connection, api), throttle=throttle, instance="test")


def child() -> dict[str, Any]:
    body = deployment_object() | {"apiVersion": "apps/v1"}
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), SERVICE: "chat"}
    return body


def owner() -> dict[str, str]:
    (controller,) = child()["metadata"]["ownerReferences"]
    return {"service_name": "chat", "service_uid": controller["uid"]}


WRITES: dict[str, Callable[[Cluster], Awaitable[object]]] = {
    "apply": lambda cluster: cluster.apply(child(), epoch=1),
    "apply_adopted": lambda cluster: cluster.apply_adopted(child(), epoch=1),
    "patch_child": lambda cluster: cluster.patch_child(child(), {"metadata": {"annotations": {}}}, **owner(), epoch=1),
    "scale": lambda cluster: cluster.scale("prod", "chat", 2, resource_version="1"),
    "delete": lambda cluster: cluster.delete(DEPLOYMENT, namespace="prod", name="chat", **owner(), epoch=1),
    "annotate_service": lambda cluster: cluster.annotate_service("prod", "chat", {"a": "b"}),
    "set_data": lambda cluster: cluster.set_data("prod", "limits", {"a": "b"}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_write_is_refused_before_anything_is_asked(
    api: Api, cluster: ReadOnlyCluster, write: Callable[[Cluster], Awaitable[object]]
) -> None:
    with pytest.raises(Refused, match="read-only") as refused:
        await write(cluster)
    assert (refused.value.reason, api.asked) == (READ_ONLY, [])


def test_every_request_of_the_adapter_is_a_read_or_one_of_these() -> None:
    public = {name for name, member in vars(Cluster).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert public == READS | IN_THE_LOG | WRITES.keys()


async def test_a_status_is_returned_as_it_would_be_stored_and_told_in_the_log(
    api: Api, cluster: ReadOnlyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    status = {"diagnosis": {"class": "ConcurrencyCapped", "message": "every seat is taken"}}
    found = await cluster.write_status("prod", "chat", status, resource_version="7")
    assert found == api.service | {"status": status}
    assert set(api.asked) == {"GET"}
    (line,) = caplog.records
    told = (line.service, line.diagnosis, line.note)  # type: ignore[attr-defined]
    assert told == ("prod/chat", "ConcurrencyCapped", "every seat is taken")


async def test_a_status_about_an_older_version_is_a_conflict_as_ever(cluster: ReadOnlyCluster) -> None:
    with pytest.raises(Conflict):
        await cluster.write_status("prod", "chat", {}, resource_version="6")


async def test_an_event_is_a_line_in_the_log(
    api: Api, cluster: ReadOnlyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await cluster.post_event(api.service, HAPPENED, now=NOW)
    assert api.asked == []
    (line,) = caplog.records
    assert (line.reason, line.note) == (HAPPENED.reason, HAPPENED.note)  # type: ignore[attr-defined]
