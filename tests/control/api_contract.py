"""What the API server refuses and what it leaves alone, as requests that the stand-in and the real one are both asked.

`tests/control/test_api_contract.py` asks the stand-in of the tests (`cluster_model.ApiServer`), and
`e2e/test_api_contract.py` the real one with the rights of the chart. A stand-in that accepts what is refused there
hides a defect from every test.
Must not: know which of the two it talks to.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pytest
from tests.api.cases import SMALLEST, Case, changed

from vllm_autotuner.api.scale_ins import SCALE_INS_LENGTH
from vllm_autotuner.api.status import HISTORY_LENGTH
from vllm_autotuner.cluster import adapter
from vllm_autotuner.cluster.adapter import Cluster, Page
from vllm_autotuner.cluster.errors import TOO_LARGE, ClusterError, Conflict, NotFound, Refused, Unavailable
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.cluster.kinds import DEPLOYMENT, VLLM_SERVICE, Kind
from vllm_autotuner.workload.labels import CONFIG_HASH, LEASE_EPOCH, MANAGED_BY, OPERATOR, SERVICE

__all__ = ["REQUESTS", "STATUSES", "Request", "StatusCase", "World", "is_answered", "is_judged"]

Body = dict[str, Any]
NOW: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECRET: Final = Kind(api_version="v1", kind="Secret", plural="secrets")


class World(Protocol):
    """An API server with one namespace for this test, the operator's access to it, and other people's."""

    namespace: str

    @property
    def cluster(self) -> Cluster:
        """The operator's access."""

    async def admit(self, body: Body) -> None:
        """A user asks whether a VLLMService would be taken (dry run)."""

    async def post(self, body: Body) -> Body:
        """A user creates a VLLMService."""

    async def put(self, body: Body, *, subresource: str = "") -> Body:
        """A user replaces a VLLMService, or its status."""

    async def remove(self, name: str) -> None:
        """A user deletes a VLLMService."""

    async def post_deployment(self, body: Body) -> None:
        """Somebody else creates a Deployment."""

    async def remove_deployment(self, name: str) -> None:
        """Somebody else deletes a Deployment."""

    async def relabel_deployment(self, name: str, team: str) -> None:
        """Somebody else sets a label."""

    def interrupted(self, act: Callable[[], Awaitable[object]]) -> Cluster:
        """The operator's access, under which `act` happens once between its look at a child and its write."""

    def throttled(self) -> AbstractAsyncContextManager[Cluster]:
        """The operator's access, while the API server takes no more requests of it."""


Act = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, or a few that belong together."""

    id: str
    act: Act


# Helpers


def service(world: World, name: str = "chat", **spec: Any) -> Body:
    return Case(id="", name=name).manifest(world.namespace) | {"spec": changed(SMALLEST, spec)}


async def created(world: World, name: str = "chat", **spec: Any) -> Body:
    return await world.post(service(world, name, **spec))


async def write(world: World, status: Body, *, of: Body) -> Body:
    metadata = of["metadata"]
    return await world.cluster.write_status(
        metadata["namespace"], metadata["name"], status, resource_version=metadata["resourceVersion"]
    )


def child(of: Body, *, name: str = "chat", image: str = "python:3", replicas: int = 0, foreign: bool = False) -> Body:
    """A Deployment of this service, or one with the same name of somebody else."""
    metadata: Body = {"name": name, "namespace": of["metadata"]["namespace"]}
    if not foreign:
        metadata |= {
            "labels": {MANAGED_BY: OPERATOR, SERVICE: of["metadata"]["name"]},
            "annotations": {CONFIG_HASH: "abc"},
            "ownerReferences": [
                {
                    "apiVersion": of["apiVersion"],
                    "kind": of["kind"],
                    "name": of["metadata"]["name"],
                    "uid": of["metadata"]["uid"],
                    "controller": True,
                }
            ],
        }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "vllm", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def live(world: World, name: str = "chat") -> Body:
    return await world.cluster.read(DEPLOYMENT, namespace=world.namespace, name=name)


def image_of(deployment: Body) -> str:
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def about(of: Body) -> tuple[str, str, int]:
    return of["metadata"]["name"], of["metadata"]["uid"], 7


async def is_refused(
    answer: Awaitable[object], error: type[ClusterError], status: int, *, says: str = ""
) -> ClusterError:
    with pytest.raises(error) as caught:
        await answer
    assert (type(caught.value), caught.value.status) == (error, status)
    assert says.lower() in str(caught.value).lower()
    return caught.value


# Every spec: the table of the models


async def is_judged(world: World, case: Case) -> None:
    """Put one object of the models' table to the API server as a user does."""
    manifest = case.manifest(world.namespace)
    if case.refused is None:
        await world.admit(manifest)
    else:
        await is_refused(world.admit(manifest), Refused, 422, says=case.refused)


