"""The fleet loop over a model of its world: order, conflicts, isolation, silence, leadership."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import httpx
import pytest
from tests.api.cases import changed
from tests.control.adopting_bed import ADOPTING
from tests.control.cluster_model import ApiServer, Body, Killed, Load
from tests.control.desk import SCALED, SPEC, START, TICK
from tests.control.loop_bed import Bed, bed, queueing, service_body
from tests.patience import PATIENCE

from vllm_autotuner.api.annotations import APPROVE, PAUSE
from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.budgets import ANSWER_SERIES
from vllm_autotuner.cluster.errors import Conflict, Refused, Unavailable
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.tick import Decision, decide
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read import inputs_reader, workload_state
from vllm_autotuner.control.read import metrics_sources as sources_module
from vllm_autotuner.control.read.inputs_reader import InputsReader, Look
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.read.views import service_entry
from vllm_autotuner.control.run import fleet_loop
from vllm_autotuner.control.run.effects import Urgency
from vllm_autotuner.control.run.fleet_loop import HELD_LOOKS, FleetLoop, run_fleet_loop
from vllm_autotuner.control.write.workload_writer import LOOK_AFTER
from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.observation.answer_reader import Allowance
from vllm_autotuner.observation.errors import TooLarge, Unreachable
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.observation.prometheus import PrometheusAddress
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import SeriesMemory
from vllm_autotuner.observation.snapshot import FleetSnapshot

NO_ANSWER = NoData(Absence.PROVIDER_ERROR, "http://prometheus answered 503")
TOLD_AFTER = HELD_LOOKS + 1
"""Ticks with a failed look after which it is told."""
STEADY = 6
"""Ticks after which a healthy service has its Deployment, its pods and its diagnosis."""


def writes(found: Bed) -> int:
    return sum(count for verb, count in found.api.requests.items() if not verb.startswith(("read", "log")))


def ready(found: Bed, name: str = "chat") -> bool:
    condition = find_condition(found.status(name).conditions, ConditionType.READY)
    return condition is not None and condition.status.value == "True"


def metrics_available(found: Bed, name: str = "chat") -> tuple[str, str]:
    condition = find_condition(found.status(name).conditions, ConditionType.METRICS_AVAILABLE)
    assert condition is not None
    return condition.status.value, condition.reason


# From nothing to serving


async def test_a_new_object_gets_its_workload_and_becomes_ready() -> None:
    found = bed()
    await found.tick()
    assert found.api.requests["apply Deployment"] == found.api.requests["apply Service"] == 1
    assert not ready(found)
    await found.ticks(STEADY)
    assert ready(found)
    assert (found.seats(), len(found.api.pods)) == (64, 1)


async def test_a_steady_state_writes_nothing() -> None:
    found = bed(load=lambda seats: Load())
    await found.ticks(STEADY)
    before = dict(found.api.requests)
    await found.ticks(100)
    looks = found.api.requests.pop("read Service")
    assert found.api.requests == before, "not even another read"
    assert looks <= 100 * TICK / LOOK_AFTER


async def test_a_standing_recommendation_writes_nothing() -> None:
    found = bed(spec={"tuning.mode": "Recommend"}, load=queueing)
    await found.ticks(STEADY)
    assert found.told == ["Recommended"]
    before = writes(found)
    await found.ticks(50)
    assert writes(found) == before


async def test_a_whole_change_from_metrics_to_deployment() -> None:
    found = bed(load=queueing)
    await found.ticks(40)
    assert (found.seats(), len(found.api.pods)) == (128, 1)
    states = ("Started", "Verifying", "WarmingUp", "Analyzing", "Baking", "Succeeded")
    assert found.told == [f"Change{name}" for name in states]
    page = found.metrics.page().decode()
    assert 'vllm_autotuner_changes_total{knob="maxNumSeqs",outcome="Succeeded"} 1.0' in page
    assert 'vllm_autotuner_services{diagnosis="Healthy"} 1.0' in page


async def test_the_old_pod_serves_until_the_new_one_does() -> None:
    found = bed(load=queueing)
    served = []
    for _ in range(30):
        await found.tick()
        served.append(sum(pod.ready_since is not None for pod in found.api.pods))
    assert min(served[STEADY:]) >= 1


async def test_fixed_replicas_are_what_the_user_wrote() -> None:
    found = bed(spec={"replicas": 3, "tuning.maxNumSeqs": {"min": 1, "max": 64}}, load=queueing)
    await found.ticks(20)
    found.api.edit("chat", lambda body: body["spec"].update(replicas=2))
    await found.ticks(20)
    assert {text.split(" x ")[1] for text in found.api.applies} == {"2", "3"}
    assert (found.deployment()["spec"]["replicas"], len(found.api.pods)) == (2, 2)


async def test_replicas_follow_the_demand() -> None:
    found = bed(spec={**SCALED, "tuning.maxNumSeqs": ...}, load=queueing)
    await found.ticks(STEADY + 4)
    assert found.deployment()["spec"]["replicas"] > 1
    page = found.metrics.page().decode()
    assert 'vllm_autotuner_desired_replicas{name="chat",namespace="prod"}' in page


async def test_a_deleted_service_leaves_no_numbers_behind() -> None:
    found = bed(spec=SCALED)
    await found.ticks(STEADY)
    assert "desired_replicas{" in found.metrics.page().decode()
    body = found.api.objects.pop(("VLLMService", "chat"))
    found.registry.services.evict(Key("prod", "chat"), uid=body["metadata"]["uid"])
    await found.loop.tick()
    assert "desired_replicas{" not in found.metrics.page().decode()
    assert "vllm_autotuner_services{" not in found.metrics.page().decode()


# Order and crashes between


async def test_nothing_is_applied_before_its_intent_is_written() -> None:
    found = bed(load=queueing)
    order: list[str] = []

    def note(verb: str, name: str) -> None:
        order.append(verb)

    found.api.refuses = note
    await found.ticks(5)
    assert order[:3] == ["status", "apply Deployment", "apply Service"]
    began = order.index("event")
    assert order[began - 1 : began + 2] == ["status", "event", "apply Deployment"]


@pytest.mark.fault("T03")
async def test_a_write_without_an_answer_is_found_done() -> None:
    """T03: the response is lost after the commit."""
    found = bed(load=queueing)
    found.api.kill = (1, "after")
    with pytest.raises(Killed):
        await found.ticks(3)
    found.api.kill = None
    found.restart()
    await found.ticks(30)
    assert found.seats() == 128
    assert found.api.applies.total() == 2


# Conflicts


@pytest.mark.fault("T07")
async def test_after_a_conflict_it_is_decided_again_from_a_fresh_read() -> None:
    """T07: somebody wrote the object between our look and our write."""
    found = bed(load=queueing)
    await found.ticks(4)

    def somebody_annotates(body: Body) -> None:
        body["metadata"].setdefault("annotations", {})["team"] = "search"

    bumped = False

    def bump(verb: str, name: str) -> None:
        nonlocal bumped
        if verb == "status" and not bumped:
            bumped = True
            found.api.edit("chat", somebody_annotates)

    found.api.refuses = bump
    reads = found.api.requests["read"]
    await found.tick()
    assert bumped
    assert found.api.requests["read"] == reads + 2, "after the conflict, and before the Deployment is touched"
    assert found.change() is not None
    assert found.api.objects["VLLMService", "chat"]["metadata"]["annotations"] == {"team": "search"}


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda body: body["spec"].update(paused=True), id="by spec"),
        pytest.param(lambda body: body["metadata"].update(annotations={PAUSE: "true"}), id="by annotation"),
    ],
)
async def test_a_pause_that_came_with_the_conflict_is_obeyed(ask: Callable[[Body], None]) -> None:
    found = bed(load=queueing)
    await found.ticks(3)
    asked = False

    def pause(verb: str, name: str) -> None:
        nonlocal asked
        if verb == "status" and not asked:
            asked = True
            found.api.edit("chat", ask)

    found.api.refuses = pause
    await found.ticks(3)
    assert found.change() is None
    assert found.seats() == 64


@pytest.mark.fault("T07")
async def test_a_neighbour_who_writes_metadata_all_the_time_does_not_keep_a_decision_from_being_written() -> None:
    """Three of four times he was there between our read and our write; each decision is written in its tick."""
    found = bed(load=queueing)
    writes = 0

    def beat(verb: str, name: str) -> None:
        nonlocal writes
        writes += verb == "status"
        if verb == "status" and writes % 4:
            found.api.edit("chat", lambda body: body["metadata"].update(annotations={"example.com/beat": str(writes)}))

    found.api.refuses = beat
    await found.ticks(1)
    assert "conditions" in found.api.objects["VLLMService", "chat"]["status"]
    await found.ticks(59)
    assert found.seats() == 128
    assert len(found.status().history) == 1


@pytest.mark.fault("T07")
@pytest.mark.parametrize("kept", [64, 0])
async def test_where_many_are_on_their_way_a_conflict_of_a_report_is_for_the_next_tick(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of the others is not their metrics, which an answer in the same tick would need."""
    monkeypatch.setattr(fleet_loop, "KEPT_MEASURED", kept)
    found, edited = bed(load=queueing), False
    await found.ticks(1)
    before = found.status()

    def edit(verb: str, name: str) -> None:
        nonlocal edited
        if verb == "status" and not edited:
            edited = True
            found.api.edit("chat", lambda body: body["spec"].update(paused=True))

    found.api.refuses = edit
    await found.tick()
    assert edited
    assert (found.status() != before) is bool(kept)
    await found.tick()
    assert found.status() != before


