"""What goes wrong around a change, on the real control plane: people, neighbours and engines, all at the same time."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import httpx
import pytest

from e2e import odd_engines
from e2e.side_by_side import CROWD, PATIENCE, QUICK, Play, Refused, change_of, side_by_side
from e2e.stage import condition, recovered, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.fault("T27")
@side_by_side(stage="faults")
async def test_pausing_by_spec_holds_a_change_and_lifting_it_lets_it_go_on(play: Play) -> None:
    await play.serves("paused", clients=CROWD)
    await play.change_is("paused", "Analyzing")
    await play.edit("paused", paused=True)
    change = await play.change_is("paused", "Held")
    assert (change["resumeState"], change["stateReason"]) == ("Analyzing", "paused")
    status = await play.until("paused", "Paused", lambda status: condition(status, "Paused") == "True")
    await play.ticks(4)
    assert change_of(await play.status("paused")) == change_of(status)
    assert (await play.flags("paused")).max_num_seqs == 8
    await play.edit("paused", paused=False)
    entry = await play.finished("paused")
    assert entry["outcome"] == "Succeeded", entry
    assert condition(await play.status("paused"), "Paused") == ""
    play.served_all_along("paused")


@pytest.mark.fault("T27")
@side_by_side(stage="faults")
async def test_an_unreadable_pause_annotation_pauses(play: Play) -> None:
    await play.serves("annotated", clients=CROWD)
    await play.change_is("annotated", "WarmingUp", "Analyzing")
    await play.edit("annotated", annotations={"vllm-autotuner.dev/pause": "oui"})
    await play.change_is("annotated", "Held")
    await play.edit("annotated", annotations={"vllm-autotuner.dev/pause": None})
    entry = await play.finished("annotated")
    assert entry["outcome"] == "Succeeded", entry


@pytest.mark.fault("T28")
@side_by_side(stage="faults")
async def test_switching_the_mode_off_during_a_change_rolls_it_back_without_blame(play: Play) -> None:
    await play.serves("switched-off", clients=CROWD)
    await play.change_is("switched-off", "Analyzing")
    await play.edit("switched-off", tuning={"mode": "Off"})
    entry = await play.finished("switched-off")
    assert (entry["outcome"], entry["reason"]) == ("RolledBack", "spec.tuning.mode was set to Off")
    await play.rolled_out("switched-off", seats=4)
    status = await play.status("switched-off")
    assert not status.get("failureMemory"), "the candidate is not to blame for what a person decided"
    assert condition(status, "CircuitOpen") == ""
    play.served_all_along("switched-off")


@pytest.mark.fault("T25")
@side_by_side(stage="faults")
async def test_editing_the_spec_during_a_change_supersedes_it_and_the_user_gets_what_he_wrote(play: Play) -> None:
    await play.serves("superseded", clients=CROWD)
    await play.change_is("superseded", "Analyzing")
    await play.edit("superseded", engine={"maxNumSeqs": 6})
    entry = await play.finished("superseded")
    assert entry["outcome"] == "Superseded"
    await play.rolled_out("superseded", seats=6)
    status = await play.until(
        "superseded",
        "Ready with six seats",
        lambda found: condition(found, "Ready") == "True" and found["effective"].get("maxNumSeqs") == 6,
    )
    assert status["effective"]["source"] == "Spec"
    assert not status.get("failureMemory")
    # The Event comes after the status.
    await until("its end is told", lambda: play.events("superseded", "ChangeSuperseded"), seconds=PATIENCE)
    assert len(await play.events("superseded", "ChangeSuperseded")) == 1


@pytest.mark.fault("T26")
@side_by_side(stage="faults")
async def test_deleting_the_service_during_a_change_leaves_its_pods_serving(play: Play) -> None:
    await play.serves("retained", clients=CROWD)
    await play.change_is("retained", "WarmingUp", "Analyzing")
    await play.delete("retained")
    await until("the object is gone", lambda: _gone(play.stage.service("retained")), seconds=PATIENCE)
    generation = (await play.stage.deployment("retained"))["metadata"]["generation"]
    answered = play.stage.loads["retained"].tally.succeeded
    await play.ticks(4)
    deployment = await play.stage.deployment("retained")
    assert deployment["metadata"]["generation"] == generation
    assert deployment["status"]["availableReplicas"] == 1
    await until("its pods answer", lambda: play.stage.loads["retained"].tally.succeeded > answered, seconds=PATIENCE)


@pytest.mark.fault("T26")
@side_by_side(stage="faults")
async def test_deleting_the_service_during_a_change_collects_its_workload_when_the_policy_says_so(play: Play) -> None:
    await play.serves("collected", clients=CROWD, deletionPolicy="Delete")
    await play.change_is("collected", "WarmingUp", "Analyzing")
    await play.delete("collected")
    await until("the Deployment is collected", lambda: _gone(play.stage.deployment("collected")), seconds=PATIENCE)
    await until("its pods end", lambda: _none(play.stage.pods("collected")), seconds=PATIENCE)
    await play.ticks(3)
    assert not await play.stage.deployment("collected"), "a deleted service was given a Deployment again"


@pytest.mark.fault("T17", "T18")
@side_by_side(stage="faults")
async def test_a_candidate_that_cannot_start_is_rolled_back_at_once_in_the_engines_own_words(play: Play) -> None:
    # More than eight ask for eight seats at the first look, however many are between two requests just then.
    await play.serves("refusing", clients=2 * CROWD, engine={"image": odd_engines.image("refusing")})
    change = await play.change_is("refusing", "Provisioning")
    entry = await play.finished("refusing")
    assert (entry["outcome"], entry["toValue"]) == ("RolledBack", "8")
    assert odd_engines.NO_MEMORY in entry["reason"]
    assert entry["finishedAt"] < change["deadline"], "it was rolled back by the deadline and not by the crash"
    await play.rolled_out("refusing", seats=4)
    status = await play.status("refusing")
    assert [one["candidate"] for one in status["failureMemory"]] == ["maxNumSeqs=8"]
    play.served_all_along("refusing")


@side_by_side(stage="faults")
async def test_a_candidate_that_dies_while_it_serves_is_rolled_back_at_once(play: Play) -> None:
    await play.serves("dying", clients=CROWD, tuning={"strategy": QUICK | {"analysis": "60s"}})
    change = await play.change_is("dying", "WarmingUp", "Analyzing")
    await play.kill("dying")

    async def restarted() -> bool:
        pods = await play.stage.ready_pods("dying")
        return any(pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods)

    # Once may be an accident: a value is to blame for the second end that no log explains.
    await until("the engine is back", restarted, seconds=PATIENCE)
    await play.kill("dying")
    back = await play.change_is("dying", "RollingBack")
    assert back["id"] == change["id"]
    assert back["harmful"] is True, back
    entry = await play.finished("dying")
    assert "exit code 137" in entry["reason"], entry
    await play.rolled_out("dying", seats=4)


@pytest.mark.fault("T07")
@side_by_side(stage="faults")
async def test_a_status_written_by_somebody_else_all_the_time_does_not_begin_a_change_twice(play: Play) -> None:
    await play.serves("contended")
    writes = 0

    async def contend() -> None:
        nonlocal writes
        while True:
            writes += 1
            with suppress(Refused, httpx.TransportError):  # a neighbour is refused, too, or not answered in time
                await play.edit("contended", annotations={"example.com/beat": str(writes)})

    contender = asyncio.create_task(contend())
    try:
        await play.load("contended", CROWD)
        await play.change_is("contended", "WarmingUp", "Analyzing")
        # A busy machine writes slowly; the neighbour goes on until there was contention.
        await until("contention", lambda: writes > 20, seconds=PATIENCE)
    finally:
        contender.cancel()
    entry = await play.finished("contended")
    assert entry["outcome"] == "Succeeded", entry
    assert (await play.status("contended"))["budget"]["changesToday"] == 1
    assert len(await play.events("contended", "ChangeStarted")) == 1


@pytest.mark.fault("T39")
@side_by_side(stage="faults")
async def test_an_invalid_object_is_refused_at_admission_with_the_remedy(play: Play) -> None:
    with pytest.raises(Refused) as refusal:
        await play.apply("invalid", engine={"maxNumSeqs": 99})
    assert "engine.maxNumSeqs must lie within tuning.maxNumSeqs.min and max" in str(refusal.value)
    assert not await play.stage.service("invalid")


@pytest.mark.fault("T39")
@side_by_side(stage="faults")
async def test_a_pod_template_that_the_api_server_refuses_is_reported_on_its_object_until_it_is_repaired(
    play: Play,
) -> None:
    play.names.append("refused")
    mount = {"name": "vllm", "volumeMounts": [{"name": "no-such-volume", "mountPath": "/x"}]}
    await play.apply("refused", podTemplate={"spec": {"containers": [mount]}})
    status = await play.until("refused", "Stalled", lambda status: condition(status, "Stalled") == "True")
    stalled = next(each for each in status["conditions"] if each["type"] == "Stalled")
    assert stalled["reason"] == "InvalidSpec"
    assert "no-such-volume" in stalled["message"]
    await play.edit("refused", podTemplate=None)
    await play.until("refused", "Ready and not Stalled", recovered)


@pytest.mark.fault("T34")
@side_by_side(stage="faults")
async def test_a_status_that_was_edited_into_something_unreadable_is_reported_and_can_be_repaired(play: Play) -> None:
    await play.serves("scribbled")
    before = await play.status("scribbled")
    play.names.remove("scribbled")  # what a person writes into a status is not ours to vouch for
    await play.edit_status("scribbled", {"cooldownUntil": "2031-01-01T00:00:00+99:99"})
    status = await play.until("scribbled", "Stalled", lambda status: condition(status, "Stalled") == "True")
    stalled = next(each for each in status["conditions"] if each["type"] == "Stalled")
    assert stalled["reason"] == "InvalidStatus"
    assert "status.cooldownUntil" in stalled["message"]
    assert status["effective"] == before["effective"], "a report must not forget what the status remembers"
    await play.edit_status("scribbled", {"cooldownUntil": None})
    await play.until("scribbled", "Ready and not Stalled", recovered)


@pytest.mark.fault("T34")
@side_by_side(stage="faults")
async def test_a_change_that_only_another_version_understands_is_taken_back(play: Play) -> None:
    """As after a downgrade of the operator in the middle of a change."""
    await play.serves("poisoned", clients=CROWD)
    change = await play.change_is("poisoned", "Analyzing")
    # What a status says while it is edited by hand proves nothing.
    play.names.remove("poisoned")
    await play.edit_status("poisoned", {"activeChange": {**change, "knob": "banana", "state": "Verifying"}})
    entry = await play.finished("poisoned")
    assert (entry["id"], entry["outcome"]) == (change["id"], "RolledBack"), entry
    assert "this version does not support the knob banana" in entry["reason"]
    await play.rolled_out("poisoned", seats=4)
    assert not await play.events("poisoned", "ServiceFailed")
    play.served_all_along("poisoned")


async def _gone(reading: Awaitable[object]) -> bool:
    return not await reading


async def _none(reading: Awaitable[list[dict[str, object]]]) -> bool:
    return not await reading
