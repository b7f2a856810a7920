"""Canaries from the first look to the last deletion: the real fleet loop over the model of its world."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from tests.api.cases import changed
from tests.control.adopting_bed import ADOPTING, NAME, AdoptingServer, theirs
from tests.control.cluster_model import ApiServer, Body, Load, seats_of
from tests.control.desk import START
from tests.control.loop_bed import Bed, bed, queueing, service_body, slow_beyond_64
from typing_extensions import override

from vllm_autotuner.api.conditions import ConditionType, find_condition
from vllm_autotuner.api.status import ChangeState, Outcome, Source
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.workload.labels import CHANGE, SERVICE, TRACK

ENOUGH = 60
"""Ticks after which each of these stories is over."""


def beside(replicas: int, *, spec: Mapping[str, Any] | None = None, **world: Any) -> Bed:
    """A service of so many replicas; `world`: fields of ApiServer."""
    return bed(spec={"replicas": replicas, **(spec or {})}, **{"load": queueing, **world})


async def until(found: Bed, *states: ChangeState | None, at_most: int = ENOUGH) -> None:
    for _ in range(at_most):
        await found.tick()
        change = found.change()
        if (change.state if change is not None else None) in states and found.status().observed_generation:
            return
    raise AssertionError(f"never {states}: {found.change()}, {found.status().history}")


async def reach(state: ChangeState, replicas: int = 3, **world: Any) -> Bed:
    found = beside(replicas, **world)
    await until(found, ChangeState.PROVISIONING)
    if state is not ChangeState.PROVISIONING:
        await until(found, state)
    return found


def extras(found: Bed) -> dict[str, int]:
    """The Deployments beside the service's own: by track, with the seats of their pod."""
    return {
        body["metadata"]["labels"][TRACK]: seats_of(body["spec"]["template"]["spec"]["containers"][0]["args"])
        for (kind, name), body in found.api.objects.items()
        if kind == "Deployment" and name not in ("chat", NAME)
    }


def serving(found: Bed, deployment: str = "chat") -> int:
    return sum(pod.ready_since is not None for pod in found.api.pods if pod.deployment == deployment)


class Both(AdoptingServer):
    """With Deployments of ours and one of somebody else's, which has no pods."""

    @override
    def _roll(self, name: str, body: Body) -> None:
        if name != NAME:
            ApiServer._roll(self, name, body)

    @override
    def tell(self, registry: Registry) -> None:
        ApiServer.tell(self, registry)


def ask(found: Bed, kind: str, nonce: str) -> None:
    """As a person does, by annotation."""
    annotations = {f"vllm-autotuner.dev/{kind}": nonce}
    found.api.edit("chat", lambda body: body["metadata"].setdefault("annotations", {}).update(annotations))


def outcomes(found: Bed) -> list[Outcome]:
    return [entry.outcome for entry in found.status().history]


@pytest.mark.parametrize("replicas", [2, 3])
async def test_a_canary_that_helps_is_followed_by_the_others(replicas: int) -> None:
    found = beside(replicas)
    fewest, trials = replicas, set()
    for tick in range(ENOUGH):
        await found.tick()
        trials |= set(extras(found))
        fewest = min(fewest, serving(found)) if tick > 4 else fewest
    assert fewest == replicas, "the service had fewer pods than it was given"
    assert trials == ({"canary"} if replicas == 2 else {"canary", "baseline"})
    assert (outcomes(found), found.seats(), extras(found)) == ([Outcome.SUCCEEDED], 128, {})
    assert set(found.api.deletes.values()) == {1}
    assert found.api.applies.total() == 2 + len(trials), "the service was rolled out once, each trial created once"
    assert found.told == [
        f"Change{name}"
        for name in ("Started", "Verifying", "WarmingUp", "Analyzing", "Promoting", "Baking", "Succeeded")
    ]
    status = found.status()
    assert status.effective is not None
    assert (status.effective.max_num_seqs, status.effective.source) == (128, Source.TUNED)
    assert "vllm_autotuner_orphans_removed_total 0.0" in found.metrics.page().decode()


@pytest.mark.parametrize("replicas", [2, 3])
async def test_a_canary_that_harms_goes_and_the_service_was_never_touched(replicas: int) -> None:
    found = await reach(ChangeState.ANALYZING, replicas, load=slow_beyond_64)
    before = found.deployment()["metadata"]["generation"]
    await until(found, None)
    await found.tick()
    assert (outcomes(found), found.seats(), extras(found)) == ([Outcome.ROLLED_BACK], 64, {})
    assert found.deployment()["metadata"]["generation"] == before == 1
    assert [one.candidate for one in found.status().failure_memory] == ["maxNumSeqs=128"]


