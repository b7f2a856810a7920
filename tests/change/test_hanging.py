"""An engine that takes requests and answers none has no latency: it is told by its counters, in every state."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import engine, latency, observation
from tests.change.worlds import NEW, NOW, OLD, canary_change, canary_world, change, rollout, seen, variant, world

from vllm_autotuner.api.status import ActiveChange, Analysis, ChangeState, ChangeTarget
from vllm_autotuner.change.hanging import hanging
from vllm_autotuner.change.machine import advance
from vllm_autotuner.change.world import World
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import Observation

NOTHING = Distribution(buckets={1.0: 0.0, math.inf: 0.0}, total=0.0)


def stuck(seconds: float = 150.0, *, running: float = 64.0, waiting: float = 120.0) -> Observation:
    """Ready and scraped, with requests, and not a token for so long."""
    one = engine(
        running=running, waiting=waiting, stalled_for=seconds, finished=0.0, prompt_tokens=0.0, generation_tokens=0.0
    )
    return observation(one, ttft=NOTHING, tpot=NOTHING, itl=NOTHING)


def beside(canary: Observation, old: Observation) -> World:
    found = canary_world()
    variants = replace(found.variants, canary=variant(NEW, observation=canary), baseline=variant(OLD, observation=old))
    return replace(found, observation=old, variants=variants)


@pytest.mark.parametrize(
    ("canary", "old", "told"),
    [
        pytest.param(stuck(), seen(), True, id="it does, and the old configuration serves"),
        pytest.param(stuck(119.0), seen(), False, id="not for long enough"),
        pytest.param(stuck(running=0.0, waiting=0.0), seen(), False, id="nobody asks it"),
        pytest.param(stuck(31.0, running=0.0, waiting=3.0), seen(), False, id="requests wait and none runs: not yet"),
        pytest.param(stuck(121.0, running=0.0, waiting=3.0), seen(), True, id="requests wait and none runs: a hang"),
        pytest.param(stuck(), stuck(), False, id="both do: it lies in the requests, or in what both need"),
        pytest.param(stuck(120.0), stuck(61.0), False, id="the old one is seen to do so a little later"),
        pytest.param(stuck(300.0), stuck(30.0), True, id="the old one has just made a token"),
        pytest.param(seen(), stuck(), False, id="only the old configuration does"),
    ],
)
@pytest.mark.parametrize("baseline", [True, False])
def test_a_canary_that_hangs_beside_the_old_configuration(
    canary: Observation, old: Observation, told: bool, baseline: bool
) -> None:
    found = beside(canary, old)
    if not baseline:
        found = replace(found, variants=replace(found.variants, baseline=None))
    assert bool(hanging(canary_change(ChangeState.ANALYZING, baseline=baseline), found)) is told


def several(*windows: Observation) -> Observation:
    engines = [replace(one, key=replace(one.key, pod=f"chat-{number}"))
               for number, seen_ in enumerate(windows) for one in seen_.engines]  # fmt: skip
    return replace(windows[0], engines=tuple(engines))


def test_of_several_one_hangs_by_itself_and_an_old_one_excuses_no_canary() -> None:
    baking = change(ChangeState.BAKING)
    assert hanging(baking, world(observation=several(seen(), seen(), stuck()))) == ""
    assert "chat-1" in hanging(baking, world(observation=several(seen(), stuck(), stuck())))
    cores = several(seen(), seen(), *[stuck()] * 4)
    of_pods = zip(cores.engines, ["a", "b", "c", "c", "c", "c"], strict=True)
    of_one = replace(cores, engines=tuple(replace(one, key=replace(one.key, pod=pod)) for one, pod in of_pods))
    assert hanging(baking, world(observation=of_one)) == "", "all cores of one pod"
    alone = beside(stuck(), several(seen(), seen(), stuck(900.0)))
    assert hanging(canary_change(ChangeState.ANALYZING), alone)
    for_all = beside(stuck(), several(stuck(), stuck(), seen()))
    assert hanging(canary_change(ChangeState.ANALYZING), for_all) == ""


def test_what_was_to_make_an_engine_start_is_not_blamed() -> None:
    started = change(ChangeState.BAKING, target=ChangeTarget.START)
    assert hanging(started, world(observation=stuck())) == ""


def test_after_minutes_without_a_request_the_first_one_may_take_a_while() -> None:
    found = stuck(290.0)
    first = replace(found, engines=tuple(replace(one, busy_for=31.0) for one in found.engines))
    assert hanging(canary_change(ChangeState.ANALYZING), beside(first, seen())) == ""


@pytest.mark.parametrize("given", [change(ChangeState.PROVISIONING), canary_change(ChangeState.PROMOTING)])
def test_of_pods_of_both_configurations_the_engines_are_told_apart(given: ActiveChange) -> None:
    """The last pod with the old value serves: what replaced the others would go unnoticed until it is gone, too."""
    both = several(stuck(), stuck(), seen())
    mixed = rollout(NEW, settled=False, ready=3, replicas=3, latest=frozenset({"chat-0", "chat-1"}))
    assert "chat-0" in hanging(given, world(rollout=mixed, observation=both))
    assert hanging(given, world(rollout=replace(mixed, latest=frozenset({"chat-1", "chat-2"})), observation=both)) == ""
    assert (
        hanging(given, world(rollout=replace(mixed, latest=frozenset()), observation=several(stuck(), stuck()))) == ""
    )
    assert hanging(given, world(rollout=replace(mixed, config_hash=OLD), observation=both)) == ""


def test_a_canary_beside_a_rollout_is_one_of_the_new() -> None:
    mixed = rollout(NEW, settled=False, ready=3, replicas=3, latest=frozenset())
    found = replace(beside(stuck(), seen()), rollout=mixed, observation=several(seen(), seen()))
    assert "64 running" in hanging(canary_change(ChangeState.PROMOTING), found)


def test_a_hang_is_told_with_what_waits() -> None:
    assert "64 running and 120 waiting" in hanging(change(ChangeState.BAKING), world(observation=stuck()))


@pytest.mark.parametrize(
    "state", [ChangeState.WARMING_UP, ChangeState.ANALYZING, ChangeState.HELD, ChangeState.PROMOTING]
)
def test_it_is_taken_back_at_once_and_remembered(state: ChangeState) -> None:
    undoing = advance(canary_change(state), beside(stuck(), seen())).change
    assert undoing.state is ChangeState.ROLLING_BACK
    assert undoing.harmful is True
    assert undoing.state_reason.startswith("the engine hangs: chat-0 has 64 running and 120 waiting requests")


def test_one_that_hangs_for_good_after_good_windows_is_not_promoted() -> None:
    """The good windows are enough for a verdict when time is up, and those without a token are no evidence."""
    now, tested = NOW, canary_change(ChangeState.ANALYZING, analysis=Analysis(started_at=NOW))
    for tick in range(1, 200):
        now = NOW + timedelta(seconds=10 * tick)
        found = canary_world(now)
        if now - NOW > timedelta(seconds=210):
            hung = variant(NEW, observation=replace(stuck(10.0 * (tick - 20)), at=now.timestamp()))
            found = replace(found, variants=replace(found.variants, canary=hung))
        tested = advance(tested, found).change
        if tested.state is not ChangeState.ANALYZING:
            break
    assert tested.state is ChangeState.ROLLING_BACK
    assert now - NOW <= timedelta(seconds=210 + 130)


def test_a_kept_one_that_hangs_in_the_bake_is_undone() -> None:
    step = advance(change(ChangeState.BAKING), world(observation=stuck()))
    assert step.change.state is ChangeState.ROLLING_BACK
    served = replace(seen(), ttft=latency(0.4))
    assert advance(change(ChangeState.BAKING), world(observation=served)).change.state is ChangeState.BAKING
