"""Services that rest: when nothing is known to have happened they are decided once in two windows, else at once."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.control.cluster_model import WINDOW, Load
from tests.control.desk import SCALED, START, TICK
from tests.control.loop_bed import Bed, bed, queueing
from tests.control.test_fleet_loop import NO_ANSWER, STEADY

from vllm_autotuner.control.decide import figures_refresh
from vllm_autotuner.control.decide.figures_refresh import RefreshSlots
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.tick import Decision, decide
from vllm_autotuner.control.run import service_tick
from vllm_autotuner.control.run.calm_services import WINDOWS
from vllm_autotuner.observation.reading import NoData

TICKS_OF_A_REST = int(WINDOWS * WINDOW / TICK.total_seconds())
SETTLED = STEADY + 8


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each service is decided, in a fleet so large that its refreshes are rare."""
    found: Counter[str] = Counter()

    def counting(inputs: Inputs) -> Decision:
        found[inputs.service.metadata.name] += 1
        return decide(inputs)

    monkeypatch.setattr(service_tick, "decide", counting)
    monkeypatch.setattr(figures_refresh, "WRITES_PER_SECOND", 1e-6)
    return found


async def calm_bed(decided: Counter[str], *names: str, load: Callable[[int], Load] = lambda seats: Load()) -> Bed:
    found = bed(*names, load=load)
    await found.ticks(SETTLED)
    decided.clear()
    return found


async def test_a_calm_service_is_decided_once_in_two_windows(decided: Counter[str]) -> None:
    found = await calm_bed(decided)
    await found.ticks(10 * TICKS_OF_A_REST)
    assert decided["chat"] == 10


async def test_where_refreshes_are_due_every_service_is_decided(
    decided: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small fleet: its figures are refreshed in each tick, and deciding it costs little."""
    found = await calm_bed(decided)
    monkeypatch.undo()
    monkeypatch.setattr(service_tick, "decide", lambda inputs: (decided.update([""]), decide(inputs))[1])
    await found.ticks(10)
    assert decided[""] == 10


def a_spec(found: Bed) -> None:
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))


def an_annotation(found: Bed) -> None:
    found.api.edit("chat", lambda body: body["metadata"].update(annotations={"vllm-autotuner.dev/pause": "1h"}))


def a_pod_that_is_lost(found: Bed) -> None:
    found.api.pods.pop()


def a_deployment(found: Bed) -> None:
    body = found.deployment()
    body["metadata"]["resourceVersion"] = str(int(body["metadata"]["resourceVersion"]) + 1_000_000)
    body["spec"]["replicas"] = 3


def a_queue(found: Bed) -> None:
    found.api.load = lambda seats: Load(waiting=1.0)


@pytest.mark.parametrize("happens", [a_spec, an_annotation, a_pod_that_is_lost, a_deployment, a_queue])
async def test_what_has_changed_is_decided_at_once(decided: Counter[str], happens: Callable[[Bed], None]) -> None:
    for phase in range(TICKS_OF_A_REST):
        found = await calm_bed(decided)
        await found.ticks(phase)
        decided.clear()
        happens(found)
        await found.tick()
        assert decided["chat"] == 1


async def test_the_others_rest_while_one_is_decided(decided: Counter[str]) -> None:
    found = await calm_bed(decided, "chat", "code")
    found.api.edit("chat", lambda body: body["metadata"].update(labels={"team": "a"}))
    await found.ticks(TICKS_OF_A_REST)
    assert decided["chat"] >= 1
    assert decided["code"] == 1


async def test_a_waiting_service_is_decided_in_each_tick(decided: Counter[str]) -> None:
    found = await calm_bed(decided, load=lambda seats: Load(waiting=0.5))
    await found.ticks(10)
    assert decided["chat"] >= 10


async def test_a_recommendation_that_stands_is_no_rest(decided: Counter[str]) -> None:
    """It is not well with it: what it waits for may come at any time."""
    found = bed(spec={"tuning.mode": "Recommend"}, load=queueing)
    await found.ticks(SETTLED)
    decided.clear()
    await found.ticks(10)
    assert decided["chat"] >= 10


async def test_a_new_leader_decides_everything(decided: Counter[str]) -> None:
    found = await calm_bed(decided, "chat", "code")
    found.restart()
    await found.tick()
    assert decided["chat"] == decided["code"] == 1


async def test_a_switch_is_told_in_the_tick_after_it(decided: Counter[str]) -> None:
    found = await calm_bed(decided)
    found.loop._limits = type(found.loop._limits)(kill=True, why="the kill switch is on")
    await found.tick()
    await found.tick()
    assert decided["chat"] >= 1


async def test_a_failed_look_leaves_calm_services_as_they_are(decided: Counter[str]) -> None:
    found = await calm_bed(decided)
    before = dict(found.api.requests)
    found.api.silent = NoData(NO_ANSWER.absence, "a look that fails")
    await found.ticks(2)
    found.api.silent = None
    await found.ticks(4)
    written = {verb: count for verb, count in found.api.requests.items() if not verb.startswith(("read", "log"))}
    assert written == {verb: count for verb, count in before.items() if not verb.startswith(("read", "log"))}


async def test_a_change_is_followed_in_each_tick(decided: Counter[str]) -> None:
    found = await calm_bed(decided, load=lambda seats: Load())
    found.api.load = queueing
    for _ in range(40):
        await found.tick()
        if found.change() is not None:
            break
    assert found.change() is not None
    decided.clear()
    await found.ticks(5)
    assert decided["chat"] >= 5


async def test_the_demand_of_a_large_fleet_is_followed(decided: Counter[str]) -> None:
    found = bed(spec={**SCALED, "tuning.maxNumSeqs": ...}, load=lambda seats: Load())
    await found.ticks(SETTLED)
    found.api.load = queueing
    await found.ticks(STEADY + 4)
    assert found.deployment()["spec"]["replicas"] > 1


async def test_the_number_of_engines_counts_those_that_rest(decided: Counter[str]) -> None:
    found = await calm_bed(decided, "chat", "code")
    for _ in range(TICKS_OF_A_REST):
        await found.tick()
        assert "vllm_autotuner_engines 2.0" in found.metrics.page().decode()


def test_a_slot_that_passed_while_a_service_rested_is_its_slot_at_its_next_decision() -> None:
    slots = RefreshSlots(services=1000, since=START - TICK, now=START)
    missed = [uid for uid in map(str, range(1000)) if not slots.has(uid)]
    assert len(missed) > 900
    assert all(slots.has(uid, since=START - timedelta(seconds=slots.period)) for uid in missed)
    assert not any(slots.has(uid, since=START) for uid in missed), "nor twice"