@pytest.mark.fault("T07")
async def test_endless_conflicts_change_nothing_and_lose_nothing() -> None:
    found = bed("busy", "chat", load=queueing)
    await found.ticks(3)
    found.api.refuses = lambda verb, name: (
        Conflict("changed", reason="Conflict", status=409) if (verb, name) == ("status", "busy") else None
    )
    await found.ticks(10)
    assert (found.change("busy"), found.seats("busy")) == (None, 64)
    assert found.change("chat") is not None
    found.api.refuses = lambda verb, name: None
    await found.ticks(60)
    assert found.seats("busy") == found.seats("chat") == 128
    assert len(found.status("busy").history) == 1


@pytest.mark.fault("T07")
async def test_conflicts_do_not_count_a_window_twice() -> None:
    """T07: counters of an analysis are what they are without conflicts."""

    async def history(conflicts: bool) -> list[Any]:
        found = bed(load=queueing)
        turn = 0

        def every_first(verb: str, name: str) -> Exception | None:
            nonlocal turn
            turn += verb == "status"
            return Conflict("changed", reason="Conflict", status=409) if verb == "status" and turn % 2 else None

        if conflicts:
            found.api.refuses = every_first
        await found.ticks(30)
        return [(entry.outcome, entry.reason, entry.started_at) for entry in found.status().history]

    assert await history(conflicts=True) == await history(conflicts=False)


