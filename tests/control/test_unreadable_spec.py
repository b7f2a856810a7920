"""A spec that cannot be read any more, with a change under way: it is brought to safety from what the status says.

The API server refuses most of it; one with an older CRD knows less, and so does an operator older than the CRD.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.control.adopting_bed import ARGS, adopting
from tests.control.cluster_model import Killed, Load
from tests.control.desk import TICK
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_adopted import TUNED, in_state

from vllm_autotuner.api.conditions import ConditionType, Reason, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.change.machine import UNREADABLE

ODD: dict[str, Callable[[dict[str, Any]], object]] = {
    "a number of replicas": lambda spec: spec.update(replicas=-1),
    "the engine": lambda spec: spec.update(engine={"image": 7}),
    "how it is tuned": lambda spec: spec["tuning"].update(cooldown="soon"),
    "a pod template without an end": lambda spec: spec.update(podTemplate=json.loads('{"a":' * 99 + "{}" + "}" * 99)),
}
SAFE_WITHIN = timedelta(minutes=20)
"""A trial is held for as long as metrics may be missing (15 min) and then taken back, in two or three looks more."""


def children(found: Bed) -> list[str]:
    return sorted(name for kind, name in found.api.objects if kind == "Deployment")


def ticks_of(span: timedelta) -> int:
    return int(span / TICK)


def unread(found: Bed, odd: str) -> None:
    def edit(body: dict[str, Any]) -> None:
        ODD[odd](body["spec"])

    found.api.older_crd = True
    found.api.edit("chat", edit)


def repaired(found: Bed) -> None:
    """As it was when the change began."""
    first = next(body for _, kind, body in found.api.versions if kind == "VLLMService")
    found.api.edit("chat", lambda body: body.update(spec=first["spec"]))


async def reach(state: ChangeState, *, replicas: int = 1, load: Callable[[int], Load] = queueing, **world: Any) -> Bed:
    found = bed(spec={"replicas": replicas, "tuning.strategy.bake": "30m"}, load=load, **world)
    for _ in range(60):
        await found.tick()
        change = found.change()
        if change is not None and change.state is state:
            return found
    raise AssertionError(f"never {state}")


def told(found: Bed, kind: ConditionType) -> str:
    condition = find_condition(found.status().conditions, kind)
    return "" if condition is None else condition.reason


@pytest.mark.fault("T39")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("state", [ChangeState.PROVISIONING, ChangeState.WARMING_UP, ChangeState.ANALYZING])
async def test_a_trial_is_taken_back_without_blame(state: ChangeState, replicas: int, odd: str) -> None:
    found = await reach(state, replicas=replicas)
    unread(found, odd)
    await found.ticks(2)
    assert told(found, ConditionType.STALLED) == Reason.INVALID_SPEC
    assert not found.status().history, "a slip of the keyboard may be mended"
    await found.ticks(ticks_of(SAFE_WITHIN))
    status = found.status()
    assert [entry.outcome for entry in status.history] == [Outcome.ROLLED_BACK]
    assert status.history[0].reason.startswith(UNREADABLE)
    assert (status.failure_memory, status.circuit) == ((), None)
    assert children(found) == ["chat"]
    assert (found.seats(), len(found.api.pods)) == (64, replicas)
    assert found.told.count("ChangeRolledBack") == 1
    assert told(found, ConditionType.TUNING_IN_PROGRESS) == ""
    rollouts = found.api.applies.total()
    repaired(found)
    await found.ticks(3)
    assert told(found, ConditionType.READY) == Reason.SERVING
    assert found.api.applies.total() == rollouts, "the workload was what the spec says, to the letter"


@pytest.mark.parametrize("odd", ODD)
async def test_a_spec_that_is_mended_soon_costs_the_change_nothing_but_time(odd: str) -> None:
    found = await reach(ChangeState.ANALYZING)
    unread(found, odd)
    await found.ticks(8)
    change = found.change()
    assert change is not None
    assert (change.state, change.state_reason) == (ChangeState.HELD, UNREADABLE)
    repaired(found)
    await found.ticks(ticks_of(timedelta(minutes=50)))
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]
    assert found.seats() == 128


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("odd", ODD)
async def test_what_was_found_good_and_only_baked_stays_with_little_confidence(odd: str, replicas: int) -> None:
    found = await reach(ChangeState.BAKING, replicas=replicas)
    unread(found, odd)
    await found.ticks(ticks_of(SAFE_WITHIN))
    status = found.status()
    assert [entry.outcome for entry in status.history] == [Outcome.SUCCEEDED]
    assert f"confidence Low: {UNREADABLE} during the bake" in status.history[0].reason
    repaired(found)
    await found.ticks(4)
    assert (found.seats(), children(found)) == (128, ["chat"])


@pytest.mark.parametrize("replicas", [1, 3])
async def test_an_engine_that_dies_is_undone_at_once_and_remembered(replicas: int) -> None:
    found = await reach(ChangeState.PROVISIONING, replicas=replicas, crashes=lambda seats: seats > 64)
    unread(found, "the engine")
    await found.ticks(8)
    status = found.status()
    assert [entry.outcome for entry in status.history] == [Outcome.ROLLED_BACK]
    assert [entry.candidate for entry in status.failure_memory] == ["maxNumSeqs=128"]
    assert (found.seats(), children(found)) == (64, ["chat"])


async def test_a_person_who_wants_it_undone_does_not_wait() -> None:
    found = await reach(ChangeState.ANALYZING)
    unread(found, "the engine")
    ask = {"vllm-autotuner.dev/rollback": "now"}
    found.api.edit("chat", lambda body: body["metadata"].setdefault("annotations", {}).update(ask))
    await found.tick()
    change = found.change()
    assert change is not None
    assert (change.state, change.state_reason) == (ChangeState.ROLLING_BACK, "a user requested a rollback")
    await found.ticks(5)
    assert (found.change(), found.seats()) == (None, 64)
    assert len(found.status().handled_requests) == 1


@pytest.mark.fault("T02")
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_every_request_of_it(replicas: int, when: str) -> None:
    async def end(kill: int | None) -> Bed:
        found = await reach(ChangeState.ANALYZING, replicas=replicas)
        begins = found.api.point
        unread(found, "the engine")
        found.api.kill = None if kill is None else (begins + kill, when)
        for _ in range(ticks_of(SAFE_WITHIN)):
            try:
                await found.tick()
            except Killed:
                found.api.kill = None
                found.restart()
        assert found.api.kill is None, f"request {kill} never came"
        return found

    undisturbed = await end(None)
    wanted = (dict(undisturbed.api.applies), dict(undisturbed.api.deletes), sorted(undisturbed.told))
    for kill in range(6 if replicas == 1 else 7):
        found = await end(kill)
        assert (dict(found.api.applies), dict(found.api.deletes), sorted(found.told)) == wanted, f"request {kill}"
        assert (found.seats(), children(found)) == (64, ["chat"])


async def test_nothing_begins_and_nothing_is_written_twice() -> None:
    found = bed(load=queueing)
    await found.ticks(2)
    unread(found, "how it is tuned")
    await found.ticks(2)
    writes = found.api.version
    await found.loop.tick()
    assert found.api.version == writes
    assert found.change() is None


async def test_the_flags_of_a_deployment_that_is_somebodys_own_are_put_back_to_the_letter() -> None:
    found = adopting(load=queueing)
    await in_state(found, "Analyzing")
    assert found.args == TUNED
    unread(found, "how it is tuned")
    await found.ticks(ticks_of(SAFE_WITHIN))
    assert [entry.outcome for entry in found.status().history] == [Outcome.ROLLED_BACK]
    assert (found.args, len(found.api.written)) == (ARGS, 2)


@pytest.mark.fault("T34")
@pytest.mark.parametrize("state", [ChangeState.VERIFYING, ChangeState.ANALYZING, ChangeState.BAKING])
async def test_a_change_of_a_knob_that_only_another_version_knows_is_taken_back(state: ChangeState) -> None:
    found = await reach(state)

    def rename(body: dict[str, Any]) -> None:
        body["status"]["activeChange"]["knob"] = "maxNumBatchedTokens"

    found.api.edit("chat", rename)
    await found.ticks(6)
    assert [entry.outcome for entry in found.status().history] == [Outcome.ROLLED_BACK]
    assert found.status().history[0].reason == "this version does not support the knob maxNumBatchedTokens"
    assert found.seats() == 64
