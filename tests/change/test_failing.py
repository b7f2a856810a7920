"""An engine that fails requests is detected by its counters, in every state and against the old configuration."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import engine
from tests.change.worlds import NEW, NOW, OLD, canary_change, canary_world, change, rollout, seen, variant, world

from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.change.failing import failing
from vllm_autotuner.change.machine import advance
from vllm_autotuner.observation.engine_window import Endings
from vllm_autotuner.observation.observation import Observation


def counted(failed: float, finished: float, *, before: float = 0.0) -> Observation:
    """`before`: failed of as many that finished before the fetched samples began."""
    lately = Endings(finished=finished, by_length=0.0, output_mean=100.0, failed=failed)
    earlier = Endings(finished=before, by_length=0.0, output_mean=100.0, failed=before) if before else None
    return replace(seen(), engines=(engine(lately=lately, earlier=earlier),))


@pytest.mark.parametrize(
    ("canary", "old", "fails"),
    [
        pytest.param(counted(6, 100), counted(0, 100), True, id="one in twenty, and none beside it"),
        pytest.param(counted(4, 100), counted(0, 100), False, id="too few to say"),
        pytest.param(counted(3, 100, before=3), counted(0, 100), True, id="those of before the window count"),
        pytest.param(counted(6, 1000), counted(0, 1000), False, id="six in a thousand"),
        pytest.param(counted(30, 100), counted(12, 100), False, id="both do: it lies in the requests"),
        pytest.param(counted(40, 100), counted(12, 100), True, id="both do, the candidate far more"),
        pytest.param(seen(), counted(50, 100), False, id="the candidate tells nothing"),
    ],
)
def test_a_canary_is_compared_with_the_fresh_pod_beside_it(canary: Observation, old: Observation, fails: bool) -> None:
    found = canary_world()
    beside = replace(
        found,
        variants=replace(
            found.variants, canary=variant(NEW, observation=canary), baseline=variant(OLD, observation=old)
        ),
    )
    assert bool(failing(canary_change(ChangeState.ANALYZING), beside)) is fails
    alone = replace(
        found, observation=old, variants=replace(found.variants, canary=variant(NEW, observation=canary), baseline=None)
    )
    assert bool(failing(canary_change(ChangeState.ANALYZING, baseline=False), alone)) is fails


def test_in_a_rollout_pods_are_told_apart_and_without_an_old_one_only_many_failures_count() -> None:
    mixed = rollout(NEW, settled=False)
    assert failing(change(ChangeState.PROVISIONING), world(rollout=mixed, observation=counted(90, 100))) == ""
    restarted = replace(mixed, latest=frozenset({"chat-0"}))
    assert failing(change(ChangeState.BAKING), world(rollout=restarted, observation=counted(15, 100))) == ""
    assert failing(change(ChangeState.BAKING), world(rollout=restarted, observation=counted(25, 100))) == "25 of 100"
    older = replace(counted(0, 100).engines[0], key=replace(seen().engines[0].key, pod="old-0"))
    both = replace(seen(), engines=(*counted(15, 100).engines, older))
    assert failing(change(ChangeState.PROVISIONING), world(rollout=restarted, observation=both)).startswith("15 of 100")
    assert failing(change(ChangeState.BAKING), world(observation=counted(15, 100))) == ""
    assert failing(change(ChangeState.BAKING), world(observation=counted(25, 100))) == "25 of 100"


@pytest.mark.parametrize("state", [ChangeState.WARMING_UP, ChangeState.ANALYZING, ChangeState.PROMOTING])
def test_it_is_taken_back_at_once_and_remembered(state: ChangeState) -> None:
    now = NOW + timedelta(seconds=15)
    found = canary_world(now)
    bad = replace(found, variants=replace(found.variants, canary=variant(NEW, observation=counted(20, 100))))
    undoing = advance(canary_change(state), bad).change
    assert undoing.state is ChangeState.ROLLING_BACK
    assert undoing.harmful is True
    assert undoing.state_reason.startswith("the engine fails requests: 20 of 100 (old configuration: 0 of")
