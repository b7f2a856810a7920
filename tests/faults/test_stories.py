"""People, pods, clocks and other versions get in the way of one change: stories of one service, tick by tick."""

import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.builders import engine, latency, observation
from tests.control.desk import CAPPED, HELPED, Desk, desk, reach
from tests.invariants.moment import Seen
from tests.invariants.witness import Witness
from typing_extensions import override

from vllm_autotuner.api.annotations import PAUSE
from vllm_autotuner.api.conditions import ConditionType
from vllm_autotuner.api.service import InvalidService
from vllm_autotuner.api.status import CircuitState, Outcome

UNDER_TEST = ("Provisioning", "Verifying", "WarmingUp", "Analyzing")
EVERY_STATE = (*UNDER_TEST, "Held", "RollingBack")
NO_MEMORY = "InsufficientGPUMemory: No available memory for the cache blocks"
TWO_HOURS = timedelta(hours=2)


def state_of(found: Desk) -> str | None:
    change = found.read.active_change
    return change.state.value if change is not None else None


# The candidate does not start


@pytest.mark.fault("T18")
def test_what_did_not_fit_is_not_tried_again_nor_anything_larger() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.tick(CAPPED, rollout=found.rollout(settled=False, ready=1, crashed=NO_MEMORY))
    found.until(None, CAPPED)
    assert NO_MEMORY in found.read.history[0].reason
    chance, failed_at = random.Random(7), found.now
    while found.now < failed_at + timedelta(hours=23):
        found.now += timedelta(minutes=30)
        waiting = chance.choice([20.0, 100.0, 500.0, 2000.0])
        found.tick(observation(engine(running=64.0, waiting=waiting, kv=0.32), ttft=latency(6.0)))
        seats = found.seats
        assert seats is not None
        assert seats < 128


# Pods die


@pytest.mark.fault("T22")
@pytest.mark.parametrize("state", ["WarmingUp", "Analyzing"])
def test_pods_that_are_lost_during_a_trial_come_back_and_the_trial_proves_nothing_meanwhile(state: str) -> None:
    found = reach(state, replicas=3)
    lost = found.rollout(settled=False, ready=1)
    partial = replace(HELPED, silent=("chat-1", "chat-2"), expected=3)
    for _ in range(16):
        found.tick(partial, rollout=lost)
        assert found.replicas == 3
    kept = [entry for entry in found.read.history if entry.outcome is Outcome.SUCCEEDED]
    assert not kept, "judged on one pod of three"
    found.until(None, HELPED)


@pytest.mark.fault("T23")
@pytest.mark.parametrize(
    "sick",
    [
        pytest.param({"settled": False, "ready": 0}, id="no pod is ready"),
        pytest.param({"settled": False, "ready": 1, "crashed": "Error: exit code 1"}, id="one crashes"),
        pytest.param({"settled": False, "rolled_out": False}, id="a rollout is under way"),
        pytest.param({"settled": False, "unschedulable": "0/3 nodes"}, id="one finds no node"),
        pytest.param({"config_hash": None, "settled": False, "rolled_out": False, "ready": 0}, id="no Deployment"),
    ],
)
def test_on_a_service_that_is_not_healthy_nothing_begins(sick: dict[str, Any]) -> None:
    found = desk(replicas=2)
    for _ in range(20):
        found.tick(CAPPED, rollout=found.rollout(**sick))
    assert state_of(found) is None
    found.ticks(3, CAPPED)
    assert state_of(found) is not None, "healthy again, it begins"


@pytest.mark.fault("T40")
def test_whoever_kills_every_candidate_that_is_ready_sees_two_of_them_in_two_weeks() -> None:
    found = desk(tuning__cooldown="10m")
    begun: list[str] = []
    began = found.now
    while found.now < began + timedelta(days=13):
        # Once nothing is tried any more, a day is like the other.
        found.now += timedelta(minutes=11) if len(begun) < 2 else timedelta(hours=4)
        change = found.read.active_change
        if change is not None and state_of(found) in ("Verifying", "WarmingUp", "Analyzing"):
            killed = found.rollout(settled=False, ready=0, crashed="Error: killed (exit code 137)")
            found.tick(HELPED, rollout=killed)
        else:
            found.tick(CAPPED if change is None else HELPED)
        change = found.read.active_change
        if change is not None and change.id not in begun:
            begun.append(change.id)
    assert len(begun) == 2
    assert found.read.circuit is not None
    assert found.read.circuit.state is CircuitState.OPEN
    assert found.is_true(ConditionType.CIRCUIT_OPEN)


# People


