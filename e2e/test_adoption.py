"""An existing Deployment is adopted on the real control plane: written only where nobody would put it back, and to the
letter restored."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from e2e.bed import import_path
from e2e.side_by_side import CROWD, PATIENCE, QUICK, Play, degrading, seats_of, side_by_side
from e2e.stage import ENGINE_IMAGE, MODEL, condition, engine_env, until
from vllm_autotuner.workload.labels import CONSENT, CONSENT_GIVEN, OPERATOR

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWN_ARGS: Final = ["--model", MODEL, "--max-num-seqs", "4", "--enable-prefix-caching", "--seed=7"]
TUNED_ARGS: Final = ["--model", MODEL, "--max-num-seqs", "8", "--enable-prefix-caching", "--seed=7"]
CREATE: Final = ("create",)
ARGO_CD: Final = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller")


def deployment(name: str, **simulated: float) -> dict[str, Any]:
    """A user's own Deployment: labels, container name and flags as he likes."""
    pod = engine_env(**({"step_base_ms": 40, "step_per_seq_ms": 0.5, "startup_seconds": 1} | simulated))
    [engine] = pod["spec"]["containers"]
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 10}
    engine |= {
        "name": "server",
        "image": ENGINE_IMAGE,
        "args": OWN_ARGS,
        "ports": [{"containerPort": 8000}],
        "readinessProbe": probe,
    }
    labels = {"app": name}
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, **pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def write(play: Play, body: Mapping[str, Any], *how: str) -> None:
    """Write a Deployment as its owner's tool does."""
    namespace = play.stage.namespace
    await asyncio.to_thread(play.stage.bed.kubectl, "-n", namespace, *how, "-f", "-", input=json.dumps(body))


async def adopted(
    play: Play, name: str, *how: str, body: Mapping[str, Any] | None = None, clients: int = CROWD, **spec: Any
) -> None:
    """Have a tool write the Deployment, adopt it, wait until it is seen to serve, and put load on it."""
    play.stage.selectors[name] = f"app={name}"
    play.names.append(name)
    await write(play, body or deployment(name), *how)
    tuning = {
        "mode": "Automatic",
        "maxNumSeqs": {"min": 2, "max": 8},
        "strategy": QUICK,
        "cooldown": "10m",
    } | spec.pop("tuning", {})
    service = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "objectives": {"profile": "Latency", "ttft": {"target": "500ms"}, "tpot": {"target": "200ms"}},
        "tuning": tuning,
    }
    found = {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "metadata": {"name": name, "namespace": play.stage.namespace},
        "spec": service | spec,
    }
    await play.write("POST", "", found)
    await play.until(name, "Ready", lambda status: condition(status, "Ready") == "True")
    await play.load(name, clients)


async def args_of(play: Play, name: str) -> list[str]:
    [engine] = (await play.stage.deployment(name))["spec"]["template"]["spec"]["containers"]
    return engine.get("args") or []


def writers(body: Mapping[str, Any]) -> set[str]:
    return {entry["manager"] for entry in body["metadata"]["managedFields"]}


def recommends_eight(status: Mapping[str, Any]) -> bool:
    """The first look of a busy machine may see another bottleneck."""
    found = status.get("recommendation") or {}
    return (found.get("knob"), found.get("recommended")) == ("maxNumSeqs", "8")


def message_of(status: Mapping[str, Any], kind: str) -> str:
    return next((str(each["message"]) for each in status.get("conditions", []) if each["type"] == kind), "")


