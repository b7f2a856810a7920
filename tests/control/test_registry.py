"""The registry under every order of events, and what it forgets."""

from typing import Any

import pytest
from tests.control.objects import deployment_object, pod_object, service_object

from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.cluster.bounded_json import OBJECT_TOO_LARGE
from vllm_autotuner.control.read import registry as registry_module
from vllm_autotuner.control.read.registry import Key, Registry, Shelf
from vllm_autotuner.control.read.views import ServiceEntry, deployment_view, service_entry
from vllm_autotuner.control.shard import WHOLE

CHAT = Key("prod", "chat")

SEEN, DELETED = False, True
Event = tuple[dict[str, Any], bool]


def shelf_after(*events: Event) -> Shelf[ServiceEntry]:
    shelf = Shelf(service_entry, has=WHOLE.has)
    for body, deleted in events:
        shelf.see(body, deleted=deleted)
    return shelf


def seen(version: str, *, uid: str = "u1") -> Event:
    return service_object(uid=uid, version=version), SEEN


def deleted(version: str, *, uid: str = "u1") -> Event:
    return service_object(uid=uid, version=version), DELETED


@pytest.mark.fault("T06")
@pytest.mark.parametrize(
    ("events", "left"),
    [
        pytest.param([seen("10")], ("u1", "10"), id="a new object is kept"),
        pytest.param([seen("10"), seen("11")], ("u1", "11"), id="a newer version replaces it"),
        pytest.param([seen("11"), seen("10")], ("u1", "11"), id="an older version arriving late changes nothing"),
        pytest.param([seen("9"), seen("10")], ("u1", "10"), id="versions are compared as numbers, not as text"),
        pytest.param([seen("10"), deleted("12")], None, id="a deletion removes it"),
        pytest.param([seen("10"), deleted("12"), seen("11")], None, id="a late answer does not bring it back"),
        pytest.param([deleted("12"), seen("11")], None, id="a deletion that overtook the object stands"),
        pytest.param(
            [seen("10"), deleted("12"), seen("13")], ("u1", "13"), id="an object that left our selector comes back"
        ),
        pytest.param([seen("10"), seen("15", uid="u2")], ("u2", "15"), id="re-created, the deletion never seen"),
        pytest.param([seen("15", uid="u2"), seen("10")], ("u2", "15"), id="the predecessor arriving late"),
        pytest.param(
            [seen("10"), seen("15", uid="u2"), deleted("14")], ("u2", "15"), id="the predecessor's deletion in the end"
        ),
        pytest.param(
            [seen("10"), deleted("12"), seen("15", uid="u2"), seen("11")], ("u2", "15"), id="all four in bad order"
        ),
        pytest.param([seen("a"), seen("b")], ("u1", "b"), id="versions that are no numbers count by arrival"),
        pytest.param([seen(""), seen("")], ("u1", ""), id="no version at all counts by arrival"),
    ],
)
def test_the_newest_state_wins_whatever_the_order(events: list[Event], left: tuple[str, str] | None) -> None:
    kept = shelf_after(*events).get(CHAT)
    assert ((kept.uid, kept.resource_version) if kept is not None else None) == left


def test_see_says_whether_anything_changed() -> None:
    shelf = shelf_after()
    assert shelf.see(service_object(version="10"))
    assert not shelf.see(service_object(version="10")), "the same version again"
    assert not shelf.see(service_object(version="9"))
    assert shelf.see(service_object(version="11"), deleted=True)
    assert not shelf.see(service_object(version="11"), deleted=True)


def test_an_object_that_becomes_too_large_is_not_there_until_it_is_shorter() -> None:
    """Its last view would stand for ever, so that no change of it ended."""
    shelf = Shelf(deployment_view, has=lambda namespace: True)

    def deployment(version: str, spec: Any) -> dict[str, Any]:
        about = {"namespace": CHAT.namespace, "name": CHAT.name, "uid": "u1", "resourceVersion": version}
        return {"metadata": about, "spec": spec}

    assert shelf.see(deployment("1", {"replicas": 2}))
    assert shelf.see(deployment("2", OBJECT_TOO_LARGE))
    assert shelf.get(CHAT) is None
    assert not shelf.see(deployment("2", OBJECT_TOO_LARGE))
    assert shelf.see(deployment("3", {"replicas": 2}))