# Statuses


@dataclass(frozen=True, kw_only=True)
class StatusCase:
    """One status. `refused`: the field that the refusal names; empty where it is accepted."""

    id: str
    status: Mapping[str, Any]
    refused: str = ""


CONDITION: Final = {
    "type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": "2026-11-23T00:00:00Z",
}  # fmt: skip
ENTRY: Final = {"id": "c1", "knob": "maxNumSeqs", "toValue": "8", "outcome": "Succeeded"}
CHANGE: Final = {
    "id": "c", "generation": 1, "knob": "maxNumSeqs", "toValue": "8", "state": "Analyzing", "from": {}, "to": {},
}  # fmt: skip

STATUSES: Final = (
    StatusCase(id="an empty status", status={}),
    StatusCase(id="as long as it may be", status={"history": [ENTRY] * HISTORY_LENGTH, "conditions": [CONDITION]}),
    StatusCase(id="a list that is too long", status={"history": [ENTRY] * (HISTORY_LENGTH + 1)}, refused="history"),
    StatusCase(
        id="another list that is too long",
        status={"scaleIns": [{"replicas": 1}] * (SCALE_INS_LENGTH + 1)},
        refused="scaleIns",
    ),
    StatusCase(id="a text for a number", status={"replicas": "3"}, refused="replicas"),
    StatusCase(id="a number for a text", status={"selector": 3}, refused="selector"),
    StatusCase(id="a fraction for a whole number", status={"replicas": 1.5}, refused="replicas"),
    StatusCase(id="a number for a list", status={"history": 3}, refused="history"),
    StatusCase(id="a list for an object", status={"effective": []}, refused="effective"),
    StatusCase(id="nothing for an object", status={"effective": None, "replicas": "3"}, refused="replicas"),
    StatusCase(id="an outcome that is none", status={"history": [{**ENTRY, "outcome": "Maybe"}]}, refused="outcome"),
    StatusCase(id="a state that is none", status={"activeChange": {**CHANGE, "state": "Odd"}}, refused="state"),
    StatusCase(id="a change without its value", status={"activeChange": {"id": "c"}}, refused="toValue"),
    StatusCase(id="a condition without a status", status={"conditions": [{"type": "Ready"}]}, refused="required"),
    StatusCase(id="a condition twice", status={"conditions": [CONDITION, CONDITION]}, refused="Duplicate value"),
    StatusCase(id="a date that is none", status={"cooldownUntil": "soon"}, refused="cooldownUntil"),
    StatusCase(id="a day without a time", status={"cooldownUntil": "2026-11-23"}, refused="cooldownUntil"),
    StatusCase(id="a time without a zone", status={"cooldownUntil": "2026-11-23T00:00:00"}, refused="cooldownUntil"),
    StatusCase(id="a time with a zone", status={"cooldownUntil": "2026-11-23T00:00:00+14:00"}),
    StatusCase(id="a time at the end of the calendar", status={"cooldownUntil": "9999-12-31T23:59:59Z"}),
    StatusCase(id="slots below one", status={"effective": {"maxNumSeqs": 0}}, refused="maxNumSeqs"),
    StatusCase(
        id="more slots than there can be", status={"effective": {"maxNumSeqs": 2**20 + 1}}, refused="maxNumSeqs"
    ),
    StatusCase(id="a rule of CEL", status={"effective": {"kvCacheDtype": "FP 8"}}, refused="such as auto or fp8"),
    StatusCase(
        id="a text longer than it may be", status={"effective": {"kvCacheDtype": "a" * 65}}, refused="kvCacheDtype"
    ),
)


