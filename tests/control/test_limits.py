"""What limits the start of changes, tick by tick: nothing begins, what runs is judged, undoing waits for nothing."""

from datetime import timedelta

from tests.control.desk import CAPPED, HARMED, HELPED, START, desk

from vllm_autotuner.api.status import Outcome

DAILY = {"schedule": f"{START:%M %H} * * *", "duration": "2m"}
"""Opens at the minute in which every story here begins."""


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