# One object and the others


@pytest.mark.fault("T37")
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RuntimeError("a defect"), id="a defect of ours"),
        pytest.param(Unavailable("no answer", reason="NoAnswer"), id="no answer"),
        pytest.param(Refused("forbidden", reason="Forbidden", status=403), id="a permission that is missing"),
    ],
)
async def test_one_object_never_stops_the_others(error: Exception) -> None:
    found = bed("broken", "chat", load=queueing)
    found.api.refuses = lambda verb, name: error if name == "broken" else None
    await found.ticks(30)
    assert found.seats("chat") == 128
    assert ("Deployment", "broken") not in found.api.objects
    found.api.refuses = lambda verb, name: None
    await found.ticks(30)
    assert found.seats("broken") == 128


@pytest.mark.fault("T37")
async def test_a_defect_is_told_on_its_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bed("broken", "chat")

    def defective(inputs: Inputs) -> Decision:
        if inputs.service.metadata.name == "broken":
            raise ZeroDivisionError
        return decide(inputs)

    monkeypatch.setattr("vllm_autotuner.control.run.service_tick.decide", defective)
    await found.ticks(10)
    assert found.told == ["ServiceFailed"]
    assert ready(found, "chat")
    assert 'vllm_autotuner_ticks_total{outcome="Failed"} 10.0' in found.metrics.page().decode()


async def test_what_is_gone_is_forgotten_and_not_created_again() -> None:
    found = bed()
    await found.ticks(STEADY)
    del found.api.objects["VLLMService", "chat"]
    found.api.silent = NO_ANSWER
    applied = found.api.applies.total()
    await found.ticks(TOLD_AFTER)
    assert found.registry.services.get(Key("prod", "chat")) is None
    await found.ticks(3)
    assert found.api.applies.total() == applied


async def test_one_failed_look_is_no_blindness() -> None:
    found = bed()
    await found.ticks(STEADY)
    written, before = writes(found), found.status()
    found.api.silent = NO_ANSWER
    await found.ticks(TOLD_AFTER - 1)
    assert writes(found) == written
    assert found.status() == before
    found.api.silent = None
    await found.tick()
    assert metrics_available(found)[0] == "True"


async def test_looks_that_fail_for_a_whole_window_are_told_once() -> None:
    found = bed()
    await found.ticks(STEADY)
    written = writes(found)
    found.api.silent = NO_ANSWER
    await found.ticks(TOLD_AFTER)
    assert metrics_available(found) == ("False", "ProviderError")
    told = writes(found)
    assert told > written
    await found.ticks(3)
    assert writes(found) == told


async def test_what_is_on_its_way_when_a_tick_begins_is_decided_in_the_next_one() -> None:
    """It arrives during the tick, whose snapshot is older: what was restored would be restored and announced again."""
    found = bed()
    await found.ticks(STEADY)
    arrived = asyncio.Event()

    async def slow_write() -> None:
        await arrived.wait()

    found.loop._effects.add("uid-chat", slow_write, urgency=Urgency.CHANGE)
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    found.api.tell(found.registry)
    before = found.seats()
    await asyncio.sleep(0)  # it has begun
    arrived.set()  # and ends when the tick yields for the first time, after its snapshot
    await found.loop.tick()
    assert found.seats() == before
    await found.loop.tick()
    assert found.seats() == 32


