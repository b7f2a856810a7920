"""Few services of a fleet change at once, each gets its turn, and a restart changes nothing about it."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.control.cluster_model import Body
from tests.control.desk import SCALED, START
from tests.control.loop_bed import Bed, bed, queueing, service_body, slow_beyond_64
from tests.patience import PATIENCE

from vllm_autotuner.api.service import InvalidReason, InvalidService, ObjectMeta, VLLMService, parse_service
from vllm_autotuner.api.status import ChangeState, Outcome, parse_status
from vllm_autotuner.change.machine import PAUSED
from vllm_autotuner.cluster.errors import Conflict
from vllm_autotuner.control.decide.fleet_budget import Fleet, fleet_of, part_of
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.guardrails.concurrency import Asking, Running, Share

NAMES = [f"s{number}" for number in range(4)]


def at_once(found: Bed, **shares: Share) -> Bed:
    """With these limits instead of the defaults, from now on and after each restart."""
    found.context = replace(found.context, settings=replace(found.context.settings, **cast(Any, shares)))
    found.loop = FleetLoop(found.context, sources=cast(Sources, found.api))
    return found


def active(found: Bed) -> list[str]:
    """Who tries something now; what only bakes keeps nobody waiting."""
    changes = {name: found.change(name) for name in NAMES}
    return [name for name, change in changes.items() if change is not None and change.state is not ChangeState.BAKING]


async def test_by_default_one_of_few_services_changes_at_a_time_and_all_get_their_turn() -> None:
    found = bed(*NAMES, load=queueing)
    order: list[str] = []
    for _ in range(200):
        await found.tick()
        now = active(found)
        assert len(now) <= 1
        order += [name for name in now if name not in order]
        if all(found.status(name).history for name in NAMES):
            break
    assert sorted(order) == NAMES
    for name in NAMES:
        assert [entry.outcome for entry in found.status(name).history] == [Outcome.SUCCEEDED]
        assert found.status(name).queued_since is None


async def test_who_waits_says_so_keeps_his_place_and_writes_nothing_more() -> None:
    found = bed(*NAMES, load=queueing)
    while not active(found):
        await found.tick()
    (first,) = active(found)
    waiting = [name for name in NAMES if name != first]
    await found.ticks(2)
    places = {name: found.status(name).queued_since for name in waiting}
    assert None not in places.values()
    for name in waiting:
        recommendation = found.status(name).recommendation
        assert recommendation is not None
        assert "Not applied: queued: the fleet allows at most 1 concurrent change(s)" in recommendation.reason
    versions = {name: found.api.objects["VLLMService", name]["metadata"]["resourceVersion"] for name in waiting}
    await found.ticks(2)
    assert active(found) == [first]
    assert {name: found.status(name).queued_since for name in waiting} == places
    after = {name: found.api.objects["VLLMService", name]["metadata"]["resourceVersion"] for name in waiting}
    assert after == versions


async def test_a_change_that_begins_slowly_holds_up_no_decision_and_counts_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 1,000 services 50 may begin at once: where each write takes seconds, one after the other takes minutes."""
    found = at_once(bed(*NAMES, load=queueing), changes_at_once=Share(number=2), extra_gpus=Share(percent=100))
    begun, goes_on, write = list[str](), asyncio.Event(), found.api.write_status

    async def slow_write(namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        if "activeChange" in status and not goes_on.is_set():
            begun.append(name)
            await goes_on.wait()
        return await write(namespace, name, status, resource_version=resource_version)

    async def time_passes(*, within: float) -> None:
        await settled(within=0.01)
        found.api.now += timedelta(seconds=within)

    settled = found.loop._effects.settled
    monkeypatch.setattr(found.loop._effects, "settled", time_passes)
    monkeypatch.setattr(found.api, "write_status", slow_write)
    for _ in range(12):
        async with asyncio.timeout(PATIENCE):
            await found.tick()
    assert len(begun) == 2
    assert all(found.status(name).queued_since for name in NAMES if name not in begun)
    goes_on.set()
    await found.tick()
    assert sorted(active(found)) == sorted(begun)


async def test_another_leader_finds_the_same_queue() -> None:
    async def order(*, restarts: bool) -> list[str]:
        found, begun = bed(*NAMES, load=queueing), list[str]()
        for tick in range(150):
            if restarts and tick % 20 == 19:
                found.restart()
            await found.tick()
            if len(begun) == len(NAMES):
                break
            assert len(active(found)) <= 1
            begun += [name for name in active(found) if begun[-1:] != [name]]
        return begun

    assert await order(restarts=True) == await order(restarts=False)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"changes_at_once": Share(number=2), "extra_gpus": Share(percent=50)}, 2),
        ({"changes_at_once": Share(percent=100), "extra_gpus": Share(number=3)}, 3),
        ({"changes_at_once": Share(percent=100), "extra_gpus": Share(percent=100)}, 4),
    ],
)
async def test_the_limits_are_the_administrators(limits: dict[str, Share], most: int) -> None:
    found = at_once(bed(*NAMES, load=queueing), **limits)
    together = 0
    for _ in range(12):
        await found.tick()
        together = max(together, len(active(found)))
    assert together == most


