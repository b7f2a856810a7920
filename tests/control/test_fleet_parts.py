"""The fleet in parts: each service once, a namespace in one piece, running changes first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, Final

import pytest
from tests.change.worlds import change as begun
from tests.control.cluster_model import ApiServer
from tests.control.loop_bed import bed, service_body

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.control.decide import fleet_budget
from vllm_autotuner.control.decide.fleet_budget import Part, fleet_of
from vllm_autotuner.control.read import fleet_parts
from vllm_autotuner.control.read.fleet_parts import parts_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry, service_entry
from vllm_autotuner.control.run import fleet_loop
from vllm_autotuner.observation.snapshot import FleetSnapshot


class Fleet:
    """As a registry's snapshot, with two engines for each service."""

    def __init__(self, *entries: ServiceEntry) -> None:
        self.services = {Key(entry.namespace, entry.name): entry for entry in entries}

    def pods_of(self, key: Key) -> tuple[str, ...]:
        return (f"{key.name}-a", f"{key.name}-b")


def entry(namespace: str, name: str, *, status: Mapping[str, Any] | None = None) -> ServiceEntry:
    body = service_body(name)
    metadata = {"namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
    return service_entry({**body, "metadata": {**body["metadata"], **metadata}, "status": status or {}})


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


CHANGING: Final = to_wire(begun(ChangeState.ANALYZING))
STATUSES: Final[Mapping[str, Any]] = {"a": {}, "b": {}, "c": {"activeChange": CHANGING}, "d": {}}


def test_running_changes_come_first_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = [entry(namespace, "x") for namespace in "abd"]
    changing = entry("c", "x", status={"activeChange": CHANGING})
    assert parts(*calm, changing) == [["c/x", "a/x", "b/x", "d/x"]]
    monkeypatch.setattr(fleet_parts, "ENGINES_AT_ONCE", 4)
    assert parts(*calm, changing) == [["c/x"], ["a/x", "b/x"], ["d/x"]]


def test_what_is_behind_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_parts, "ENGINES_AT_ONCE", 4)
    fleet: Any = Fleet(*(entry(namespace, "x", status=status) for namespace, status in STATUSES.items()))
    behind = {fleet.services[Key("d", "x")].uid: 1.0, fleet.services[Key("b", "x")].uid: 2.0}
    found = [["/".join(key) for key in part] for part in parts_of(fleet, behind=behind)]
    assert found == [["c/x"], ["d/x", "b/x"], ["a/x"]]


async def test_a_slow_source_is_asked_about_one_part_in_a_tick_and_the_next_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alone(fleet: RegistrySnapshot, *, behind: Mapping[str, float]) -> Iterator[Mapping[Key, ServiceEntry]]:
        ordered = sorted(fleet.services.items(), key=lambda item: behind.get(item[1].uid, inf))
        return ({key: found} for key, found in ordered)

    monkeypatch.setattr(fleet_loop, "parts_of", alone)
    found, looked, quick = bed(*"abcd"), list[str](), ApiServer.look

    async def slow(self: ApiServer, entries: Iterable[ServiceEntry], **more: Any) -> Mapping[str, FleetSnapshot]:
        entries = list(entries)
        looked.extend(each.name for each in entries)
        self.now += timedelta(seconds=20)
        return await quick(self, entries, **more)

    await found.tick()
    monkeypatch.setattr(ApiServer, "look", slow)
    for count in range(1, 5):
        await found.tick()
        assert len(looked) == count
    assert sorted(looked) == ["a", "b", "c", "d"]


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


def _in_parts_of(
    size: int, fleet: RegistrySnapshot, *, behind: Mapping[str, float]
) -> Iterator[Mapping[Key, ServiceEntry]]:
    assert not behind
    services = list(fleet.services.items())
    for first in range(0, len(services), size):
        yield dict(services[first : first + size])