@pytest.mark.fault("T17")
async def test_a_canary_that_does_not_start_goes_at_once() -> None:
    found = await reach(ChangeState.PROVISIONING, crashes=lambda seats: seats > 64)
    change = found.change()
    await until(found, None)
    assert change is not None
    assert change.deadline is not None
    assert found.api.now < change.deadline
    assert outcomes(found) == [Outcome.ROLLED_BACK]
    assert "CUDA out of memory" in found.status().history[0].reason
    assert found.deployment()["metadata"]["generation"] == 1


@pytest.mark.fault("T19")
async def test_without_a_free_device_the_change_is_rejected_without_blame() -> None:
    """T19."""
    found = await reach(ChangeState.PROVISIONING, replicas=2, devices=2)
    await until(found, None)
    await found.ticks(2)
    (entry,) = found.status().history
    assert entry.outcome is Outcome.REJECTED
    assert entry.reason.startswith("Unschedulable: there is no room for one more pod")
    assert "Insufficient nvidia.com/gpu" in entry.reason
    assert (extras(found), found.deployment()["metadata"]["generation"]) == ({}, 1)
    assert (found.status().failure_memory, found.status().circuit) == ((), None)
    assert find_condition(found.status().conditions, ConditionType.READY) is not None
    assert found.status().cooldown_until is not None


async def test_what_would_find_no_device_is_not_begun_and_says_so() -> None:
    found = beside(2, devices=2, shows_nodes=True)
    await found.ticks(12)
    standing = found.status().recommendation
    assert standing is not None
    assert (standing.recommended, standing.held_by) == ("128", "NoFreeGPUs")
    assert "one extra pod while it runs, and no node has 1 free GPU: all are taken" in standing.reason
    assert (found.status().history, found.change(), extras(found)) == ((), None, {})
    assert found.api.lists["Node"] == 2, "read once a minute, not in every tick"
    found.api.devices = 3
    await until(found, ChangeState.PROVISIONING)
    assert extras(found) == {"canary": 128}


async def test_a_single_free_device_is_planned_for_the_canary_alone() -> None:
    found = beside(3, devices=4, shows_nodes=True)
    await until(found, ChangeState.PROVISIONING)
    await found.ticks(2)
    assert extras(found) == {"canary": 128}
    await until(found, None)
    assert (outcomes(found), found.seats()) == ([Outcome.SUCCEEDED], 128)


async def test_where_nothing_is_to_be_done_free_devices_are_not_read() -> None:
    found = beside(2, devices=2, shows_nodes=True, load=lambda seats: Load())
    await found.ticks(12)
    assert found.api.lists == {}


async def test_without_the_right_to_look_it_is_tried() -> None:
    found = beside(2)
    await until(found, ChangeState.PROVISIONING)
    assert found.api.lists == {"Node": 1}


async def test_one_free_device_is_the_canarys_and_then_the_promotions() -> None:
    """Three replicas and a single free device: no baseline pod, and the canary makes room for the pods that follow."""
    found = beside(3, devices=4)
    await until(found, ChangeState.PROMOTING, at_most=80)
    assert extras(found) == {"canary": 128}
    await until(found, ChangeState.BAKING)
    assert serving(found) == 3
    await until(found, None)
    assert (outcomes(found), found.seats()) == ([Outcome.SUCCEEDED], 128)


async def test_the_diagnosis_is_of_the_service_and_not_of_its_canary() -> None:
    found = await reach(ChangeState.ANALYZING)
    for _ in range(3):
        await found.tick()
        diagnosis = found.status().diagnosis
        assert diagnosis is not None
        assert diagnosis.class_ == "ConcurrencyCapped"
        assert found.status().replicas == found.status().ready_replicas == 3


async def test_both_sides_are_written_down_window_by_window() -> None:
    found = await reach(ChangeState.ANALYZING)
    await found.ticks(4)
    change = found.change()
    assert change is not None
    assert change.analysis is not None
    last, reference = change.analysis.last, change.analysis.reference
    assert len(last) == len(reference) > 0
    assert [one.at for one in last] == [one.at for one in reference]
    assert all(new.ttft_seconds < old.ttft_seconds for new, old in zip(last, reference, strict=True))  # type: ignore[operator]


