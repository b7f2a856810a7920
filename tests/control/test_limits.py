"""What limits the start of changes, tick by tick: nothing begins, what runs is judged, undoing waits for nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.control.desk import CAPPED, HARMED, HELPED, OVERLOADED, START, desk, scaled
from tests.control.loop_bed import Bed, bed, queueing

from vllm_autotuner.api.annotations import APPROVE
from vllm_autotuner.api.conditions import ConditionType
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import Outcome
from vllm_autotuner.cluster.errors import Refused, Unavailable
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.run import fleet_loop
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, limits_from

DAILY = {"schedule": f"{START:%M %H} * * *", "duration": "2m"}
"""Opens at the minute in which every story here begins."""
RECOMMEND_ONLY = limits_from(ceiling=Mode.RECOMMEND, kill=False, source="ConfigMap ops/limits")
KILLED = limits_from(ceiling=Mode.AUTOMATIC, kill=True, source="ConfigMap ops/limits")


def test_a_change_waits_for_its_window() -> None:
    found = desk(tuning__windows=[DAILY])
    found.now = START - timedelta(minutes=3)
    found.ticks(8, CAPPED)
    recommendation = found.read.recommendation
    assert recommendation is not None
    opens = f"{START.replace(second=0):%Y-%m-%dT%H:%M:%SZ}"
    assert f"Not applied: outside the change windows (spec.tuning.windows): the next one opens at {opens}" in (
        recommendation.reason
    )
    assert (found.read.active_change, found.seats) == (None, 64)
    found.until("Provisioning", CAPPED, at_most=8)
    assert found.seats == 128


def test_waiting_for_a_window_writes_nothing() -> None:
    found = desk(tuning__windows=[{**DAILY, "schedule": "0 2 30 2 *"}])
    found.ticks(4, CAPPED)
    writes = found.writes
    found.ticks(8, CAPPED)
    assert found.writes == writes


def test_a_change_goes_on_when_its_window_closes() -> None:
    found = desk(tuning__windows=[DAILY])
    found.until("Provisioning", CAPPED)
    found.now += timedelta(minutes=3)
    found.until(None, HELPED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


def test_undoing_needs_no_window() -> None:
    found = desk(tuning__windows=[DAILY])
    found.until("Provisioning", CAPPED)
    found.now += timedelta(minutes=3)
    found.until(None, HARMED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.ROLLED_BACK]
    assert found.seats == 64


def test_under_a_ceiling_nothing_starts_and_it_says_who_limits() -> None:
    found = desk()
    found.limits = RECOMMEND_ONLY
    found.ticks(8, CAPPED)
    assert (found.read.active_change, found.seats) == (None, 64)
    recommendation = found.read.recommendation
    assert recommendation is not None
    assert "the operator's mode ceiling is Recommend (ConfigMap ops/limits)" in recommendation.reason
    found.limits = NO_LIMITS
    found.ticks(1, CAPPED)
    assert found.seats == 128


def test_a_ceiling_stops_no_change_that_runs() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.limits = limits_from(ceiling=Mode.OFF, kill=False, source="flags")
    found.until(None, HELPED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.SUCCEEDED]


def test_a_ceiling_stops_no_rollback() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.limits = RECOMMEND_ONLY
    found.until(None, HARMED)
    assert [entry.outcome for entry in found.read.history] == [Outcome.ROLLED_BACK]
    assert found.seats == 64


def test_the_ceiling_off_recommends_nothing() -> None:
    found = desk()
    found.limits = limits_from(ceiling=Mode.OFF, kill=False, source="flags")
    found.ticks(8, CAPPED)
    assert (found.read.recommendation, found.read.active_change) == (None, None)


def test_the_ceiling_approve_waits_for_a_person_also_in_mode_automatic() -> None:
    found = desk()
    found.limits = limits_from(ceiling=Mode.APPROVE, kill=False, source="flags")
    found.ticks(8, CAPPED)
    recommendation, said = found.read.recommendation, found.condition(ConditionType.RECOMMENDATION_AVAILABLE)
    assert recommendation is not None
    assert said is not None
    assert f"vllm-autotuner.dev/approve={recommendation.id}" in said.message
    assert found.seats == 64
    found.annotations[APPROVE] = recommendation.id
    found.until("Provisioning", CAPPED)
    assert found.seats == 128


@pytest.mark.fault("T28")
@pytest.mark.parametrize("state", ["Provisioning", "WarmingUp", "Analyzing"])
def test_the_kill_switch_takes_the_change_that_runs_back_within_one_tick(state: str) -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    if state != "Provisioning":
        found.until(state, HELPED)
    assert found.seats == 128
    found.limits = KILLED
    found.tick(HELPED)
    change = found.read.active_change
    assert change is not None
    assert (change.state.value, found.seats) == ("RollingBack", 64)
    found.until(None, HELPED)
    (entry,) = found.read.history
    assert entry.outcome is Outcome.ROLLED_BACK
    assert "kill switch is on (ConfigMap ops/limits)" in entry.reason
    assert (found.read.failure_memory, found.is_true(ConditionType.CIRCUIT_OPEN)) == ((), False)
    assert found.is_true(ConditionType.READY)


def test_the_kill_switch_is_said_and_starts_nothing_until_it_is_off() -> None:
    found = desk()
    found.limits = KILLED
    found.ticks(8, CAPPED)
    paused = found.condition(ConditionType.PAUSED)
    assert paused is not None
    assert (paused.status.value, paused.reason) == ("True", "PausedByOperator")
    assert (found.read.active_change, found.seats) == (None, 64)
    writes = found.writes
    found.ticks(4, CAPPED)
    assert found.writes == writes
    found.limits = NO_LIMITS
    found.ticks(1, CAPPED)
    assert not found.is_true(ConditionType.PAUSED)
    assert found.seats == 128


def test_replicas_stay_under_a_ceiling() -> None:
    free, held = scaled(), scaled()
    held.limits = RECOMMEND_ONLY
    free.ticks(12, OVERLOADED)
    held.ticks(12, OVERLOADED)
    assert free.replicas is not None
    assert free.replicas > 1
    assert held.replicas == 1


def limiting(found: Bed, **data: str) -> None:
    """What the administrator writes into the ConfigMap."""
    metadata = {"namespace": "default", "name": "limits"}
    found.api.objects["ConfigMap", "limits"] = {"kind": "ConfigMap", "metadata": metadata, "data": data}


def limited() -> Bed:
    found = bed(load=queueing)
    found.context = replace(found.context, settings=replace(found.context.settings, limits_configmap="limits"))
    found.loop = FleetLoop(found.context, sources=cast(Sources, found.api))
    return found


async def test_an_absent_configmap_limits_nothing() -> None:
    found = limited()
    await found.ticks(12)
    assert found.api.requests["read ConfigMap"] == 12, "once per tick"
    assert found.seats() == 128


@pytest.mark.parametrize(
    ("a_look_takes", "asked"), [(timedelta(), 1), (timedelta(seconds=2), 1), (timedelta(seconds=6), 3)], ids=str
)
async def test_a_switch_counts_within_five_seconds_and_is_not_asked_for_each_part(
    monkeypatch: pytest.MonkeyPatch, a_look_takes: timedelta, asked: int
) -> None:
    found = limited()
    monkeypatch.setattr(fleet_loop, "parts_of", lambda fleet, *, behind: [{}, {}, {}])
    look = found.api.look

    async def slow_look(entries: Any, **how: Any) -> Any:
        found.api.now += a_look_takes
        return await look(entries, **how)

    monkeypatch.setattr(found.api, "look", slow_look)
    await found.ticks(2)
    assert found.api.requests["read ConfigMap"] == 2 * asked


async def test_limits_that_are_not_answered_for_a_moment_are_no_news_and_nothing_begins_meanwhile() -> None:
    """Where every third answer is 429, all that waits in a fleet was told of it in two ticks of three."""
    found = limited()
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(mode="Approve"))
    await found.ticks(12)
    recommendation, busy = found.status().recommendation, Unavailable("busy", reason="TooManyRequests", status=429)
    assert recommendation is not None
    written = found.api.requests["status"]
    for _ in range(4):
        found.api.refuses = lambda verb, name: None
        await found.ticks(2)
        found.api.refuses = lambda verb, name: busy if verb == "read" else None
        await found.tick()
    assert found.api.requests["status"] == written
    limiting(found, killSwitch="true")
    found.api.edit("chat", lambda body: body["metadata"].update(annotations={APPROVE: recommendation.id}))
    found.api.refuses = lambda verb, name: busy if verb == "read" else None
    await found.ticks(4)
    assert (found.change(), found.seats()) == (None, 64)
    limiting(found)
    found.api.refuses = lambda verb, name: None
    await found.tick()
    assert found.seats() == 128


async def test_without_its_name_no_configmap_is_read() -> None:
    found = bed(load=queueing)
    await found.ticks(2)
    assert found.api.requests["read ConfigMap"] == 0


async def test_the_configmap_acts_within_one_tick_without_a_restart() -> None:
    found = limited()
    limiting(found, modeCeiling="Recommend")
    await found.ticks(12)
    assert (found.change(), found.seats()) == (None, 64)
    limiting(found)
    await found.tick()
    assert found.seats() == 128
    limiting(found, killSwitch="true")
    await found.tick()
    change = found.change()
    assert change is not None
    assert (change.state.value, found.seats()) == ("RollingBack", 64)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (Refused("GET limits: no", reason="Forbidden", status=403), "Forbidden"),
        (Unavailable("GET limits: 7 s", reason="NoAnswer"), "NoAnswer"),
        (None, "unknown key killswitch, use modeCeiling or killSwitch"),
    ],
)
async def test_limits_that_cannot_be_read_let_nothing_new_start_and_stop_nothing(
    failure: Exception | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(found: Bed) -> None:
        limiting(found, killswitch="true")
        found.api.refuses = lambda verb, name: failure if verb == "read" else None

    found = limited()
    fail(found)
    await found.ticks(12)
    recommendation = found.status().recommendation
    assert (found.change(), found.seats()) == (None, 64)
    assert recommendation is not None
    assert f"the operator's limits cannot be read (ConfigMap default/limits): {says}" in recommendation.reason
    assert [record.message for record in caplog.records].count("limits changed") == 1

    running = limited()
    while running.change() is None:
        await running.tick()
    fail(running)
    while running.change() is not None:
        await running.tick()
    assert [entry.outcome for entry in running.status().history] == [Outcome.SUCCEEDED]


async def test_a_follower_does_not_ask() -> None:
    found = limited()
    found.leader.is_leader = False
    await found.ticks(2)
    assert found.api.requests["read ConfigMap"] == 0