@side_by_side(stage="adoption")
async def test_what_argo_cd_declares_is_recommended_and_never_written(play: Play) -> None:
    await adopted(play, "declared", *ARGO_CD)
    status = await play.until("declared", "eight seats recommended", recommends_eight)
    assert (status["effective"]["source"], status["effective"]["maxNumSeqs"]) == ("Observed", 4)
    await play.ticks(8)
    status = await play.status("declared")
    assert condition(status, "OwnershipConflict") == "True"
    assert "argocd-controller declares args" in message_of(status, "OwnershipConflict")
    assert "RespectIgnoreDifferences=true" in message_of(status, "OwnershipConflict")
    body = await play.stage.deployment("declared")
    assert (body["metadata"]["generation"], await args_of(play, "declared")) == (1, OWN_ARGS)
    assert OPERATOR not in writers(body)
    assert not play.monitor.states("declared")
    play.served_all_along("declared")
    await play.until("declared", "eight seats recommended", recommends_eight)
    patch = await play.exported("declared", kubeconfig=play.stage.kubeconfig)
    namespace = play.stage.namespace
    await asyncio.to_thread(
        play.stage.bed.kubectl,
        "-n",
        namespace,
        "patch",
        "deployment",
        "declared",
        "--patch-file",
        "/dev/stdin",
        input=patch,
    )
    assert await args_of(play, "declared") == TUNED_ARGS
    await play.until("declared", "the owner's new value", lambda found: found["effective"].get("maxNumSeqs") == 8)


@side_by_side(stage="adoption")
async def test_what_a_person_created_is_tuned_and_outlives_its_vllmservice(play: Play) -> None:
    await adopted(play, "created", *CREATE)
    before = await play.stage.deployment("created")
    entry = await play.finished("created")
    assert (entry["outcome"], entry["fromValue"], entry["toValue"]) == ("Succeeded", "4", "8"), entry
    await play.rolled_out("created", seats=8)
    assert await args_of(play, "created") == TUNED_ARGS
    after = await play.stage.deployment("created")
    assert after["metadata"]["generation"] == 2
    assert without_args(after) == without_args(before)
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    status = await play.status("created")
    assert (status["effective"]["source"], status["effective"]["maxNumSeqs"]) == ("Tuned", 8)
    play.served_all_along("created")
    await play.delete("created")
    await play.ticks(8)
    left = await play.stage.deployment("created")
    assert (left["metadata"]["uid"], left["metadata"]["generation"]) == (after["metadata"]["uid"], 2)
    assert [seats_of(pod) for pod in await play.stage.ready_pods("created")] == [8]


