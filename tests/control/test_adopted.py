"""A Deployment of somebody else's: looked at always, written where nobody puts it back, restored to the letter."""

import pytest
from tests.control.adopting_bed import ARGS, NAME, AdoptingBed, adopting, args_of, managed, seats, theirs
from tests.control.cluster_model import Load
from tests.control.loop_bed import service_body, slow_beyond_64

from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import Outcome, Source
from vllm_autotuner.cluster.errors import NotFound, Refused, Unavailable
from vllm_autotuner.engine.command_line import Field
from vllm_autotuner.planning import max_num_seqs
from vllm_autotuner.workload.adoption import Marker, digest_of
from vllm_autotuner.workload.labels import ADOPTION, CONSENT, CONSENT_GIVEN

STEADY = 8
TUNED = ("Qwen/Qwen3-0.6B", "--seed", "1", "--max-num-seqs", "128", "--enable-prefix-caching")


def queueing_hard(seats: int) -> Load:
    """Every seat is taken, the KV cache is full: only replicas help."""
    return Load(running=40.0, waiting=60.0, kv=0.99, ttft=8.0)


async def to_the_end(bed: AdoptingBed) -> None:
    """Tick until a change has ended."""
    for _ in range(60):
        await bed.tick()
        if bed.status().history and bed.change() is None:
            return
    raise AssertionError(f"no change ended: {bed.status()}")


async def in_state(bed: AdoptingBed, state: str) -> None:
    for _ in range(40):
        await bed.tick()
        change = bed.change()
        if change is not None and change.state.value == state:
            return
    raise AssertionError(f"never {state}: {bed.status()}")


async def test_what_runs_is_observed_and_a_recommendation_is_given() -> None:
    found = adopting(tuning__mode="Recommend")
    await found.ticks(STEADY)
    status = found.status()
    assert status.effective is not None
    assert (status.effective.source, status.effective.max_num_seqs) == (Source.OBSERVED, 64)
    assert status.diagnosis is not None
    assert status.diagnosis.class_ == "ConcurrencyCapped"
    assert status.recommendation is not None
    assert status.recommendation.recommended == "128"
    assert found.condition("Ready")[0] == found.condition("Adopted")[0] == "True"
    assert (status.selector, status.replicas, status.ready_replicas) == ("app=chat", 1, 1)
    assert found.api.written == []


async def test_a_change_that_helps_is_kept_and_every_other_argument_with_it() -> None:
    found = adopting()
    await to_the_end(found)
    assert found.status().history[-1].outcome is Outcome.SUCCEEDED, found.status().history
    assert found.args == TUNED
    status = found.status()
    assert status.effective is not None
    assert (status.effective.source, status.effective.max_num_seqs) == (Source.TUNED, 128)
    assert len(found.api.written) == 1
    await found.ticks(20)
    assert (found.args, len(found.api.written)) == (TUNED, 1)
    assert found.condition("Ready")[0] == "True"


async def test_a_change_that_hurts_is_undone_to_the_letter() -> None:
    found = adopting(load=slow_beyond_64)
    await to_the_end(found)
    assert found.status().history[-1].outcome is Outcome.ROLLED_BACK
    assert (found.args, len(found.api.written)) == (ARGS, 2)
    await found.ticks(20)
    assert (found.args, len(found.api.written)) == (ARGS, 2)


async def test_a_flag_that_was_not_there_is_gone_after_a_rollback() -> None:
    own = ("Qwen/Qwen3-0.6B", "--max-num-seqs=64")
    found = adopting(
        theirs(args=own),
        load=slow_beyond_64,
    )
    await to_the_end(found)
    assert found.args == own


async def test_another_leader_goes_on_where_the_first_one_died() -> None:
    found = adopting(load=slow_beyond_64)
    await in_state(found, "Analyzing")
    found.restart()
    await to_the_end(found)
    assert found.args == ARGS


async def test_flags_that_a_tool_declares_are_never_written() -> None:
    found = adopting(theirs(manager=managed("argocd-controller", operation="Apply")))
    await found.ticks(30)
    assert found.api.written == []
    assert found.status().recommendation is not None
    status, reason, message = found.condition("OwnershipConflict")
    assert (status, reason) == ("True", "FlagsDeclaredElsewhere")
    assert "ignoreDifferences" in message
    assert found.told.count("OwnershipConflict") == 1
    assert f"{CONSENT}={CONSENT_GIVEN}" in message
    assert found.condition("Ready")[0] == "True"