async def follows_an_edit_of_code_beside(found: Bed, monkeypatch: pytest.MonkeyPatch, *, slow: str) -> None:
    """While a request about chat, of the ApiServer's method `slow`, is not answered."""
    found.api.edit("code", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    found.api.tell(found.registry)
    asked, goes_on, answer = asyncio.Event(), asyncio.Event(), getattr(found.api, slow)

    async def waits(*about: Any, **how: Any) -> Any:
        # An Event is about an object, a status is of a namespace and a name.
        name = about[0]["metadata"]["name"] if isinstance(about[0], dict) else about[1]
        if name == "chat":
            asked.set()
            await goes_on.wait()
        return await answer(*about, **how)

    monkeypatch.setattr(found.api, slow, waits)
    tick = asyncio.create_task(found.loop.tick())
    await asked.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not tick.done()
    assert found.seats("code") == 32
    goes_on.set()
    await tick


async def test_what_is_announced_late_holds_up_no_other_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader announces recent changes again; where each post takes seconds, those of a fleet take minutes."""
    found = bed("chat", "code", load=queueing)
    while found.change() is None:
        await found.tick()
    found.restart()
    await follows_an_edit_of_code_beside(found, monkeypatch, slow="post_event")


@pytest.mark.parametrize("kind", ["it fails", "it was deleted"])
async def test_an_event_about_what_cannot_be_decided_holds_up_no_decision(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A defect may be one of all services of a tenant: an Event each, in each tick, before others are decided."""
    found = bed("chat", "code", spec={"deletionPolicy": "Retain"}, load=queueing)
    while found.change() is None or found.state() == "Provisioning":
        await found.tick()
    if kind == "it fails":
        read = InputsReader.read

        async def fails_for_one(self: InputsReader, service: VLLMService, **how: Any) -> Inputs:
            if service.metadata.name == "chat":
                raise ZeroDivisionError
            return await read(self, service, **how)

        monkeypatch.setattr(InputsReader, "read", fails_for_one)
    else:
        body = found.api.objects.pop(("VLLMService", "chat"))
        found.registry.services.evict(Key("prod", "chat"), uid=body["metadata"]["uid"])
    await follows_an_edit_of_code_beside(found, monkeypatch, slow="post_event")


@pytest.mark.parametrize(("model", "experts"), [("Qwen/Qwen3-30B-A3B", Experts(128, 8)), ("Qwen/Qwen3-0.6B", None)])
async def test_the_experts_of_a_known_mixture_reach_the_windows_that_are_fitted(
    monkeypatch: pytest.MonkeyPatch, model: str, experts: Experts | None
) -> None:
    found, read, seen = bed("chat", spec={"model": {"name": model}}, load=queueing), InputsReader.read, list[Inputs]()
    observed = workload_state.observed

    async def noted(self: InputsReader, service: VLLMService, **how: Any) -> Inputs:
        seen.append(await read(self, service, **how))
        return seen[-1]

    def with_a_window(*given: Any, **how: Any) -> Observation:
        return replace(observed(*given, **how), steps=(StepPoint(running=8.0, itl=0.02, tokens=100.0),))

    monkeypatch.setattr(InputsReader, "read", noted)
    monkeypatch.setattr(inputs_reader, "observed", with_a_window)
    await found.ticks(2)
    assert [point.experts for point in seen[-1].observation.steps] == [experts]


@pytest.mark.parametrize("kind", ["its spec cannot be read", "it names a Deployment that is not there"])
async def test_what_can_only_be_told_of_a_service_holds_up_no_other_decision(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without the permission to read Deployments, or with an older CRD, it is told of a fleet at once."""
    found = bed("chat", "code", load=queueing)
    while found.change() is None:
        await found.tick()
    if kind == "its spec cannot be read":
        found.api.older_crd = True
        found.api.edit("chat", lambda body: body["spec"]["engine"].update(image=7))
    else:
        found.api.edit("chat", lambda body: body.update(spec=changed(SPEC, ADOPTING)))
    await follows_an_edit_of_code_beside(found, monkeypatch, slow="write_status")


async def test_beside_a_running_change_no_free_gpus_are_listed() -> None:
    """Its verdict would wait for a list of all pods, and nothing is proposed meanwhile."""
    found = bed(load=queueing, shows_nodes=True)
    while found.change() is None:
        await found.tick()
    listed = found.api.lists["Pod"]
    assert listed > 0
    while found.change() is not None:
        assert found.api.lists["Pod"] == listed
        await found.tick()


async def test_a_part_of_the_fleet_that_stays_blind_is_told_although_others_are_seen() -> None:
    """Each part of a fleet has its own look: one that succeeds says nothing about another that fails."""
    found = bed("chat", "code")
    await found.ticks(STEADY)
    loop, fleet = found.loop, found.registry.snapshot()
    chat, code = (fleet.services[Key("prod", name)] for name in ("chat", "code"))
    for at in range(HELD_LOOKS + 1):
        blind = FleetSnapshot(at=15.0 * at, state_window=30, scrape_interval=15.0, engines={}, error=NO_ANSWER)
        seen = replace(blind, error=None)
        waits = loop._waits_for_metrics(chat, Look(fleet=fleet, snapshots={"": blind}))
        assert not loop._waits_for_metrics(code, Look(fleet=fleet, snapshots={"": seen}))
        assert waits is (at < HELD_LOOKS)


async def test_what_somebody_writes_is_decided_although_the_look_has_failed() -> None:
    found = bed()
    await found.ticks(STEADY)
    found.api.silent = NO_ANSWER
    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    found.api.tell(found.registry)
    await found.tick()
    assert found.seats() == 32


async def test_what_is_being_deleted_is_left_alone() -> None:
    found = bed()
    found.api.edit("chat", lambda body: body["metadata"].update(deletionTimestamp="2026-11-21T00:00:00Z"))
    found.api.tell(found.registry)
    await found.loop.tick()
    assert writes(found) == 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda body: body["spec"].update(replicas=-1), "InvalidSpec", id="a spec that cannot be read"),
        pytest.param(
            lambda body: body.update(status={"history": "gone"}), "InvalidStatus", id="a status that cannot be read"
        ),
        pytest.param(
            lambda body: body.update(spec={"targetRef": {"name": "chat"}}),
            "TargetNotFound",
            id="a Deployment to adopt that is not there",
        ),
    ],
)
async def test_what_cannot_be_acted_upon_is_told_once(spoil: Callable[[Body], None], reason: str) -> None:
    body = service_body()
    spoil(body)
    api = ApiServer(now=START)
    api.create(body)
    found = Bed(api)
    for _ in range(5):
        api.pass_time(TICK)
        api.tell(found.registry)
        await found.loop.tick()
    assert api.requests["status"] == sum(count for verb, count in api.requests.items() if "read" not in verb) == 1
    conditions = api.objects["VLLMService", "chat"]["status"]["conditions"]
    assert {one["type"]: one["reason"] for one in conditions}["Stalled"] == reason


async def test_a_spec_that_is_repaired_is_served() -> None:
    found = bed(spec={"replicas": -1})
    await found.ticks(2)
    found.api.edit("chat", lambda body: body["spec"].update(replicas=1))
    await found.ticks(STEADY)
    assert ready(found)


async def test_many_services_are_looked_at_in_one_tick() -> None:
    names = [f"chat-{number}" for number in range(120)]
    found = bed(*names)
    await found.tick()
    assert found.api.requests["apply Deployment"] == 120


# Without metrics


async def test_prometheus_errors_freeze_and_pass() -> None:
    found = bed(spec={**SCALED, "tuning.mode": "Automatic"}, load=queueing)
    found.api.silent = NO_ANSWER
    await found.ticks(STEADY)
    assert metrics_available(found) == ("False", "ProviderError")
    assert ready(found)
    applied, before = dict(found.api.applies), writes(found)
    await found.ticks(40)
    assert dict(found.api.applies) == applied
    assert writes(found) == before
    found.api.silent = None
    await found.ticks(2)
    assert metrics_available(found) == ("True", "MetricsFresh")
    await found.ticks(10)
    assert dict(found.api.applies) != applied, "it goes on without a restart"
    assert 'prometheus_errors_total{kind="Failed",source="default"}' in found.metrics.page().decode()


@pytest.mark.fault("T10")
async def test_prometheus_errors_under_a_change_hold_it() -> None:
    """T10: a good candidate is not rolled back because Prometheus restarts."""
    found = bed(load=queueing)
    while (change := found.change()) is None or change.state is not ChangeState.ANALYZING:
        await found.tick()
    found.api.silent = NO_ANSWER
    await found.ticks(10)
    held = found.change()
    assert held is not None
    assert (held.state, found.seats()) == (ChangeState.HELD, 128)
    found.api.silent = None
    await found.ticks(30)
    assert [entry.outcome.value for entry in found.status().history] == ["Succeeded"]


# Leadership


async def test_a_follower_looks_at_nothing() -> None:
    found = bed()
    found.leader.is_leader = False
    await found.loop.tick()
    assert found.api.requests.total() == 0
    assert "vllm_autotuner_leader 0.0" in found.metrics.page().decode()


async def test_a_process_that_leads_again_watches_a_window_first() -> None:
    found = bed(spec={"tuning.mode": "Approve"}, load=queueing)
    await found.ticks(STEADY)
    recommendation = found.status().recommendation
    assert recommendation is not None
    found.leader.is_leader = False
    await found.tick()
    found.leader.is_leader, found.leader.epoch = True, 2
    found.api.edit("chat", lambda body: body["metadata"].update(annotations={APPROVE: recommendation.id}))
    await found.ticks(2)
    assert found.change() is None
    assert found.api.requests["apply Service"] == 2, "another leader may have lost it meanwhile"
    await found.tick()
    assert found.change() is not None


async def test_reports_of_unreadable_objects_take_no_other_services_time() -> None:
    """A status write of an object as large as etcd takes lasts 3 s, and a tenant may have many of them."""
    names = [f"a-{number}" for number in range(8)]
    found = bed(*names, "chat")
    await found.ticks(1)
    for name in names:
        found.api.edit(name, lambda body: body["spec"].update(podTemplate={"spec": {"hostNetwork": True}}))
    write, written = found.api.write_status, list[str]()

    async def slow(namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        written.append(name)
        found.api.now += timedelta(seconds=3 if name in names else 0)
        return await write(namespace, name, status, resource_version=resource_version)

    found.api.write_status = slow  # type: ignore[method-assign]
    found.api.edit("chat", lambda body: body["spec"].update(replicas=2))
    await found.tick()
    assert written[0] == "chat"
    assert len(written) == 1 + 2, "the rest is for a later tick"
    await found.ticks(5)
    assert set(names) <= set(written)


async def test_a_tick_that_is_late_reports_no_unreadable_object_or_one() -> None:
    """A look that runs into its timeout and slow writes, in one tick, took 19 s."""
    names = [f"a-{number}" for number in range(4)]
    found = bed(*names, "chat")
    await found.ticks(1)
    for name in names:
        found.api.edit(name, lambda body: body["spec"].update(podTemplate={"spec": {"hostNetwork": True}}))
    write, look, written = found.api.write_status, found.api.look, list[str]()

    async def slow(namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        written.append(name)
        found.api.now += timedelta(seconds=3 if name in names else 0)
        return await write(namespace, name, status, resource_version=resource_version)

    async def late(*arguments: Any, **named: Any) -> Any:
        found.api.now += timedelta(seconds=10)
        return await look(*arguments, **named)

    found.api.write_status = slow  # type: ignore[method-assign]
    found.api.look = late  # type: ignore[method-assign]
    reported = []
    for _ in range(8):
        await found.tick()
        reported.append(len({*written} & {*names}))
    assert reported == [0, 1, 1, 2, 2, 3, 3, 4]


# A clock that is set back


async def test_after_the_clock_was_set_back_changes_begin_after_one_window() -> None:
    found = bed()
    await found.ticks(1)
    found.api.now -= timedelta(days=1)
    found.api.load = queueing
    await found.ticks(STEADY)
    assert found.change() is not None


async def test_after_the_clock_was_set_back_a_silent_source_is_told_as_soon_as_ever() -> None:
    found = bed()
    await found.ticks(STEADY)
    found.api.silent = NO_ANSWER
    await found.ticks(1)
    found.api.now -= timedelta(days=1)
    await found.ticks(TOLD_AFTER)
    assert metrics_available(found)[0] == "False"


# The sources of metrics


class Scripted:
    """A Prometheus whose every answer is the same."""

    def __init__(self, answer: Sequence[Series] | Exception) -> None:
        self.answer = answer
        self.asked = 0
        self.asked_about: list[frozenset[str]] = []
        self.takes = 0.0
        """Seconds until it answers."""
        self.namespaces: set[str] = set()
        """About which it was asked in the last look."""
        self.at = 0.0
        self.large: set[str] = set()
        """The namespaces that have more series than are read."""
        self.counts: dict[str, int] = {}
        self.counted: list[Sequence[str]] = []
        self.closed = False

    async def ask(
        self,
        question: Question,
        *,
        at: float,
        namespaces: Sequence[str] = (),
        allowance: Allowance | None = None,
        memory: SeriesMemory | None = None,
    ) -> Sequence[Series]:
        self.asked += 1
        self.asked_about.append(frozenset(namespaces))
        if self.takes:
            await asyncio.sleep(self.takes)
        # A namespace that was too much is not asked about again: only the last of several tries counts.
        again = self.at == at and not self.large & self.namespaces
        self.namespaces = self.namespaces | {*namespaces} if again else {*namespaces}
        self.at = at
        if isinstance(self.answer, Exception):
            raise self.answer
        if allowance is not None and (large := self.large & {*namespaces}):
            for each in sorted(large):
                allowance.take([(Series(labels={"namespace": each}, times=[at], values=[1.0]), 10**6)], answer=[])
            allowance.check()
        if memory is not None:
            for one in self.answer:
                memory.take(json.dumps(one.labels).encode(), one.labels, list(zip(one.times, one.values, strict=True)))
        return self.answer

    async def count(self, namespaces: Sequence[str], *, at: float) -> Sequence[Series]:
        self.counted.append(namespaces)
        return [
            Series(labels={"namespace": each}, times=[at], values=[float(count)]) for each, count in self.counts.items()
        ]

    async def close(self) -> None:
        self.closed = True


def sources(
    monkeypatch: pytest.MonkeyPatch, **answers: Sequence[Series] | Exception
) -> tuple[Sources, dict[str, Scripted]]:
    made: dict[str, Scripted] = {}

    def client(address: PrometheusAddress, *, transport: httpx.AsyncBaseTransport | None = None) -> Scripted:
        name = address.url.removeprefix("http://")
        made[name] = Scripted(answers.get(name, []))
        return made[name]

    monkeypatch.setattr(sources_module, "PrometheusSource", client)
    settings = OperatorSettings(
        prometheus=PrometheusAddress(url="http://default"),
        sources={"eu": PrometheusAddress(url="http://eu"), "us": PrometheusAddress(url="http://us")},
        identity="test_1",
    )
    return Sources(settings), made


def using(*names: str) -> list[Any]:
    found = []
    for number, name in enumerate(names):
        spec = {"prometheus": {"source": name}} if name else {}
        body = service_body(f"chat-{number}", spec=spec)
        found.append(service_entry({**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}))
    return found


def entry_in(namespace: str) -> Any:
    body = service_body("chat-elsewhere")
    return service_entry({**body, "metadata": {**body["metadata"], "namespace": namespace, "resourceVersion": "1"}})


async def test_where_every_service_rests_only_gauges_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch)
    snapshot = (await found.look([*using(""), entry_in("other")], at=1000.0, rests=lambda entry, quiet: True))[""]
    assert made["default"].asked_about == [{"other", "prod"}]
    assert (snapshot.error, snapshot.engines) == (None, {})


async def test_what_rests_in_another_namespace_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch)
    entries = [*using(""), entry_in("other")]
    await found.look(entries, at=1000.0, rests=lambda entry, quiet: entry.namespace == "other")
    first, *others = made["default"].asked_about
    assert first == {"other", "prod"}
    assert others
    assert {*others} == {frozenset({"prod"})}


async def test_a_source_that_does_not_answer_is_waited_for_once_in_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large fleet is looked at in parts: a timeout of each would be minutes without any decision."""
    found, made = sources(monkeypatch, default=Unreachable("http://default did not answer"))
    made["default"].takes, found._patience[""] = 0.02, 0.01
    for _ in range(3):
        error = (await found.look(using(""), at=1000.0))[""].error
        assert error is not None
        assert "answer" in error.why
    assert made["default"].asked == 1
    found.begin_tick()
    await found.look(using(""), at=1015.0)
    assert made["default"].asked == 2


async def test_a_source_that_fails_at_once_is_asked_about_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch, default=Unreachable("http://default refused the connection"))
    for _ in range(3):
        await found.look(using(""), at=1000.0)
    assert made["default"].asked == 3


async def test_a_namespace_with_too_many_series_is_not_asked_about_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, made = sources(monkeypatch)
    made["default"].large = {"prod"}
    entries = [*using(""), entry_in("other")]
    snapshot = (await found.look(entries, at=1000.0))[""]
    assert snapshot.error is None, "the others are seen in the same tick"
    assert made["default"].namespaces == {"other"}
    await found.look(entries, at=1015.0)
    assert made["default"].namespaces == {"other"}
    made["default"].large = set()
    await found.look(entries, at=1600.0)
    assert made["default"].namespaces == {"other", "prod"}


async def test_while_a_namespace_is_not_asked_about_its_services_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch)
    made["default"].large = {"prod"}
    entries = [*using(""), entry_in("other")]
    for at in (1000.0, 1015.0, 1030.0):
        snapshots = await found.look(entries, at=at)
        error = found.of(entries[0].service, snapshots).error
        assert error is not None
        assert "namespace prod has more series than are read" in error.why
        assert found.of(entries[1].service, snapshots).error is None


