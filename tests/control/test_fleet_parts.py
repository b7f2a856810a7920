"""The fleet in parts: each service once, a namespace in one piece, running changes first."""

from typing import Any

import pytest
from tests.control.loop_bed import service_body

from vllm_autotuner.control.read import fleet_parts
from vllm_autotuner.control.read.fleet_parts import parts_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry, service_entry


class Fleet:
    """As a registry's snapshot, with two engines for each service."""

    def __init__(self, *entries: ServiceEntry) -> None:
        self.services = {Key(entry.namespace, entry.name): entry for entry in entries}

    def pods_of(self, key: Key) -> tuple[str, ...]:
        return (f"{key.name}-a", f"{key.name}-b")


def entry(namespace: str, name: str, **more: Any) -> ServiceEntry:
    body = service_body(name, **more)
    return service_entry({**body, "metadata": {**body["metadata"], "namespace": namespace, "resourceVersion": "1"}})


def parts(*entries: ServiceEntry) -> list[list[str]]:
    fleet: Any = Fleet(*entries)
    snapshot: RegistrySnapshot = fleet
    return [["/".join(key) for key in part] for part in parts_of(snapshot)]


def test_a_small_fleet_is_one_part() -> None:
    assert parts(entry("a", "x"), entry("b", "y")) == [["a/x", "b/y"]]
    assert parts() == [[]]


def test_a_large_one_is_divided_between_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_parts, "ENGINES_AT_ONCE", 4)
    found = parts(*(entry(namespace, name) for name in "xyz" for namespace in "abc"))
    assert found == [["a/x", "a/y", "a/z"], ["b/x", "b/y", "b/z"], ["c/x", "c/y", "c/z"]]