@pytest.mark.parametrize("kind", ["LLMInferenceService", "VLLMRuntime"])
@pytest.mark.parametrize("annotations", [{}, {CONSENT: CONSENT_GIVEN}], ids=["not handed over", "handed over"])
async def test_a_deployment_of_another_operator_gets_recommendations_and_is_never_changed(
    kind: str, annotations: dict[str, str]
) -> None:
    owner = {"kind": kind, "name": "chat", "controller": True}
    found = adopting(theirs(metadata__ownerReferences=[owner], metadata__annotations=annotations))
    await found.ticks(30)
    assert found.api.written == []
    assert found.status().recommendation is not None
    status, _, message = found.condition("OwnershipConflict")
    assert (status, kind in message) == ("True", True), message
    assert CONSENT not in message


async def test_flags_that_were_handed_over_are_written() -> None:
    found = adopting(
        theirs(manager=managed("argocd-controller", operation="Apply"), metadata__annotations={CONSENT: CONSENT_GIVEN})
    )
    await to_the_end(found)
    assert found.args == TUNED


async def test_in_mode_recommend_there_is_no_conflict() -> None:
    found = adopting(theirs(manager=managed("kubectl-client-side-apply")), tuning__mode="Recommend")
    await found.ticks(STEADY)
    assert found.condition("OwnershipConflict")[0] == ""


@pytest.mark.fault("T44")
@pytest.mark.parametrize("state", ["Provisioning", "Analyzing", "Baking"])
async def test_an_edit_of_another_flag_supersedes_the_change_and_leaves_no_candidate(state: str) -> None:
    found = adopting()
    await in_state(found, state)
    await found.tick()
    assert seats(found) == 128
    found.api.edit_deployment(lambda body: args_of(body).append("--seed=2"), manager="kubectl-edit")
    await found.ticks(3)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUPERSEDED]
    written = len(found.api.written)
    await found.ticks(20)
    assert (seats(found), len(found.api.written)) == (64, written)
    assert found.args[-1] == "--seed=2", "the edit itself stays"
    status = found.status()
    assert status.effective is not None
    assert (status.effective.source, status.effective.max_num_seqs) == (Source.OBSERVED, 64)