async def is_answered(world: World, case: StatusCase) -> None:
    """Write one status as the operator does."""
    body = await created(world)
    if case.refused:
        await is_refused(write(world, dict(case.status), of=body), Refused, 422, says=case.refused)
        assert (await world.cluster.read_service(world.namespace, "chat")).get("status", {}) == {}
        return
    written = await write(world, dict(case.status), of=body)
    assert written["metadata"]["generation"] == body["metadata"]["generation"]


# Other requests


async def a_stale_status(world: World) -> None:
    body = await created(world)
    await write(world, {"replicas": 1}, of=body)
    await is_refused(write(world, {"replicas": 2}, of=body), Conflict, 409)
    assert (await world.cluster.read_service(world.namespace, "chat"))["status"] == {"replicas": 1}


async def a_status_of_a_successor(world: World) -> None:
    body = await created(world)
    await world.remove("chat")
    await is_refused(write(world, {"replicas": 1}, of=body), NotFound, 404)
    await created(world)
    await is_refused(write(world, {"replicas": 1}, of=body), Conflict, 409)


async def a_status_replaces_the_whole_and_nothing_else(world: World) -> None:
    body = await created(world)
    first = await write(world, {"replicas": 1, "readyReplicas": 1}, of=body)
    second = await write(world, {"replicas": 2}, of=first)
    assert second["status"] == {"replicas": 2}
    assert second["spec"] == body["spec"]
    assert second["metadata"]["generation"] == 1


async def the_same_status_again(world: World) -> None:
    first = await write(world, {"replicas": 1}, of=await created(world))
    again = await write(world, {"replicas": 1}, of=first)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def a_status_with_a_field_that_the_crd_does_not_know(world: World) -> None:
    written = await write(world, {"replicas": 1, "newer": {"a": 1}}, of=await created(world))
    assert written["status"] == {"replicas": 1}


async def a_spec_in_a_write_of_the_status(world: World) -> None:
    body = await created(world)
    edited = {**body, "spec": changed(body["spec"], {"replicas": 5}), "status": {"replicas": 1}}
    after = await world.put(edited, subresource="status")
    assert (after["spec"], after["status"]) == (body["spec"], {"replicas": 1})
    assert after["metadata"]["generation"] == 1


async def a_status_in_a_write_of_the_spec(world: World) -> None:
    first = await write(world, {"replicas": 1}, of=await created(world))
    after = await world.put({**first, "spec": changed(first["spec"], {"replicas": 5}), "status": {"replicas": 9}})
    assert (after["spec"]["replicas"], after["status"]) == (5, {"replicas": 1})
    assert after["metadata"]["generation"] == 2


async def a_status_in_a_create(world: World) -> None:
    assert "status" not in await world.post({**service(world), "status": {"replicas": 9}})


