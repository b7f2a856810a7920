"""What Prometheus says is missing, doubled, reset, partial or swings: what is decided from it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.builders import engine, latency, observation
from tests.control.desk import BLIND, CAPPED, HEALTHY, HELPED, IDLE, NO_SERIES, TICK, desk, scaled
from tests.observation.fleet import NOW, Engine, fleet

from vllm_autotuner.api.status import Outcome
from vllm_autotuner.change.verdict import WindowVerdict, judge_window, measure
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import EngineWindow, Observation, observe
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings, take_snapshot

TARGETS = targets_of(desk().service.spec.objectives)
NOTHING, NOT_A_NUMBER = latency(0.2, count=0.0), Distribution(missing="NaN")
WITHOUT_TRAFFIC = replace(IDLE, ttft=NOTHING, tpot=NOTHING, itl=NOTHING)
NAN = replace(IDLE, ttft=NOT_A_NUMBER, tpot=NOT_A_NUMBER, itl=NOT_A_NUMBER)


@pytest.mark.fault("T12")
@pytest.mark.parametrize("seen", [WITHOUT_TRAFFIC, NAN, NO_SERIES], ids=["no traffic", "NaN", "no series"])
def test_an_analysis_that_measures_nothing_is_no_success_and_no_harm(seen: Observation) -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until("Analyzing", HELPED)
    found.until(None, seen, at_most=120)
    (entry,) = found.read.history
    assert (entry.outcome, found.seats) == (Outcome.ROLLED_BACK, 64)
    assert not [event for event in found.events if event.warning], "nobody saw harm"
    assert found.read.circuit is None


@pytest.mark.fault("T12")
@pytest.mark.parametrize("seen", [NO_SERIES, BLIND], ids=["no series", "no answer"])
def test_no_answer_is_no_zero_load(seen: Observation) -> None:
    found = scaled(scaling={"minReplicas": 1, "maxReplicas": 8, "scaleIn": {"stabilization": "1m"}})
    found.tick(HEALTHY)
    found.status["effective"] = {**found.status["effective"], "replicas": 5}
    found.ticks(80, seen)
    assert found.replicas == 5


# Two series, and a reset


async def seen_of(*engines: Engine) -> Observation:
    snapshot = await take_snapshot(fleet(*engines), at=NOW, settings=WindowSettings())
    return observe(snapshot, [EngineKey("demo", "chat-0", "0")], expected=1)


@pytest.mark.fault("T14")
async def test_an_engine_that_two_jobs_scrape_is_no_engine_with_twice_the_load() -> None:
    once = await seen_of(Engine(labels={"job": "a"}))
    twice = await seen_of(Engine(labels={"job": "a"}), Engine(labels={"job": "b"}))
    assert len(once.engines) == 1
    # Which of the two is true nobody knows: the engine is blind, and said to be.
    assert twice.engines == ()
    assert twice.silent == ("chat-0",)
    assert "two series" in twice.unreadable["chat-0"]
    assert measure(twice, targets=TARGETS).requests_per_second is None


@pytest.mark.fault("T15")
@pytest.mark.parametrize("ago", [4, 10, 20, 28])
async def test_a_counter_reset_makes_no_verdict(ago: int) -> None:
    before = measure(await seen_of(Engine()), targets=TARGETS)
    after = measure(await seen_of(Engine(restarted=NOW - ago)), targets=TARGETS)
    assert after.tokens_per_second is None or after.tokens_per_second >= 0
    assert judge_window(after, before=before, targets=TARGETS, target=None) is not WindowVerdict.BAD
    assert judge_window(before, before=after, targets=TARGETS, target=None) is not WindowVerdict.GOOD


# One pod is missing

LOADS = {
    "capped": engine(running=64.0, waiting=100.0, kv=0.32),
    "idle": engine(running=0.0, kv=0.0, finished=0.0, generation_tokens=0.0, prompt_tokens=0.0),
    "healthy": engine(),
    "full": engine(running=39.0, waiting=9.0, kv=0.99),
    "thrashing": engine(running=60.0, waiting=20.0, kv=0.998, preemptions=80.0),
}


def decided(engines: Sequence[EngineWindow], *, silent: tuple[str, ...], ttft: float) -> tuple[int, int]:
    """Which way seats and replicas are moved by what these engines show: -1, 0 or 1."""
    found = scaled(scaling={"minReplicas": 1, "maxReplicas": 8, "scaleIn": {"stabilization": "1m"}})
    seen = observation(*engines, ttft=latency(ttft), silent=silent, expected=len(engines) + len(silent))
    found.tick(HEALTHY)
    found.status["effective"] = {**found.status["effective"], "replicas": 4}
    for _ in range(14):
        found.tick(seen)
        change = found.read.active_change
        if change is not None:
            return sign((change.to.max_num_seqs or 0) - 64), 0
    return 0, sign((found.replicas or 0) - 4)


def sign(number: int) -> int:
    return (number > 0) - (number < 0)


@pytest.mark.fault("T16")
@given(
    loads=st.lists(st.sampled_from(sorted(LOADS)), min_size=2, max_size=4),
    missing=st.integers(0, 3),
    ttft=st.sampled_from([0.2, 6.0]),
)
@example(loads=["idle", "idle", "full"], missing=2, ttft=0.2)
@settings(max_examples=40)
def test_a_pod_that_is_missing_from_the_scrape_turns_no_decision_round(
    loads: list[str], missing: int, ttft: float
) -> None:
    engines = [replace(LOADS[load], key=EngineKey("demo", f"chat-{place}", "0")) for place, load in enumerate(loads)]
    gone = missing % len(engines)
    rest = [one for place, one in enumerate(engines) if place != gone]
    whole = decided(engines, silent=(), ttft=ttft)
    partial = decided(rest, silent=(f"chat-{gone}",), ttft=ttft)
    for full, part in zip(whole, partial, strict=True):
        assert full * part >= 0, (loads, whole, partial)


# It swings


@pytest.mark.fault("T31")
@pytest.mark.parametrize("reaction", [1, 3])
def test_a_load_that_swings_with_every_reaction_costs_no_more_than_the_changes_of_a_day(reaction: int) -> None:
    """A day: with few seats it queues, with many tokens are slow, and both only some ticks after a change."""
    found = desk(tuning__cooldown="1h", tuning__budget={"changesPerDay": 3})
    lagging = [found.seats] * (reaction + 1)
    starts = []
    for _ in range(26 * 12):
        # Five minutes from look to look: nothing here depends on their number.
        found.now += timedelta(minutes=5) - TICK
        seats = lagging.pop(0) or 0
        load = (
            observation(engine(running=float(seats), waiting=60.0, kv=0.3), ttft=latency(6.0))
            if seats <= 64
            else observation(
                engine(running=float(seats), kv=0.6), tpot=latency(0.09), itl=latency(0.09), ttft=latency(0.3)
            )
        )
        before = found.read.active_change
        found.tick(load)
        change = found.read.active_change
        if change is not None and before is None:
            starts.append(found.now)
        lagging.append(found.seats)
    assert starts, "nothing was tried, so that nothing was shown"
    for start in starts:
        day = [one for one in starts if start <= one < start + timedelta(days=1)]
        assert len(day) <= 3
    history = found.read.history
    for former, later in pairwise(history):
        assert former.finished_at is not None
        assert later.started_at is not None
        assert later.started_at - former.finished_at >= timedelta(hours=1)