def test_eviction_is_for_one_object_not_for_a_name() -> None:
    shelf = shelf_after(seen("10"))
    assert not shelf.evict(CHAT, uid="u0")
    assert shelf.evict(CHAT, uid="u1")
    assert not shelf.evict(CHAT, uid="u1")
    assert not shelf.see(service_object(version="10")), "what was known at the eviction does not bring it back"
    assert shelf.see(service_object(version="16", uid="u2"))


@pytest.mark.parametrize(
    ("version", "alive", "namespace", "vanishes"),
    [
        pytest.param("10", [], None, True, id="older than the list and not in it"),
        pytest.param("20", [], None, True, id="as old as the list and not in it"),
        pytest.param("21", [], None, False, id="newer than the list: created since"),
        pytest.param("10", ["u1"], None, False, id="in the list"),
        pytest.param("10", [], "prod", True, id="its namespace was listed"),
        pytest.param("10", [], "test", False, id="another namespace was listed"),
    ],
)
def test_a_sweep_forgets_what_a_full_list_no_longer_has(
    version: str, alive: list[str], namespace: str | None, vanishes: bool
) -> None:
    shelf = shelf_after(seen(version))
    assert shelf.sweep(namespace=namespace, alive=alive, as_of="20") == ([CHAT] if vanishes else [])
    assert (shelf.get(CHAT) is None) is vanishes


def test_deletions_are_remembered_only_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "REMEMBERED_DELETIONS", 3)
    shelf = shelf_after(*(deleted(str(number), uid=f"u{number}") for number in range(100)))
    assert len(shelf._deleted) == 3


def test_an_unreadable_spec_is_kept_as_a_value() -> None:
    shelf = shelf_after((service_object(replicas="many"), SEEN))
    entry = shelf.get(CHAT)
    assert entry is not None
    assert isinstance(entry.service, InvalidService)
    assert "spec.replicas" in entry.service.message


def test_an_object_that_trips_the_reader_keeps_its_last_readable_state(caplog: pytest.LogCaptureFixture) -> None:
    def read(body: Any) -> ServiceEntry:
        if body["metadata"]["resourceVersion"] == "11":
            raise RuntimeError("a bug in the reader")
        return service_entry(body)

    shelf = Shelf(read, has=WHOLE.has)
    shelf.see(service_object(version="10"))
    assert not shelf.see(service_object(version="11"))
    assert "failed to parse object" in caplog.text
    kept = shelf.get(CHAT)
    assert kept is not None
    assert kept.resource_version == "10"
    assert shelf.see(service_object(version="12"))


def test_managed_fields_are_not_kept_in_memory() -> None:
    body = service_object()
    body["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    entry = shelf_after((body, SEEN)).get(CHAT)
    assert entry is not None
    assert "managedFields" not in entry.body["metadata"]
    assert "managedFields" in body["metadata"], "the event itself belongs to somebody else"


def filled() -> Registry:
    registry = Registry()
    registry.services.see(service_object())
    for name, uid in (("chat", "d1"), ("chat-canary", "d2")):
        registry.deployments.see(deployment_object(name, uid=uid))
    registry.deployments.see(deployment_object("search", uid="d3", service="search"))
    for name, uid in (("chat-b", "p1"), ("chat-a", "p2")):
        registry.pods.see(pod_object(name, uid=uid))
    return registry


def test_a_snapshot_groups_children_by_their_service() -> None:
    snapshot = filled().snapshot()
    assert isinstance(snapshot.services[CHAT].service, VLLMService)
    assert [each.name for each in snapshot.deployments_of(CHAT)] == ["chat", "chat-canary"]
    assert [each.name for each in snapshot.pods_of(CHAT)] == ["chat-a", "chat-b"]
    assert [each.name for each in snapshot.deployments_of(Key("prod", "search"))] == ["search"]
    assert snapshot.deployments_of(Key("test", "chat")) == (), "the same name in another namespace"


def test_a_snapshot_does_not_change_any_more() -> None:
    registry = filled()
    snapshot = registry.snapshot()
    registry.services.see(service_object(version="99"), deleted=True)
    registry.pods.see(pod_object("chat-c", uid="p9"))
    assert CHAT in snapshot.services
    assert len(snapshot.pods_of(CHAT)) == 2
    with pytest.raises(TypeError):
        snapshot.services[CHAT] = None  # type: ignore[index]