async def an_annotation_is_no_new_generation(world: World) -> None:
    body = await created(world)
    metadata = {**body["metadata"], "annotations": {"team": "chat"}, "generation": 9, "uid": body["metadata"]["uid"]}
    after = await world.put({**body, "metadata": metadata})
    assert (after["metadata"]["generation"], after["metadata"]["annotations"]) == (1, {"team": "chat"})
    assert after["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]


async def an_edit_of_nothing(world: World) -> None:
    body = await created(world)
    after = await world.put(body)
    assert after["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]


async def an_edit_of_what_has_changed_since(world: World) -> None:
    body = await created(world)
    await write(world, {"replicas": 1}, of=body)
    stale = {**body, "spec": changed(body["spec"], {"replicas": 5})}
    await is_refused(world.put(stale), Conflict, 409)


async def an_edit_of_no_version(world: World) -> None:
    body = await created(world)
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    edited = {**body, "metadata": metadata, "spec": changed(body["spec"], {"replicas": 5})}
    await is_refused(world.put(edited), Refused, 422, says="resourceVersion")


async def an_edit_that_breaks_a_rule(world: World) -> None:
    body = await created(world)
    broken = {**body, "spec": changed(body["spec"], {"scaling": {"maxReplicas": 2}})}
    await is_refused(world.put(broken), Refused, 422, says="set exactly one of replicas")


async def an_edit_with_another_type(world: World) -> None:
    body = await created(world)
    await is_refused(
        world.put({**body, "spec": changed(body["spec"], {"replicas": "5"})}), Refused, 422, says="integer"
    )


async def an_edit_of_nobodys(world: World) -> None:
    body = await created(world)
    await world.remove("chat")
    await is_refused(world.put({**body, "spec": changed(body["spec"], {"replicas": 5})}), NotFound, 404)


async def a_name_that_is_taken(world: World) -> None:
    await created(world)
    error = await is_refused(created(world), Conflict, 409)
    assert error.reason == "AlreadyExists"


async def what_is_not_there(world: World) -> None:
    cluster, namespace = world.cluster, world.namespace
    await is_refused(cluster.read_service(namespace, "none"), NotFound, 404)
    await is_refused(cluster.read(DEPLOYMENT, namespace=namespace, name="none"), NotFound, 404)
    await is_refused(cluster.write_status(namespace, "none", {}, resource_version="1"), NotFound, 404)
    await is_refused(cluster.scale(namespace, "none", 1, resource_version="1"), NotFound, 404)
    await created(world)
    await is_refused(cluster.read_service(f"{namespace}-2", "chat"), NotFound, 404)


async def what_the_account_may_not(world: World) -> None:
    error = await is_refused(
        world.cluster.read(SECRET, namespace=world.namespace, name="token"), Refused, 403, says="secrets"
    )
    assert error.reason == "Forbidden"


async def an_object_as_large_as_etcd_allows(world: World) -> None:
    body = await created(world, podTemplate={"spec": {"x": "y" * 1_500_000}})
    small = await write(world, {"replicas": 1}, of=body)
    large = write(world, {"diagnosis": {"class": "Healthy", "message": "m" * 120_000}}, of=small)
    error = await is_refused(large, Refused, 500, says="too large")
    assert error.reason == TOO_LARGE
    assert (await world.cluster.read_service(world.namespace, "chat"))["status"] == {"replicas": 1}


async def too_many_requests(world: World) -> None:
    body = await created(world)
    async with world.throttled() as cluster:
        with pytest.raises(Unavailable) as caught:
            await cluster.write_status(
                world.namespace, "chat", {"replicas": 1}, resource_version=body["metadata"]["resourceVersion"]
            )
        assert caught.value.status == 429
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 30
    assert "status" not in await world.cluster.read_service(world.namespace, "chat")


async def a_child_again(world: World) -> None:
    body = await created(world)
    first = await world.cluster.apply(child(body), epoch=7)
    assert first["metadata"]["annotations"][LEASE_EPOCH] == "7"
    again = await world.cluster.apply(child(body), epoch=7)
    # Its controller may write the status of the real one meanwhile.
    assert again["metadata"]["generation"] == first["metadata"]["generation"] == 1
    assert again["spec"] == first["spec"]
    after = await world.cluster.apply(child(body, image="python:4"), epoch=7)
    assert (after["metadata"]["generation"], after["metadata"]["uid"]) == (2, first["metadata"]["uid"])


async def a_child_of_another_owner(world: World) -> None:
    body = await created(world)
    await world.post_deployment(child(body, image="theirs:1", foreign=True))
    with pytest.raises(Refused) as caught:
        await world.cluster.apply(child(body), epoch=7)
    assert caught.value.reason == "NotOwned"
    assert image_of(await live(world)) == "theirs:1"


async def a_child_that_a_later_leader_wrote(world: World) -> None:
    body = await created(world)
    await world.cluster.apply(child(body), epoch=8)
    with pytest.raises(Conflict) as caught:
        await world.cluster.apply(child(body, image="old:1"), epoch=7)
    assert caught.value.reason == "NewerEpoch"
    assert image_of(await live(world)) == "python:3"


async def a_child_that_somebody_created_first(world: World) -> None:
    """Server-side apply without force: the fields are another manager's."""
    body = await created(world)
    cluster = world.interrupted(lambda: world.post_deployment(child(body, image="theirs:1", foreign=True)))
    with pytest.raises((Conflict, Refused)):
        await cluster.apply(child(body), epoch=7)
    assert image_of(await live(world)) == "theirs:1"


async def a_child_that_was_created_anew(world: World) -> None:
    """The uid in the precondition is the old one's."""
    body = await created(world)
    await world.cluster.apply(child(body), epoch=7)

    async def anew() -> None:
        await world.remove_deployment("chat")
        await world.post_deployment(child(body, image="theirs:1", foreign=True))

    with pytest.raises((Conflict, Refused)):
        await world.interrupted(anew).apply(child(body, image="python:4"), epoch=7)
    assert image_of(await live(world)) == "theirs:1"


async def a_child_that_was_written_in_between(world: World) -> None:
    """Looked at anew, and then written: the label stays."""
    body = await created(world)
    await world.cluster.apply(child(body), epoch=7)
    cluster = world.interrupted(lambda: world.relabel_deployment("chat", "search"))
    after = await cluster.apply(child(body, image="python:4"), epoch=7)
    assert (image_of(after), after["metadata"]["labels"]["team"]) == ("python:4", "search")


async def a_label_is_no_new_generation_of_a_child(world: World) -> None:
    body = await created(world)
    await world.cluster.apply(child(body), epoch=7)
    await world.relabel_deployment("chat", "search")
    assert (await live(world))["metadata"]["generation"] == 1


async def a_patch_of_what_has_changed(world: World) -> None:
    body = await created(world)
    seen = await world.cluster.apply(child(body), epoch=7)
    await world.relabel_deployment("chat", "search")
    patch = {"metadata": {"annotations": {CONFIG_HASH: "def"}}}
    name, uid, epoch = about(body)
    stale = world.cluster.patch_child(seen, patch, service_name=name, service_uid=uid, epoch=epoch)
    await is_refused(stale, Conflict, 409)
    await world.remove_deployment("chat")
    gone = world.cluster.patch_child(seen, patch, service_name=name, service_uid=uid, epoch=epoch)
    await is_refused(gone, NotFound, 404)


async def a_scale_of_what_has_changed(world: World) -> None:
    body = await created(world)
    seen = await world.cluster.apply(child(body), epoch=7)
    await world.relabel_deployment("chat", "search")
    stale = world.cluster.scale(world.namespace, "chat", 2, resource_version=seen["metadata"]["resourceVersion"])
    await is_refused(stale, Conflict, 409)
    with pytest.raises(Refused) as caught:
        await _scaled_below_nothing(world)
    assert caught.value.status == 422
    assert (await live(world))["spec"]["replicas"] == 0


async def _scaled_below_nothing(world: World) -> None:
    while True:
        version = (await live(world))["metadata"]["resourceVersion"]
        # The real one's controller writes the status of a young Deployment, and with it a new version.
        with suppress(Conflict):
            return await world.cluster.scale(world.namespace, "chat", -1, resource_version=version)


async def a_deletion(world: World) -> None:
    body = await created(world)
    await world.cluster.apply(child(body), epoch=7)
    name, uid, epoch = about(body)

    def delete(cluster: Cluster, *, service_uid: str = uid, epoch: int = epoch) -> Awaitable[None]:
        return cluster.delete(
            DEPLOYMENT,
            namespace=world.namespace,
            name="chat",
            service_name=name,
            service_uid=service_uid,
            epoch=epoch,
        )

    with pytest.raises(Conflict):
        await delete(world.cluster, service_uid="another")
    with pytest.raises(Conflict):
        await delete(world.cluster, epoch=6)

    async def anew() -> None:
        await world.remove_deployment("chat")
        await world.post_deployment(child(body, image="theirs:1", foreign=True))

    async def by_a_later_leader() -> None:
        await world.cluster.apply(child(body, image="newer:1"), epoch=epoch + 1)

    with pytest.raises(Conflict):
        await delete(world.interrupted(by_a_later_leader))
    assert image_of(await live(world)) == "newer:1"
    with pytest.raises(Refused):
        await delete(world.interrupted(anew), epoch=epoch + 1)
    assert image_of(await live(world)) == "theirs:1"
    with pytest.raises(Refused):
        await delete(world.cluster)
    await world.remove_deployment("chat")
    await delete(world.cluster)


async def an_event_twice(world: World) -> None:
    body = await created(world)
    happened = Event(reason="RolledBack", note="x" * 5000, action="Rollback", transition="c1")
    for _ in range(2):
        await world.cluster.post_event(body, happened, now=NOW)


async def an_event_that_is_none(world: World) -> None:
    body = await created(world)
    for event in (
        Event(reason="", note="n", action="Rollback", transition="c1"),
        Event(reason="R" * 129, note="n", action="Rollback", transition="c2"),
        Event(reason="RolledBack", note="n", action="", transition="c3"),
        Event(reason="RolledBack", note="n", action="A" * 129, transition="c4"),
    ):
        await is_refused(world.cluster.post_event(body, event, now=NOW), Refused, 422)


async def a_list_in_pages(world: World) -> None:
    for number in range(5):
        await created(world, f"chat-{number}")
    pages = [page async for page in _listed(world)]
    assert [len(page.objects) for page in pages] == [2, 2, 1]
    assert len({page.resource_version for page in pages}) == 1


async def _listed(world: World) -> AsyncIterator[Page]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adapter, "PAGE_SIZE", 2)
        async for page in world.cluster.pages(VLLM_SERVICE, namespace=world.namespace):
            yield page


REQUESTS: Final = tuple(
    Request(id=act.__name__.replace("_", " "), act=act)
    for act in (
        a_stale_status,
        a_status_of_a_successor,
        a_status_replaces_the_whole_and_nothing_else,
        the_same_status_again,
        a_status_with_a_field_that_the_crd_does_not_know,
        a_spec_in_a_write_of_the_status,
        a_status_in_a_write_of_the_spec,
        a_status_in_a_create,
        an_annotation_is_no_new_generation,
        an_edit_of_nothing,
        an_edit_of_what_has_changed_since,
        an_edit_of_no_version,
        an_edit_that_breaks_a_rule,
        an_edit_with_another_type,
        an_edit_of_nobodys,
        a_name_that_is_taken,
        what_is_not_there,
        what_the_account_may_not,
        an_object_as_large_as_etcd_allows,
        too_many_requests,
        a_child_again,
        a_child_of_another_owner,
        a_child_that_a_later_leader_wrote,
        a_child_that_somebody_created_first,
        a_child_that_was_created_anew,
        a_child_that_was_written_in_between,
        a_label_is_no_new_generation_of_a_child,
        a_patch_of_what_has_changed,
        a_scale_of_what_has_changed,
        a_deletion,
        an_event_twice,
        an_event_that_is_none,
        a_list_in_pages,
    )
)
"""Each with a name that says what is asked."""