async def test_a_namespace_alone_with_too_many_series_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch)
    made["default"].large = {"prod"}
    error = (await found.look(using(""), at=1000.0))[""].error
    assert error is not None
    assert "more series than are read" in error.why


async def test_as_many_namespaces_are_left_out_at_once_as_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, fifty of them would keep everybody blind for minutes."""
    found, made = sources(monkeypatch)
    source = made["default"]
    source.large = {f"large-{number}" for number in range(10)}
    source.counts = dict.fromkeys(sorted(source.large)[1:], ANSWER_SERIES.limit) | {"other": 157}
    entries = [entry_in(name) for name in [*source.large, "other"]]
    assert (await found.look(entries, at=1000.0))[""].error is None
    assert list(source.namespaces) == ["other"]
    assert len(source.counted) == 1


async def test_a_namespace_for_which_looks_fail_is_not_asked_about_after_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, made = sources(monkeypatch, default=TooLarge("too much", large=frozenset({"prod"})))
    entries = [*using(""), entry_in("other")]
    for at in (1000.0, 1015.0):
        assert (await found.look(entries, at=at))[""].error is not None
        assert made["default"].namespaces == {"other", "prod"}, "one failure may be the server's"
    await found.look(entries, at=1030.0)
    assert made["default"].namespaces == {"other"}


async def test_each_source_in_use_is_asked_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = sources(monkeypatch)
    entries = using("", "eu", "eu")
    snapshots = await found.look(entries, at=1000.0)
    assert set(snapshots) == {"", "eu"}
    assert made["default"].asked == made["eu"].asked > 0 == made["us"].asked
    assert found.of(entries[1].service, snapshots) is snapshots["eu"]
    await found.close()
    assert all(client.closed for client in made.values())


async def test_a_source_that_fails_blinds_only_those_who_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = sources(monkeypatch, eu=Unreachable("cannot reach http://eu"))
    snapshots = await found.look(using("", "eu"), at=1000.0)
    assert snapshots[""].error is None
    error = snapshots["eu"].error
    assert error is not None
    assert (error.absence, error.why) == (Absence.PROVIDER_ERROR, "cannot reach http://eu")


async def test_an_unforeseen_series_ends_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = [Series(labels={"__name__": "vllm:num_requests_running"}, times=[], values=[])]
    found, _ = sources(monkeypatch, eu=strange, us=[Series(labels=cast(Any, None), times=[999.0], values=[1.0])])
    snapshots = await found.look(using("eu", "us", ""), at=1000.0)
    assert snapshots[""].error is None
    error = snapshots["us"].error
    assert error is not None
    assert "failed to parse a response" in error.why


async def test_an_unconfigured_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = sources(monkeypatch)
    entries = using("mars")
    snapshots = await found.look(entries, at=1000.0)
    error = found.of(entries[0].service, snapshots).error
    assert error is not None
    assert "metrics source mars is not configured" in error.why


async def test_a_source_that_was_not_asked_yet_is_no_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = sources(monkeypatch)
    snapshots = await found.look(using(""), at=1000.0)
    error = found.of(using("eu")[0].service, snapshots).error
    assert error is not None
    assert "has not been queried yet" in error.why


# The loop around the tick


async def test_it_ends_when_asked_and_gives_its_connections_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found, stop = bed(), asyncio.Event()
    _, made = sources(monkeypatch)
    ticks = 0

    async def tick(self: FleetLoop) -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            stop.set()

    monkeypatch.setattr(FleetLoop, "tick", tick)
    context = replace(found.context, monotonic=iter(range(0, 10_000, 100)).__next__)
    async with asyncio.timeout(PATIENCE):
        await run_fleet_loop(context, stop)
    assert ticks == 3
    assert made["127.0.0.1:9"].closed


async def test_of_many_new_services_each_has_a_status_before_any_has_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"svc-{number:02}" for number in range(40)]
    found, order = bed(*names), list[str]()
    write_status, apply = found.api.write_status, found.api.apply

    async def writing(namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        order.append("status")
        return await write_status(namespace, name, status, resource_version=resource_version)

    async def applying(body: Body, *, epoch: int) -> Body:
        order.append(body["kind"])
        return await apply(body, epoch=epoch)

    monkeypatch.setattr(found.api, "write_status", writing)
    monkeypatch.setattr(found.api, "apply", applying)
    await found.tick()
    assert order[: len(names)] == ["status"] * len(names)
    assert order[len(names) :].count("Deployment") == len(names)


async def test_a_new_leader_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its own beat a process that followed would let a running change wait for up to an interval."""
    found, stop, led = bed(), asyncio.Event(), list[bool]()
    found.leader.is_leader = False
    monkeypatch.setattr(fleet_loop, "FOLLOWING", 0.01)

    async def tick(loop: FleetLoop) -> None:
        led.append(found.leader.is_leader)
        if found.leader.is_leader:
            stop.set()
        found.leader.is_leader = len(led) >= 3

    monkeypatch.setattr(FleetLoop, "tick", tick)
    async with asyncio.timeout(5):  # a third of the interval
        await run_fleet_loop(found.context, stop)
    assert led == [False, False, False, True]
