"""Figures that have moved for good are written, swinging ones are not, and a fleet that moves at once takes turns."""

import random
from datetime import timedelta

import pytest
from tests.builders import latency, observation
from tests.control.desk import HEALTHY, START, TICK, Desk, desk

from vllm_autotuner.api.status import Measurement
from vllm_autotuner.control.decide.figures_refresh import (
    WINDOWS,
    WRITES_PER_SECOND,
    RefreshSlots,
    have_moved,
    typical_latencies,
)
from vllm_autotuner.observation.observation import Observation

FIVE_MINUTES = 2 * WINDOWS
"""In ticks: a window is two of them."""


def slower(ttft: float) -> Observation:
    return observation(ttft=latency(ttft))


def shown(found: Desk) -> str:
    text: str = found.status["summary"]["ttft"]
    return text


def at_first(ttft: float = 0.1, **changes: object) -> Desk:
    """A healthy service whose status is written."""
    found = desk(tuning__mode="Recommend", **changes)
    found.ticks(3, slower(ttft))
    found.writes = 0
    return found


@pytest.mark.parametrize(("ttft", "text"), [(0.5, "500ms/2.0s"), (0.05, "50ms/2.0s")])
def test_what_has_moved_for_minutes_is_written_once(ttft: float, text: str) -> None:
    found = at_first()
    found.ticks(FIVE_MINUTES - 4, slower(ttft))
    assert (shown(found), found.writes) == ("100ms/2.0s", 0)
    found.ticks(200, slower(ttft))
    assert (shown(found), found.writes) == (text, 1)
    assert found.read.measured is not None
    assert found.now - found.read.measured.at > 150 * TICK, "which is its age, and was no reason to write"


def test_nothing_else_of_the_status_is_touched() -> None:
    found = at_first()
    before = found.status
    found.ticks(2 * FIVE_MINUTES, slower(0.5))
    told = {"summary", "measured", "diagnosis"}
    assert {name for name in found.status if found.status[name] != before.get(name)} <= told
    assert found.reasons == []


def test_what_moves_a_little_or_comes_back_is_not_written() -> None:
    found = at_first()
    for ttft in (0.109, 0.091, 0.5, 0.1):
        found.ticks(FIVE_MINUTES - 4, slower(ttft))
    assert found.writes == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_only_swings_is_written_less_than_once_an_hour(seed: int) -> None:
    """Wildly: by fifteen times from one look to the next. The first write puts what is usual for what came first."""
    source, hours = random.Random(seed), 2
    found = at_first()
    for _ in range(240 * hours):
        found.tick(slower(source.uniform(0.1, 1.5)))
    assert found.writes <= 1 + hours


def test_a_load_that_keeps_rising_is_written_every_few_minutes_at_most() -> None:
    found = at_first()
    for step in range(240):
        found.tick(slower(0.1 * 1.01**step))
    assert 2 <= found.writes <= 240 * TICK / timedelta(minutes=5)


def test_tokens_count_as_much_as_first_tokens() -> None:
    found = at_first()
    found.ticks(2 * FIVE_MINUTES, observation(ttft=latency(0.1), tpot=latency(0.04), itl=latency(0.04)))
    assert (found.status["summary"]["tpot"], found.writes) == ("40ms/50ms", 1)


def test_unknown_figures_are_written_once_they_are_known_for_minutes() -> None:
    windows = [Measurement(at=START + i * TICK, ttft_seconds=1.0, tpot_seconds=0.02) for i in range(WINDOWS)]
    assert have_moved(None, windows)
    assert have_moved(Measurement(at=START), windows)
    assert not have_moved(None, windows[1:])
    assert not have_moved(windows[0], windows)


def test_what_is_shown_is_usual() -> None:
    times = [0.1, 9.0, 0.2, 0.3]
    windows = [Measurement(at=START + i * TICK, ttft_seconds=each) for i, each in enumerate(times)]
    found = typical_latencies(windows)
    assert (found.at, found.ttft_seconds, found.tpot_seconds) == (windows[-1].at, 0.25, None)


# A whole fleet


@pytest.mark.parametrize("services", [1, 30, 600, 10_000])
def test_each_has_its_turn_and_no_tick_has_too_many(services: int) -> None:
    source, period = random.Random(1), timedelta(seconds=services / WRITES_PER_SECOND)
    uids = [f"{source.getrandbits(128):x}" for _ in range(services)]
    ticks, turns = -(-period // TICK), dict.fromkeys(uids, 0)
    most = 0
    for tick in range(ticks):
        one = RefreshSlots(services=services, since=START + tick * TICK, now=START + (tick + 1) * TICK)
        having = [uid for uid in uids if one.has(uid)]
        most = max(most, len(having))
        for uid in having:
            turns[uid] += 1
    assert min(turns.values()) >= 1
    # Their moments are drawn, so that a tick has some more than its share: five deviations of it.
    share = min(services, TICK.total_seconds() * WRITES_PER_SECOND)
    assert most <= share + 5 * share**0.5


def test_who_has_just_begun_to_lead_has_no_turn_to_give() -> None:
    assert not RefreshSlots(services=1, since=START, now=START).has("u-1")


def test_a_service_waits_for_its_turn() -> None:
    found = at_first()
    found.refresh_due = False
    found.ticks(2 * FIVE_MINUTES, slower(0.5))
    assert found.writes == 0
    found.refresh_due = True
    found.tick(slower(0.5))
    assert (shown(found), found.writes) == ("500ms/2.0s", 1)


def test_the_age_of_the_figures_stands_beside_them() -> None:
    found = desk()
    found.tick(HEALTHY)
    assert found.read.measured is not None
    assert found.read.measured.at == found.now