@pytest.mark.fault("T42")
async def test_one_service_whose_changes_always_fail_starves_no_other() -> None:
    """It fails, asks again as soon as it may, and stands behind all who have waited."""
    found = bed(*NAMES, load=slow_beyond_64, spec={"tuning.cooldown": "1s", "tuning.budget": {"changesPerDay": 48}})
    begun: list[tuple[str, str]] = []
    for _ in range(200):
        await found.tick()
        for name in active(found):
            change = found.change(name)
            assert change is not None
            if (name, change.id) not in begun:
                begun.append((name, change.id))
        if len(begun) > len(NAMES):
            break
    names = [name for name, _ in begun]
    assert len(names) == len(NAMES) + 1, "nobody asked again"
    assert set(names[:-1]) == set(NAMES), f"somebody had a second turn before all had a first: {names}"


async def test_one_paused_change_keeps_no_other_service_waiting() -> None:
    """A person may take a day; when he lets it go on, it does so at once."""
    found = bed(*NAMES, load=queueing)
    while not active(found):
        await found.tick()
    (paused,) = active(found)
    found.api.edit(paused, lambda body: body["spec"].update(paused=True))
    others = [name for name in NAMES if name != paused]
    for _ in range(150):
        await found.tick()
        assert len(set(active(found)) - {paused}) <= 1
        if all(found.status(name).history for name in others):
            break
    assert [found.status(name).history[0].outcome for name in others] == [Outcome.SUCCEEDED] * 3
    change = found.change(paused)
    assert change is not None
    assert change.state is ChangeState.HELD
    found.api.edit(paused, lambda body: body["spec"].update(paused=False))
    await found.ticks(30)
    assert [entry.outcome for entry in found.status(paused).history] == [Outcome.SUCCEEDED]


async def test_replicas_do_not_wait_for_a_turn() -> None:
    spec = {**SCALED, "tuning.maxNumSeqs": {"min": 64, "max": 64}}
    found = bed(*NAMES, load=queueing, spec=spec)
    await found.ticks(12)
    assert all(found.deployment(name)["spec"]["replicas"] > 1 for name in NAMES)


def service(**status: Any) -> VLLMService:
    body = {**service_body(), "status": status}
    found = parse_service({**body, "metadata": {**body["metadata"], "resourceVersion": "1"}})
    assert isinstance(found, VLLMService)
    return found


CHANGE = {
    "id": "c1",
    "generation": 1,
    "knob": "tensorParallelSize",
    "toValue": "4",
    "from": {"tensorParallelSize": 2},
    "to": {"tensorParallelSize": 4},
    "state": "Analyzing",
}


def fleet_now(*services: VLLMService | InvalidService) -> Fleet:
    """Every service may change at once, with as many GPUs as serve: the limits show what was counted."""
    everything = Share(percent=100)
    parts = [part_of(each, now=START) for each in services]
    return fleet_of(parts, changes_at_once=everything, extra_gpus=everything)


def test_a_change_counts_with_the_gpus_of_the_pods_that_it_adds() -> None:
    fleet = fleet_now(service(activeChange=CHANGE, replicas=3), service(replicas=2), service())
    assert (fleet.running, fleet.most_changes, fleet.most_gpus) == ((Running(gpus=4),), 3, 5)
    compared = CHANGE | {"strategy": "Canary", "canaryRef": {"name": "a"}, "baselineRef": {"name": "b"}}
    assert fleet_now(service(activeChange=compared)).running == (Running(gpus=6),)