@pytest.mark.fault("T44")
async def test_an_edit_of_another_flag_leaves_no_candidate_where_the_owner_had_given_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change that a former version began: this one raises no value that it does not know."""
    monkeypatch.setattr(max_num_seqs, "PRESENT_UNKNOWN", "")
    plain = tuple(each for each in ARGS if each not in ("--max-num-seqs", "64"))
    crowd = Load(running=256.0, waiting=100.0, kv=0.3, ttft=6.0)
    found = adopting(
        theirs(args=plain),
        load=lambda value: crowd if value <= 256 else Load(running=300.0, kv=0.5, ttft=0.4, tpot=0.03),
        tuning__maxNumSeqs={"min": 16, "max": 1024},
    )
    await in_state(found, "Analyzing")
    assert seats(found) > 256
    found.api.edit_deployment(lambda body: args_of(body).append("--seed=2"), manager="kubectl-edit")
    await found.ticks(20)
    assert found.args == (*plain, "--seed=2")
    assert found.status().history[-1].outcome is Outcome.SUPERSEDED


async def test_an_edit_that_sets_the_knob_itself_is_what_runs() -> None:
    found = adopting()
    await in_state(found, "Analyzing")
    edited = [each if each != "64" else "96" for each in ARGS]
    found.api.edit_deployment(lambda body: args_of(body).__setitem__(slice(None), edited), manager="kubectl-edit")
    await found.ticks(20)
    assert (found.status().history[-1].outcome, seats(found)) == (Outcome.SUPERSEDED, 96)


async def test_an_edit_of_the_pods_supersedes_the_change() -> None:
    found = adopting()
    await in_state(found, "WarmingUp")
    found.api.edit_deployment(
        lambda body: body["spec"]["template"]["spec"].update(nodeSelector={"pool": "other"}), manager="kubectl-edit"
    )
    await found.ticks(2)
    assert found.status().history[-1].outcome is Outcome.SUPERSEDED


async def test_whoever_puts_the_old_value_back_has_it() -> None:
    """During the roll-out, and after the change was kept: the operator does not fight."""
    for state in ("Provisioning", None):
        found = adopting()
        await (to_the_end(found) if state is None else in_state(found, state))
        if state is not None:
            await found.tick()
        found.api.edit_deployment(lambda body: args_of(body).__setitem__(slice(None), ARGS), manager="kubectl-edit")
        written = len(found.api.written)
        await found.ticks(20)
        assert (found.args, len(found.api.written)) == (ARGS, written), state
        status = found.status()
        assert status.effective is not None
        assert (status.effective.source, status.effective.max_num_seqs) == (Source.OBSERVED, 64), state


async def test_the_owners_later_edit_of_another_flag_keeps_what_was_tuned() -> None:
    found = adopting()
    await to_the_end(found)
    found.api.edit_deployment(lambda body: args_of(body).append("--seed=2"), manager="kubectl-edit")
    await found.ticks(20)
    assert found.args == (*TUNED, "--seed=2")


async def test_bounds_that_no_longer_hold_the_value_bring_the_owners_back() -> None:
    found = adopting()
    await to_the_end(found)
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(maxNumSeqs={"min": 16, "max": 96}, mode="Off"))
    await found.ticks(STEADY)
    assert found.args == ARGS


async def test_a_new_service_takes_a_tuned_deployment_as_it_finds_it() -> None:
    found = adopting()
    await to_the_end(found)
    del found.api.objects["VLLMService", "chat"]
    again = adopting({}, names=("chat",))
    again.api.create({**again.api.objects["VLLMService", "chat"], "status": {}})
    body = again.api.objects["VLLMService", "chat"]
    again.api.create({**body, "metadata": {**body["metadata"], "uid": "uid-chat"}})
    again.api._store("Deployment", "theirs", found.live)
    again.api.pods = found.api.pods
    await again.ticks(STEADY)
    assert (again.args, again.api.written) == (TUNED, [])
    status = again.status()
    assert status.effective is not None
    assert status.effective.max_num_seqs == 128


async def test_a_target_that_is_not_there_is_waited_for() -> None:
    found = adopting({})
    await found.ticks(2)
    assert found.condition("Stalled")[:2] == ("True", "TargetNotFound")
    assert found.condition("Ready")[0] == found.condition("Adopted")[0] == "False"
    found.api._store("Deployment", "theirs", theirs())
    await found.ticks(STEADY)
    assert (found.condition("Stalled")[0], found.condition("Ready")[0]) == ("", "True")
    assert found.condition("Adopted")[0] == "True"


async def test_a_target_without_vllm_or_with_two_of_them_is_named() -> None:
    other = theirs()
    [container] = other["spec"]["template"]["spec"]["containers"]
    container.update(image="nginx", args=[])
    found = adopting(other)
    await found.ticks(2)
    assert found.condition("Stalled")[1] == "NoEngineContainer"
    two = theirs()
    two["spec"]["template"]["spec"]["containers"].append(
        {"name": "second", "image": "vllm/vllm-openai:v0.32.0", "args": []}
    )
    found = adopting(None)
    found.api._store("Deployment", "theirs", two)
    found.api._roll = lambda name, body: None  # type: ignore[method-assign]  # the model rolls single containers
    await found.ticks(2)
    assert found.condition("Stalled")[1] == "SeveralEngineContainers"


async def test_of_two_services_for_one_deployment_the_older_one_has_it() -> None:
    found = adopting(names=("chat", "newer"))
    await found.ticks(STEADY)
    assert found.condition("Ready", "chat")[0] == "True"
    status, reason, message = found.condition("Stalled", "newer")
    assert (status, reason) == ("True", "Conflict")
    assert "already managed by VLLMService chat (older)" in message


async def test_replicas_begin_with_what_is_there_and_follow_the_load() -> None:
    found = adopting(theirs(replicas=3), scaling={"minReplicas": 1, "maxReplicas": 8}, load=queueing_hard)
    await found.ticks(3)
    assert found.live["spec"]["replicas"] == 3
    await found.ticks(30)
    assert found.live["spec"]["replicas"] > 3
    assert seats(found) == 64


async def test_a_deployment_that_is_replaced_during_a_write_costs_one_tick() -> None:
    """`kubectl replace --force` deletes it and creates it again: the write in between is answered with 404."""
    found = adopting(theirs(replicas=3), scaling={"minReplicas": 1, "maxReplicas": 8}, load=queueing_hard)
    gone = NotFound("deployments theirs not found", reason="NotFound", status=404)
    found.api.refuses = lambda verb, name: gone if verb == "scale Deployment" else None
    await found.ticks(30)
    assert found.api.requests["scale Deployment"] > 1, "it is still decided"
    found.api.refuses = lambda verb, name: None
    await found.ticks(2)
    assert found.live["spec"]["replicas"] > 3


async def test_replicas_that_an_autoscaler_sets_are_left_to_it() -> None:
    found = adopting(theirs(replicas=3), scaling={"minReplicas": 1, "maxReplicas": 2}, load=queueing_hard)
    found.api.autoscalers = [
        {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "theirs"}}}
    ]
    await found.ticks(30)
    assert found.live["spec"]["replicas"] == 3
    status, reason, message = found.condition("OwnershipConflict")
    assert (status, reason) == ("True", "ReplicasControlledElsewhere")
    assert "HorizontalPodAutoscaler hpa" in message


async def test_a_strategy_that_stops_all_pods_is_recommended_only() -> None:
    found = adopting(theirs(spec__strategy={"type": "Recreate"}))
    await found.ticks(30)
    recommendation = found.status().recommendation
    assert found.api.written == []
    assert recommendation is not None
    assert "Recreate" in recommendation.reason


async def test_a_deployment_that_cannot_be_read_affects_no_other_service() -> None:
    found = adopting()
    found.api.create(service_body("other"))
    await found.ticks(STEADY)
    before = found.status()
    found.api.refuses = lambda verb, name: (
        Unavailable("the API server is busy", reason="TooManyRequests") if (verb, name) == ("read", "theirs") else None
    )
    found.api.edit("other", lambda body: body["spec"]["engine"].update(maxNumSeqs=32))
    await found.ticks(2)
    assert found.status() == before
    effective = found.status("other").effective
    assert effective is not None
    assert effective.max_num_seqs == 32
    found.api.refuses = lambda verb, name: None
    await to_the_end(found)
    assert found.args == TUNED


async def test_a_missing_right_is_told_on_the_service() -> None:
    found = adopting()
    found.api.refuses = lambda verb, name: (
        Refused("deployments is forbidden", reason="Forbidden", status=403)
        if (verb, name) == ("read", "theirs")
        else None
    )
    await found.ticks(2)
    assert found.condition("Stalled") == ("True", "Forbidden", "deployments is forbidden")
    found.api.refuses = lambda verb, name: None
    await found.ticks(STEADY)
    assert found.condition("Ready")[0] == "True"


async def test_many_replicas_are_changed_in_place_too() -> None:
    """A canary would be a Deployment of ours beside theirs."""
    found = adopting(theirs(replicas=3))
    await in_state(found, "Provisioning")
    change = found.change()
    assert change is not None
    assert (change.strategy, change.canary_ref, change.baseline_ref) == (StrategyType.IN_PLACE, None, None)
    await to_the_end(found)
    assert (found.args, len(found.api.pods)) == (TUNED, 3)
    assert {kind for kind, _ in found.api.objects} == {"VLLMService", "Deployment"}


async def test_a_steady_state_writes_nothing() -> None:
    found = adopting(tuning__mode="Recommend")
    await found.ticks(STEADY)
    before = sum(count for verb, count in found.api.requests.items() if not verb.startswith(("read", "list", "log")))
    await found.ticks(30)
    after = sum(count for verb, count in found.api.requests.items() if not verb.startswith(("read", "list", "log")))
    assert after == before


@pytest.mark.fault("T29")
async def test_a_tool_that_heals_what_was_handed_over_is_not_fought() -> None:
    """T29 for a Deployment that is not ours: one write, and then peace until the cooldown is over."""
    own = theirs(
        manager=managed("argocd-controller", operation="Apply"), metadata__annotations={CONSENT: CONSENT_GIVEN}
    )
    found = adopting(own)
    for _ in range(80):
        await found.tick()
        if found.args != ARGS:
            found.api.edit_deployment(
                lambda body: args_of(body).__setitem__(slice(None), ARGS), manager="argocd-controller"
            )
    assert (found.args, len(found.api.written)) == (ARGS, 1)
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUPERSEDED]
    recommendation = found.status().recommendation
    assert recommendation is not None
    assert "cooling down" in recommendation.reason


async def test_a_leader_that_dies_before_it_restores_leaves_it_to_the_next_one() -> None:
    found = adopting()
    await to_the_end(found)
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(maxNumSeqs={"min": 16, "max": 96}, mode="Off"))
    found.api.refuses = lambda verb, name: (
        Unavailable("gone", reason="NoAnswer") if verb == "apply Deployment" else None
    )
    await found.ticks(2)
    status = found.status()
    assert status.effective is not None
    assert (status.effective.source, status.effective.max_num_seqs, found.args) == (Source.OBSERVED, 64, TUNED)
    found.api.refuses = lambda verb, name: None
    found.restart()
    await found.ticks(2)
    assert found.args == ARGS


async def test_what_another_service_had_found_is_not_ours_to_restore() -> None:
    """A predecessor tuned 32 to 64, and is gone: 64 is what this service has found."""
    predecessors = Marker(
        service_uid="uid-of-another",
        original=tuple("32" if word == "64" else word for word in ARGS),
        field=Field.ARGS,
        written=digest_of(ARGS),
    )
    found = adopting(theirs(metadata__annotations={ADOPTION: predecessors.text()}))
    found.api.refuses = lambda verb, name: (
        Unavailable("gone", reason="NoAnswer") if verb == "apply Deployment" else None
    )
    await in_state(found, "Provisioning")
    await found.tick()
    found.api.refuses = lambda verb, name: None
    await to_the_end(found)
    assert found.args == TUNED
    found.api.edit("chat", lambda body: body["spec"]["tuning"].update(maxNumSeqs={"min": 16, "max": 96}, mode="Off"))
    await found.ticks(STEADY)
    assert found.args == ARGS


async def test_a_change_is_over_when_its_deployment_is_gone() -> None:
    """It would keep its turn of the fleet for ever."""
    found = adopting()
    await in_state(found, "Analyzing")
    del found.api.objects["Deployment", NAME]
    await found.ticks(2)
    status = found.status()
    assert (status.active_change, status.failure_memory) == (None, ())
    assert [(entry.outcome, entry.reason[:23]) for entry in status.history] == [
        (Outcome.SUPERSEDED, "Deployment prod/theirs ")
    ]
    assert found.told.count("ChangeSuperseded") == 1
    assert found.condition("Stalled")[1] == "TargetNotFound"
    assert found.condition("LastChangeSucceeded")[0] == "False"


async def test_a_missing_permission_ends_no_change() -> None:
    found = adopting()
    await in_state(found, "Analyzing")
    found.api.refuses = lambda verb, name: (
        Refused("deployments is forbidden", reason="Forbidden", status=403) if verb == "read" else None
    )
    await found.ticks(2)
    assert found.change() is not None
    found.api.refuses = lambda verb, name: None
    await to_the_end(found)
    assert found.args == TUNED


async def test_an_unknown_max_num_seqs_is_not_raised() -> None:
    """What ran at once is no more than what may run: twice as many may be less than the engine's default."""
    plain = tuple(each for each in ARGS if each not in ("--max-num-seqs", "64"))
    crowd = Load(running=40.0, waiting=100.0, kv=0.2, ttft=6.0)
    found = adopting(theirs(args=plain), load=lambda value: crowd)
    await found.ticks(30)
    advice = found.status().recommendation
    assert advice is not None
    assert (advice.knob, advice.current, advice.held_by) == ("maxNumSeqs", None, "RecommendOnly")
    assert "the present max-num-seqs is not known and may be higher" in advice.reason
    assert (found.change(), found.api.written) == (None, [])