@pytest.mark.fault("T27")
@pytest.mark.parametrize("value", ["true", "oui", ""])
@pytest.mark.parametrize("state", EVERY_STATE)
def test_a_pause_stops_progress_and_nothing_else(state: str, value: str) -> None:
    found = reach(state)
    found.annotations[PAUSE] = value
    found.ticks(12, HELPED)
    assert not [entry for entry in found.read.history if entry.outcome is Outcome.SUCCEEDED]
    if state == "RollingBack":
        assert (state_of(found), found.seats) == (None, 64)
        return
    assert state_of(found) in ("Provisioning", "Verifying", "Held")
    found.tick(HELPED, rollout=found.rollout(settled=False, ready=0, crashed="Error: exit code 137"))
    assert (state_of(found), found.seats) == ("RollingBack", 64), "a pause keeps nobody from undoing harm"
    found.until(None, HELPED)


# Clocks


@pytest.mark.fault("T33")
@pytest.mark.parametrize("state", EVERY_STATE)
def test_a_clock_that_jumps_ahead_lets_one_deadline_act_and_blames_no_value(state: str) -> None:
    found = reach(state)
    found.now += TWO_HOURS
    before = len(found.events)
    found.tick(HELPED)
    assert len(found.events) - before <= 1
    found.until(None, HELPED)
    (entry,) = found.read.history
    if state != "RollingBack":
        assert (found.read.circuit, entry.outcome in (Outcome.SUCCEEDED, Outcome.ROLLED_BACK)) == (None, True)


@pytest.mark.fault("T33")
@pytest.mark.parametrize("state", EVERY_STATE)
def test_a_clock_that_jumps_back_makes_nothing_late_and_nothing_wait_for_ever(state: str) -> None:
    found = reach(state)
    found.now -= TWO_HOURS
    found.tick(HELPED)
    assert (state_of(found) == "RollingBack") <= (state == "RollingBack")
    # What stood in the status is now in the future: at most until then, and as long as it takes.
    found.until(None, HELPED, at_most=2 * 60 * 4 + 60)
    (entry,) = found.read.history
    assert entry.outcome is (Outcome.ROLLED_BACK if state == "RollingBack" else Outcome.SUCCEEDED)
    for memory in found.read.failure_memory:
        assert memory.retry_after is not None
        assert memory.last_failure_time is not None
        assert memory.retry_after > memory.last_failure_time


# Another version's status


def leaves(state: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every field of a status, of those within others too."""
    found = []
    for name, value in state.items():
        found.append((*path, name))
        if isinstance(value, dict):
            found += leaves(value, (*path, name))
    return found


def without(status: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(status))
    node = copied
    for name in path[:-1]:
        node = node[name]
    del node[path[-1]]
    return copied


@pytest.mark.fault("T34")
@pytest.mark.parametrize("state", ["Provisioning", "Analyzing", "Held", "RollingBack"])
def test_whatever_field_a_status_lacks_it_is_told_or_the_change_comes_to_an_end(state: str) -> None:
    reached = reach(state)
    for path in leaves({"activeChange": reached.status["activeChange"]}):
        if path[-1] == "maxNumSeqs":
            continue  # absent is a value: the engine's own
        found = after(reached, without(reached.status, path))
        if isinstance(found.parsed, InvalidService):
            continue  # told on the object, and left alone
        for _ in range(140):
            found.tick(HELPED)
            assert found.seats in (64, 128)
            if state_of(found) is None:
                break
        assert state_of(found) is None, f"without {'.'.join(path)} it never ends"
        assert len(found.read.history) <= 1


@pytest.mark.fault("T34")
@pytest.mark.parametrize("state", ["Promoted2", "", "provisioning", None, 7])
def test_an_unknown_state_is_reported_and_never_guessed(state: object) -> None:
    found = reach("Analyzing")
    found.status = {**found.status, "activeChange": {**found.status["activeChange"], "state": state}}
    assert isinstance(found.parsed, InvalidService)
    assert "activeChange.state" in found.parsed.message


@pytest.mark.fault("T34")
def test_fields_of_a_newer_version_are_no_obstacle() -> None:
    found = reach("Analyzing")
    change = {**found.status["activeChange"], "newer": {"a": [1]}}
    found.status = {**found.status, "activeChange": change, "alsoNewer": "b"}
    found.until(None, HELPED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


class NoWitness(Witness):
    """The invariants are about what the operator writes, and not about what somebody took out of it."""

    @override
    def look(self, seen: Seen) -> list[str]:
        return []


def after(found: Desk, status: dict[str, Any]) -> Desk:
    """Another operator, which finds this status."""
    return Desk(
        spec=found.spec,
        generation=found.generation,
        status=status,
        now=found.now,
        watching_since=found.now - timedelta(hours=1),
        witness=NoWitness(),
    )
