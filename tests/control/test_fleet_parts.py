"""The fleet in parts: each service once, a namespace in one piece, running changes first."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from tests.control.loop_bed import bed, service_body

from vllm_autotuner.control.decide import fleet_budget
from vllm_autotuner.control.decide.fleet_budget import Part, fleet_of
from vllm_autotuner.control.read import fleet_parts
from vllm_autotuner.control.read.fleet_parts import parts_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry, service_entry
from vllm_autotuner.control.run import fleet_loop


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


async def test_the_fleet_is_summed_up_as_often_however_many_parts_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []

    def counted(parts: Sequence[Part], **limits: Any) -> fleet_budget.Fleet:
        summed.append(len(parts))
        return fleet_of(parts, **limits)

    async def in_a_tick(size: int) -> list[int]:
        monkeypatch.setattr(fleet_loop, "parts_of", partial(_in_parts_of, size))
        found = bed(*"abcdef")
        await found.tick()
        summed.clear()
        await found.tick()
        return list(summed)

    monkeypatch.setattr(fleet_loop, "fleet_of", counted)
    assert await in_a_tick(1) == await in_a_tick(6) != []


def _in_parts_of(size: int, fleet: RegistrySnapshot) -> Iterator[Mapping[Key, ServiceEntry]]:
    services = list(fleet.services.items())
    for first in range(0, len(services), size):
        yield dict(services[first : first + size])