def without_args(body: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a Deployment but for what may be tuned."""
    spec: dict[str, Any] = json.loads(json.dumps(body["spec"]))
    del spec["template"]["spec"]["containers"][0]["args"]
    return spec


@side_by_side(stage="adoption")
async def test_what_hurts_an_adopted_deployment_is_undone_to_the_letter(play: Play) -> None:
    await adopted(play, "hurting", *CREATE, body=deployment("hurting", **degrading()))
    entry = await play.finished("hurting")
    assert (entry["outcome"], entry["toValue"]) == ("RolledBack", "8"), entry
    await play.rolled_out("hurting", seats=4)
    assert await args_of(play, "hurting") == OWN_ARGS
    assert (await play.stage.deployment("hurting"))["metadata"]["generation"] == 3
    play.served_all_along("hurting")


@side_by_side(stage="adoption")
async def test_flags_that_were_handed_over_are_tuned_and_never_fought_for(play: Play) -> None:
    body = deployment("handed")
    body["metadata"]["annotations"] = {CONSENT: CONSENT_GIVEN}
    await adopted(play, "handed", *ARGO_CD, body=body)
    entry = await play.finished("handed")
    assert entry["outcome"] == "Succeeded", entry
    assert await args_of(play, "handed") == TUNED_ARGS
    # Its owner's tool syncs without the exception for the flags: what it writes is what its owner gets.
    await write(play, body, *ARGO_CD)
    await play.until("handed", "the owner's value", lambda found: found["effective"]["source"] == "Observed")
    generation = (await play.stage.deployment("handed"))["metadata"]["generation"]
    await play.ticks(10)
    assert await args_of(play, "handed") == OWN_ARGS
    assert (await play.stage.deployment("handed"))["metadata"]["generation"] == generation
    assert len((await play.status("handed"))["history"]) == 1


@contextmanager
def vllm_program() -> Iterator[str]:
    """The path of a program called vllm, as in a container that names its command: it runs the simulated engine."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "vllm"
        run = f'PYTHONPATH="{import_path()}" exec "{sys.executable}" -m vllm_autotuner.simulation.server "$@"'
        program.write_text(f"#!/bin/sh\n{run}\n")
        program.chmod(0o755)
        yield str(program)


def commanded(name: str, program: str, **simulated: float) -> dict[str, Any]:
    """A Deployment whose flags all stand in its command."""
    body = deployment(name, **simulated)
    [engine] = body["spec"]["template"]["spec"]["containers"]
    engine["command"] = [program, "serve", *engine.pop("args"), "--host", "$(POD_IP)"]
    return body


@side_by_side(stage="adoption")
async def test_beside_flags_that_argo_cd_declares_in_the_command_ours_stand_in_args_in_peace(play: Play) -> None:
    with vllm_program() as program:
        body = commanded("shared", program)
        await adopted(play, "shared", *ARGO_CD, body=body)
        entry = await play.finished("shared")
        assert (entry["outcome"], entry["fromValue"], entry["toValue"]) == ("Succeeded", "4", "8"), entry
        assert await args_of(play, "shared") == ["--max-num-seqs=8"]
        generation = (await play.stage.deployment("shared"))["metadata"]["generation"]
        await write(play, body, *ARGO_CD)
        await play.ticks(8)
        after = await play.stage.deployment("shared")
        assert (after["metadata"]["generation"], await args_of(play, "shared")) == (generation, ["--max-num-seqs=8"])
        assert after["spec"]["template"]["spec"]["containers"][0]["command"][1:7] == ["serve", *OWN_ARGS[:5]]
        status = await play.status("shared")
        assert (status["effective"]["source"], condition(status, "OwnershipConflict")) == ("Tuned", "")
        play.served_all_along("shared")


@side_by_side(stage="adoption")
async def test_what_hurts_beside_flags_in_the_command_leaves_no_args(play: Play) -> None:
    with vllm_program() as program:
        await adopted(play, "emptied", *ARGO_CD, body=commanded("emptied", program, **degrading()))
        before = (await play.stage.deployment("emptied"))["spec"]["template"]
        entry = await play.finished("emptied")
        assert entry["outcome"] == "RolledBack", entry
        assert (await play.stage.deployment("emptied"))["spec"]["template"] == before
        play.served_all_along("emptied")


@side_by_side(stage="adoption")
async def test_replicas_of_an_adopted_deployment_follow_the_load_where_no_manager_declares_them(play: Play) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 2, "scaleOut": {"waitingFor": "5s"}}
    await adopted(play, "grown", *CREATE, scaling=scaling, clients=30, tuning={"maxNumSeqs": {"min": 2, "max": 4}})

    async def two() -> bool:
        return bool((await play.stage.deployment("grown"))["spec"]["replicas"] == 2)

    await until("two replicas", two, seconds=PATIENCE)
    assert await args_of(play, "grown") == OWN_ARGS


@side_by_side(stage="adoption")
async def test_a_target_that_is_missing_or_taken_is_named(play: Play) -> None:
    await adopted(play, "taken", *CREATE, clients=1, tuning={"mode": "Recommend"})
    for name, target in (("lost", "nowhere"), ("second", "taken")):
        spec = {"targetRef": {"kind": "Deployment", "name": target}}
        body = {
            "apiVersion": "vllm-autotuner.dev/v1alpha1",
            "kind": "VLLMService",
            "metadata": {"name": name, "namespace": play.stage.namespace},
            "spec": spec,
        }
        await play.write("POST", "", body)
        play.names.append(name)
    for name, reason in (("lost", "TargetNotFound"), ("second", "Conflict")):
        status = await play.until(name, reason, lambda found: condition(found, "Stalled") == "True")
        assert [each["reason"] for each in status["conditions"] if each["type"] == "Stalled"] == [reason]
    assert condition(await play.status("taken"), "Ready") == "True"
