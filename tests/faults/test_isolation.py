"""Slow answers, defects and odd objects: one service's trouble is nobody else's, and leaves no trace in the end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.api.cases import CASES, SMALLEST, Case, changed
from tests.control.cluster_model import Body, Load
from tests.control.desk import TICK
from tests.control.loop_bed import Bed, bed, queueing

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.tick import Decision, decide
from vllm_autotuner.control.read import metrics_sources as sources_module
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.observation.prometheus import PrometheusAddress
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.series import Series

SLOW = 2.0
"""Seconds that a slow Prometheus takes for each query."""


class SlowPrometheus:
    """Answers only when nobody has anything more to ask at the same time: what it counts is how often one waits."""

    def __init__(self) -> None:
        self.waits = 0
        self.asked = 0
        self._open: asyncio.Future[None] | None = None

    async def ask(self, question: Question, *, at: float, namespaces: Sequence[str] = ()) -> Sequence[Series]:
        self.asked += 1
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            self.waits += 1
            asyncio.get_running_loop().call_later(0, self._answer, self._open)
        await self._open
        return []

    def _answer(self, waiting: "asyncio.Future[None]") -> None:
        # One turn of the loop later: whoever asks at the same time has asked by then.
        self._open = None
        waiting.set_result(None)

    async def close(self) -> None: ...


@pytest.mark.fault("T36")
async def test_a_slow_prometheus_is_waited_for_a_few_times_a_tick_however_many_services_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    for count in (1, 200):
        found, slow = bed(*(f"chat-{number}" for number in range(count))), SlowPrometheus()

        def client(address: PrometheusAddress, *, slow: SlowPrometheus = slow, **_: object) -> SlowPrometheus:
            return slow

        monkeypatch.setattr(sources_module, "PrometheusSource", client)
        found.loop = FleetLoop(found.context, sources=Sources(found.context.settings))
        found.api.pass_time(TICK)
        found.api.tell(found.registry)
        await found.loop.tick()
        assert found.api.requests["apply Deployment"] == count
        assert slow.waits * SLOW < 2 * TICK.total_seconds()
        asked.append(slow.asked)
    assert asked[0] == asked[1]


@pytest.mark.fault("T36", "T37")
async def test_one_poisoned_object_of_two_hundred_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"chat-{number}" for number in range(200)]
    found = bed(*names)

    def defective(inputs: Inputs) -> Decision:
        if inputs.service.metadata.name == "chat-17":
            raise ZeroDivisionError
        return decide(inputs)

    monkeypatch.setattr("vllm_autotuner.control.run.service_tick.decide", defective)
    await found.tick()
    assert found.api.requests["apply Deployment"] == len(names) - 1


@pytest.mark.fault("T37")
@pytest.mark.parametrize(
    ("state", "replicas"),
    [
        (ChangeState.PROVISIONING, 1),
        (ChangeState.VERIFYING, 2),
        (ChangeState.WARMING_UP, 1),
        (ChangeState.ANALYZING, 2),
        (ChangeState.PROMOTING, 2),
        (ChangeState.BAKING, 2),
    ],
)
async def test_a_defect_in_one_state_leaves_the_change_where_it_was(
    monkeypatch: pytest.MonkeyPatch, state: ChangeState, replicas: int
) -> None:
    found, failing = bed("broken", "chat", spec={"replicas": replicas}, load=queueing), True

    def defective(inputs: Inputs) -> Decision:
        change = inputs.service.status.active_change
        if failing and inputs.service.metadata.name == "broken" and change is not None and change.state is state:
            raise ZeroDivisionError
        return decide(inputs)

    monkeypatch.setattr("vllm_autotuner.control.run.service_tick.decide", defective)
    while "ServiceFailed" not in found.told:
        await found.tick()
    at = found.change("broken")
    await found.ticks(5)
    assert found.change("broken") == at
    assert at is not None
    assert at.state is state
    assert find_condition(found.status("chat").conditions, ConditionType.READY) is not None
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 6.0' in found.metrics.page().decode()
    failing = False
    await found.ticks(40)
    assert [entry.outcome for entry in found.status("broken").history] == [Outcome.SUCCEEDED]
    assert found.seats("broken") == 128
    assert found.told.count("ServiceFailed") == 1


@pytest.mark.fault("T39")
@pytest.mark.parametrize("case", [case for case in CASES if case.name == "chat"], ids=lambda case: case.id)
async def test_back_at_the_former_spec_the_workload_is_the_very_same(case: Case) -> None:
    """Also what the API server would have refused: an older CRD may have let it in."""
    found = bed(load=lambda seats: Load())
    # The invariants are about specs that can be read.
    found.api.stored = lambda name, by_hand: None
    set_spec(found, dict(SMALLEST))
    await turn(found, 6)
    before = found.deployment()["spec"]
    set_spec(found, changed(SMALLEST, case.changes))
    await turn(found, 4)
    set_spec(found, dict(SMALLEST))
    await turn(found, 8)
    status = found.status()
    assert found.deployment()["spec"] == before
    assert status.effective is not None
    assert (
        status.effective.config_hash == found.deployment()["metadata"]["annotations"]["vllm-autotuner.dev/config-hash"]
    )
    assert find_condition(status.conditions, ConditionType.STALLED) is None
    ready = find_condition(status.conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status.value == "True"


def set_spec(found: Bed, spec: dict[str, Any]) -> None:
    def write(body: Body) -> None:
        body["spec"] = spec

    found.api.older_crd = True
    found.api.edit("chat", write)


async def turn(found: Bed, ticks: int) -> None:
    for _ in range(ticks):
        found.api.pass_time(TICK)
        found.api.tell(found.registry)
        await found.loop.tick()