async def test_the_trial_is_labelled_owned_and_under_the_services_label() -> None:
    found = await reach(ChangeState.ANALYZING)
    change = found.change()
    assert change is not None
    for ref, track in ((change.canary_ref, "canary"), (change.baseline_ref, "baseline")):
        assert ref is not None
        body = found.deployment(ref.name)
        labels = body["spec"]["template"]["metadata"]["labels"]
        assert (labels[SERVICE], labels[TRACK], labels[CHANGE]) == ("chat", track, change.id)
        assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-chat"
        assert body["spec"]["replicas"] == 1


@pytest.mark.fault("T25", "T28")
@pytest.mark.parametrize(
    "state",
    [
        ChangeState.PROVISIONING,
        ChangeState.VERIFYING,
        ChangeState.WARMING_UP,
        ChangeState.ANALYZING,
        ChangeState.PROMOTING,
        ChangeState.BAKING,
    ],
)
@pytest.mark.parametrize(
    ("edit", "seats", "outcome"),
    [
        pytest.param({"tuning": {"mode": "Off"}}, 64, Outcome.ROLLED_BACK, id="switched off"),
        pytest.param({"engine": {"maxNumSeqs": 80}}, 80, Outcome.SUPERSEDED, id="another value"),
    ],
)
async def test_an_edit_ends_it_in_every_state(
    state: ChangeState, edit: dict[str, Any], seats: int, outcome: Outcome
) -> None:
    """T25: what is left is what the user wrote, and nothing beside it."""
    found = await reach(state)

    def change(body: Body) -> None:
        for part, values in edit.items():
            body["spec"][part] = {**body["spec"][part], **values}

    found.api.edit("chat", change)
    await until(found, None)
    assert outcomes(found) == [outcome]
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(mode="Off"))
    await found.ticks(16)
    assert (found.seats(), extras(found), serving(found), len(found.api.pods)) == (seats, {}, 3, 3)
    assert found.status().failure_memory == ()


async def test_a_trial_that_no_change_knows_is_deleted_and_counted() -> None:
    """G39, I12."""
    found = await reach(ChangeState.ANALYZING)
    stray = found.api.objects["Deployment", next(name for kind, name in found.api.objects if "-t-" in name)]
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(mode="Off"))
    await until(found, None)
    await found.ticks(2)
    labels = {**stray["metadata"]["labels"], CHANGE: "0123456789"}
    metadata = {**stray["metadata"], "name": "chat-t-0123456789", "labels": labels}
    found.api._store("Deployment", "chat-t-0123456789", {**stray, "metadata": metadata})
    await found.ticks(2)
    assert extras(found) == {}
    assert "vllm_autotuner_orphans_removed_total 1.0" in found.metrics.page().decode()


async def test_what_only_looks_like_a_trial_is_left_alone() -> None:
    found = await reach(ChangeState.ANALYZING)
    stray = found.api.objects["Deployment", next(name for kind, name in found.api.objects if "-t-" in name)]
    owner = [{**stray["metadata"]["ownerReferences"][0], "uid": "somebody-else"}]
    metadata = {**stray["metadata"], "name": "chat-t-x", "ownerReferences": owner}
    found.api._store("Deployment", "chat-t-x", {**stray, "metadata": metadata})
    await until(found, None)
    await found.ticks(3)
    assert ("Deployment", "chat-t-x") in found.api.objects


@pytest.mark.fault("T27")
async def test_a_pause_holds_it_and_the_canary_stays() -> None:
    found = await reach(ChangeState.ANALYZING)
    found.api.edit("chat", lambda body: body["spec"].update(paused=True))
    await until(found, ChangeState.HELD)
    await found.ticks(10)
    assert (set(extras(found)), found.seats()) == ({"canary", "baseline"}, 64)
    found.api.edit("chat", lambda body: body["spec"].update(paused=False))
    await until(found, None)
    assert outcomes(found) == [Outcome.SUCCEEDED]


