"""A leader that slept between its look and its write overwrites nothing that a later one has written."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from tests.control.objects import deployment_object

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import Connection
from vllm_autotuner.cluster.errors import Conflict
from vllm_autotuner.cluster.kinds import DEPLOYMENT
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.workload.labels import LEASE_EPOCH


class OneObject:
    """An API server with one Deployment; somebody else writes it after each read."""

    def __init__(self, meanwhile: Callable[[dict[str, Any]], None]) -> None:
        self.live = deployment_object()
        self.meanwhile = meanwhile
        self.written = 0

    async def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        if method == "GET":
            found = {**self.live, "metadata": dict(self.live["metadata"])}
            self.meanwhile(self.live)
            return found
        assert body is not None
        told = body["preconditions"] if method == "DELETE" else body["metadata"]
        for name in ("uid", "resourceVersion"):
            wanted = told.get(name)
            if wanted is not None and wanted != self.live["metadata"][name]:
                raise Conflict(f"{name} differs", reason="Conflict", status=409)
        self.written += 1
        return dict(body)


def by_a_later_leader(live: dict[str, Any]) -> None:
    live["metadata"]["resourceVersion"] = "21"
    live["metadata"]["annotations"] = {**live["metadata"].get("annotations", {}), LEASE_EPOCH: "6"}


def deleted_and_created(live: dict[str, Any]) -> None:
    live["metadata"]["uid"] = "d2"


def by_its_controller(live: dict[str, Any]) -> None:
    live["metadata"]["resourceVersion"] = "22"


def cluster(api: OneObject) -> Cluster:
    throttle = Throttle(ThrottleSettings(), monotonic=lambda: 0.0)
    return Cluster(cast(Connection, api), throttle=throttle, instance="test")


@pytest.mark.fault("T52")
async def test_what_a_later_leader_wrote_since_the_look_is_not_overwritten() -> None:
    api = OneObject(by_a_later_leader)
    with pytest.raises(Conflict):
        await cluster(api).apply(_body(), epoch=5)
    assert api.written == 0


@pytest.mark.parametrize("meanwhile", [deleted_and_created, by_its_controller])
async def test_what_another_manager_wrote_is_read_again_and_written(
    meanwhile: Callable[[dict[str, Any]], None],
) -> None:
    api = OneObject(meanwhile)
    assert await cluster(api).apply(_body(), epoch=5)
    assert api.written == 1


async def test_an_object_that_never_stands_still_is_for_the_next_tick() -> None:
    versions = itertools.count(100)

    def restless(live: dict[str, Any]) -> None:
        live["metadata"]["resourceVersion"] = str(next(versions))

    api = OneObject(restless)
    with pytest.raises(Conflict):
        await cluster(api).apply(_body(), epoch=5)
    assert api.written == 0


async def test_what_is_as_it_was_is_written() -> None:
    api = OneObject(lambda live: None)
    await cluster(api).apply(_body(), epoch=5)
    assert api.written == 1


@pytest.mark.fault("T52")
async def test_what_a_later_leader_wrote_since_the_look_is_not_deleted() -> None:
    api = OneObject(by_a_later_leader)
    with pytest.raises(Conflict):
        await _delete(api)
    assert api.written == 0


async def test_what_its_controller_wrote_is_read_again_and_deleted() -> None:
    """The status of a Deployment whose pods start and fail is written every second."""
    api = OneObject(by_its_controller)
    await _delete(api)
    assert api.written == 1


async def _delete(api: OneObject) -> None:
    metadata = api.live["metadata"]
    namespace, uid = metadata["namespace"], metadata["ownerReferences"][0]["uid"]
    await cluster(api).delete(
        DEPLOYMENT, namespace=namespace, name=metadata["name"], service_name="chat", service_uid=uid, epoch=5
    )


def _body() -> dict[str, Any]:
    """As it is rendered: without what only a stored object has."""
    stored = deployment_object()
    metadata = {name: value for name, value in stored["metadata"].items() if name not in ("uid", "resourceVersion")}
    return {"apiVersion": "apps/v1", **stored, "metadata": metadata}