@pytest.mark.parametrize(
    ("hours", "reason", "counted"),
    [
        pytest.param(23, "", True, id="within a day"),
        pytest.param(25, "", False, id="no turn is held for longer"),
        pytest.param(25, PAUSED, True, id="its GPUs are in use while a user has paused it"),
    ],
)
def test_a_turn_is_held_for_a_day_at_most(hours: int, reason: str, counted: bool) -> None:
    began = (START - timedelta(hours=hours)).isoformat()
    state = {"state": "Held", "stateReason": reason} if reason else {}
    assert bool(fleet_now(service(activeChange=CHANGE | state | {"startedAt": began})).running) is counted


def test_a_change_of_an_object_that_became_unreadable_counts() -> None:
    metadata = ObjectMeta(namespace="prod", name="chat", uid="u", generation=1, resource_version="1")
    unreadable = InvalidService(
        metadata=metadata, reason=InvalidReason.SPEC, message="x", status=parse_status({"activeChange": CHANGE})
    )
    assert len(fleet_now(unreadable).running) == 1


@pytest.mark.parametrize(
    ("state", "why", "parked"),
    [("Held", "paused", True), ("Held", "metrics are missing", False), ("Analyzing", "paused", False)],
)
def test_only_a_person_may_take_so_long_that_others_do_not_wait(state: str, why: str, parked: bool) -> None:
    held = CHANGE | {"state": state, "stateReason": why}
    assert fleet_now(service(activeChange=held)).running == (Running(gpus=4, parked=parked),)


@pytest.mark.parametrize(
    ("state", "minutes", "counts"), [("RollingBack", 1, 0), ("Held", 1, 1), ("Held", 11, 0), ("Analyzing", 11, 0)]
)
def test_an_overdue_change_waits_for_a_user_and_no_service_waits_for_it(state: str, minutes: int, counts: int) -> None:
    late = CHANGE | {"state": state, "deadline": (START - timedelta(minutes=minutes)).isoformat()}
    assert len(fleet_now(service(activeChange=late)).running) == counts


@pytest.mark.parametrize(
    ("outcome", "minutes", "first"),
    [
        pytest.param("RolledBack", 5, "calm", id="a failed change puts its namespace behind those who wait"),
        pytest.param("Superseded", 5, "calm", id="so does one that its owner cut short"),
        pytest.param("Succeeded", 5, "noisy", id="one that was kept costs no place"),
        pytest.param("RolledBack", 90, "noisy", id="one that ended before both asked is over"),
        pytest.param("RolledBack", -60, "noisy", id="a time to come in an edited status is no failure"),
    ],
)
def test_the_last_failure_of_a_namespace_moves_all_its_services_back(outcome: str, minutes: int, first: str) -> None:
    entry = {
        "id": "c0",
        "knob": "maxNumSeqs",
        "outcome": outcome,
        "finishedAt": (START - timedelta(minutes=minutes)).isoformat(),
    }
    failed = service(history=[entry])
    namespace = failed.metadata.namespace
    fleet = fleet_of([part_of(failed, now=START)], changes_at_once=Share(number=1), extra_gpus=Share(number=9))
    asking = [
        Asking(key="noisy", since=START - timedelta(minutes=20), namespace=namespace),
        Asking(key="calm", since=START - timedelta(minutes=10), namespace="another"),
    ]
    assert fleet.begin(asking) == {first}


async def test_a_conflict_at_its_turn_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes the object between the look and the status write: decided again, and the change begins."""
    found = bed(*NAMES, load=queueing)
    while not active(found):
        await found.tick()
    (first,) = active(found)
    write, met = found.api.write_status, list[str]()

    async def contested(namespace: str, name: str, status: dict[str, Any], *, resource_version: str) -> dict[str, Any]:
        if name != first and "activeChange" in status and not met:
            met.append(name)
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        return await write(namespace, name, status, resource_version=resource_version)

    monkeypatch.setattr(found.api, "write_status", contested)
    for _ in range(200):
        await found.tick()
        if met:
            break
    assert met
    assert active(found) == met