@pytest.mark.fault("T22")
async def test_a_lost_pod_of_the_service_comes_back_before_anything_is_concluded() -> None:
    found = await reach(ChangeState.ANALYZING)
    await found.ticks(2)
    before = found.deployment()["metadata"]["generation"]
    found.harmed = True
    found.api.pods.remove(next(pod for pod in found.api.pods if pod.deployment == "chat"))
    await found.tick()
    change = found.change()
    assert change is not None
    assert (change.state, change.state_reason) == (ChangeState.HELD, "pods of the service itself are not ready")
    await until(found, ChangeState.ANALYZING)
    assert serving(found) == 3
    assert found.deployment()["metadata"]["generation"] == before
    await until(found, None)
    assert outcomes(found) == [Outcome.SUCCEEDED]


def leaking(found: Bed) -> None:
    """From now on every engine with more than 64 seats is slow."""
    found.api.load = slow_beyond_64


@pytest.mark.fault("T20")
@pytest.mark.parametrize("replicas", [2, 3])
async def test_harm_that_shows_only_in_the_bake_is_undone(replicas: int) -> None:
    """T20."""
    found = await reach(ChangeState.BAKING, replicas, spec={"tuning.strategy.bake": "30m"})
    await found.ticks(2)
    leaking(found)
    await until(found, ChangeState.ROLLING_BACK)
    fewest = replicas
    while found.change() is not None:
        await found.tick()
        fewest = min(fewest, serving(found))
    await found.tick()
    assert fewest == replicas
    assert (outcomes(found), found.seats(), extras(found)) == ([Outcome.ROLLED_BACK], 64, {})
    assert "regressed during bake" in found.status().history[0].reason


@pytest.mark.fault("T24")
async def test_when_the_old_configuration_no_longer_starts_the_new_one_goes_on() -> None:
    """T24."""
    found = await reach(ChangeState.BAKING, 2, spec={"tuning.strategy.bake": "30m"})
    leaking(found)
    found.api.crashes = lambda seats: seats == 64
    await until(found, ChangeState.ROLLING_BACK)
    fewest = 2
    for _ in range(200):
        await found.tick()
        fewest = min(fewest, serving(found))
    assert fewest == 2, "what served was deleted"
    assert (outcomes(found), found.seats()) == ([Outcome.ROLLBACK_FAILED], 128)
    status = found.status()
    failed = find_condition(status.conditions, ConditionType.ROLLBACK_FAILED)
    assert failed is not None
    assert find_condition(status.conditions, ConditionType.STALLED) is not None
    assert "OutOfMemory" in failed.message
    assert status.circuit is not None
    assert (status.circuit.state.value, status.circuit.until) == ("Open", None)
    assert status.last_known_good is not None
    assert status.last_known_good.max_num_seqs == 64
    applied = found.api.applies.total()
    found.restart()
    await found.ticks(40)
    assert (found.api.applies.total(), found.seats()) == (applied, 128)

    found.api.edit("chat", lambda body: body["spec"]["engine"].update(maxNumSeqs=96))
    await found.ticks(20)
    assert find_condition(found.status().conditions, ConditionType.STALLED) is None
    assert find_condition(found.status().conditions, ConditionType.ROLLBACK_FAILED) is None
    assert (found.seats(), serving(found)) == (96, 2)


@pytest.mark.fault("T28")
async def test_a_person_who_asks_for_a_rollback_has_it_in_the_next_tick_once() -> None:
    """T28."""
    for state in (ChangeState.PROVISIONING, ChangeState.ANALYZING, ChangeState.PROMOTING, ChangeState.BAKING):
        found = await reach(state, 2)
        ask(found, "rollback", "1")
        await found.tick()
        change = found.change()
        assert change is not None
        assert (change.state, change.state_reason) == (ChangeState.ROLLING_BACK, "a user requested a rollback")
        await until(found, None)
        await found.tick()
        assert (outcomes(found), found.seats(), extras(found)) == ([Outcome.ROLLED_BACK], 64, {})
        (entry,) = found.status().failure_memory
        assert (entry.candidate, entry.reason, entry.failures) == ("maxNumSeqs=128", "a user requested a rollback", 0)
        assert entry.declined_at == found.status().history[0].finished_at
        assert found.status().circuit is None, "nobody is to blame"
        assert [(each.kind, each.nonce) for each in found.status().handled_requests] == [("rollback", "1")]


async def test_a_retry_ends_the_cooldown_lets_what_was_declined_be_tried_and_acts_once() -> None:
    found = await reach(ChangeState.ANALYZING, 2)
    ask(found, "rollback", "1")
    await until(found, None)
    await found.ticks(8)
    assert (found.change(), len(found.status().history)) == (None, 1)
    ask(found, "retry", "1")
    await until(found, ChangeState.PROVISIONING)
    change = found.change()
    assert change is not None
    assert (change.to_value, change.declined, found.status().failure_memory) == ("128", None, ())
    await until(found, None, at_most=80)
    assert outcomes(found) == [Outcome.ROLLED_BACK, Outcome.SUCCEEDED]
    assert found.status().cooldown_until is not None
    await found.ticks(5)
    assert found.status().cooldown_until is not None, "a request that was acted upon acts no second time"


async def test_a_retry_while_it_is_taken_back_ends_no_rollback_and_remembers_nothing() -> None:
    found = await reach(ChangeState.BAKING, 2)
    ask(found, "rollback", "1")
    await found.tick()
    ask(found, "retry", "1")
    await until(found, None)
    assert (outcomes(found), found.seats()) == ([Outcome.ROLLED_BACK], 64)
    assert found.status().failure_memory == ()


async def test_after_a_failed_rollback_a_person_may_try_the_old_configuration_again() -> None:
    found = await reach(ChangeState.BAKING, 2, spec={"tuning.strategy.bake": "30m"})
    leaking(found)
    found.api.crashes = lambda seats: seats == 64
    await until(found, None, at_most=250)
    assert (outcomes(found), found.seats()) == ([Outcome.ROLLBACK_FAILED], 128)
    found.api.crashes = lambda seats: False
    ask(found, "rollback", "again")
    await found.ticks(12)
    assert (found.seats(), serving(found), len(found.api.pods)) == (64, 2, 2)
    assert found.status().rollback_failed is None
    assert find_condition(found.status().conditions, ConditionType.STALLED) is None


async def test_a_service_that_goes_away_takes_no_look_at_its_trial() -> None:
    found = await reach(ChangeState.ANALYZING)
    found.api.edit("chat", lambda body: body["metadata"].update(deletionTimestamp="2026-11-21T00:00:00Z"))
    writes = found.api.point
    await found.ticks(3)
    assert found.api.point == writes
    assert found.registry.services.get(Key("prod", "chat")) is not None


def test_the_model_has_a_canary_to_play_with() -> None:
    assert queueing(128).ttft < queueing(64).ttft
    assert isinstance(ApiServer(now=START), ApiServer)
    assert Load().tpot < slow_beyond_64(128).tpot
    assert service_body()["spec"]["replicas"] == 1


@pytest.mark.fault("T54")
@pytest.mark.parametrize("track", ["canary", "baseline"])
async def test_a_trial_pod_that_was_drained_warms_up_before_it_is_measured_again(track: str) -> None:
    warm_up = timedelta(minutes=2)
    found = beside(3, spec={"tuning.strategy": {"warmUp": "2m", "analysis": "5m", "bake": "30s"}})
    await until(found, ChangeState.ANALYZING, at_most=100)
    await found.ticks(3)
    drained = next(pod for pod in found.api.pods if pod.labels.get(TRACK) == track)
    found.api.pods.remove(drained)
    measured = []
    while not outcomes(found):
        before = found.change()
        await found.tick()
        change = found.change()
        if change is None or change.promoted or before is None or change.analysis is None or before.analysis is None:
            continue
        if len(change.analysis.last) > len(before.analysis.last):
            trial = [pod for pod in found.api.pods if pod.labels.get(TRACK) == track]
            measured += [found.api.now - (pod.ready_since or found.api.now) for pod in trial]
    assert measured
    assert min(measured) >= warm_up, "a cold pod was compared with warm ones"
    assert outcomes(found) == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("there", [True, False], ids=["a Deployment that is adopted", "one that is not there"])
async def test_an_edit_to_a_deployment_of_somebody_else_leaves_no_trial_behind(there: bool) -> None:
    api = Both(now=START, load=queueing)
    api.create(service_body(spec={"replicas": 3}))
    found = Bed(api)
    await until(found, ChangeState.ANALYZING)
    if there:
        api._store("Deployment", NAME, theirs())
    assert set(extras(found)) >= {"canary", "baseline"}
    # The invariants are about a workload of our own.
    api.stored = lambda name, by_hand: None
    found.witnesses.clear()
    api.edit("chat", lambda body: body.update(spec=changed(body["spec"], ADOPTING)))
    await found.ticks(3)
    assert found.change() is None
    assert {name for kind, name in api.objects if kind == "Deployment"} == ({"chat", NAME} if there else {"chat"})
