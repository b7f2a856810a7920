"""`kubectl vllm`: the plugin beside the real kubectl, on the real API server, answered by the real operator."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from e2e.bed import import_path
from e2e.control_plane import write_kubeconfig
from e2e.side_by_side import CROWD, PATIENCE, Play, change_of, side_by_side
from e2e.stage import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def vllm(play: Play, *arguments: str, token: str = "") -> tuple[int, str]:
    """Run `kubectl vllm` in the namespace of the stage, as the admin unless a token of another account is given.

    Return the exit code and both outputs.
    """
    bed, namespace = play.stage.bed, play.stage.namespace
    who, token = (
        ("other", token) if token else ("admin", bed.control_plane.admin_token_file.read_text(encoding="utf-8"))
    )
    kubeconfig = bed.admin_kubeconfig.with_name(f"{who}-in-{namespace}.kubeconfig")
    write_kubeconfig(kubeconfig, server=bed.api_url, ca_file=bed.ca_file, token=token, namespace=namespace)
    # kubectl finds its plugins on the PATH: the package's scripts are beside its Python.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    process = await asyncio.create_subprocess_exec(
        str(bed.bin["kubectl"]),
        "vllm",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"PATH": path, "PYTHONPATH": import_path(), "KUBECONFIG": str(kubeconfig)},
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@side_by_side(stage="faults")
async def test_a_person_approves_a_change_and_takes_it_back(play: Play) -> None:
    await play.serves("asked", clients=CROWD, tuning={"mode": "Approve"})

    # A busy machine sees another queue for a moment, and advises something else, or nothing.
    async def told_of_the_other_one() -> bool:
        code, text = await vllm(play, "approve", "asked", "--id", "another")
        assert code == 1, text
        return "the recommendation is now " in text

    await until("an approval of another recommendation is refused", told_of_the_other_one, seconds=PATIENCE, every=1)

    async def approved() -> bool:
        code, text = await vllm(play, "approve", "asked")
        return (code, "asked: approved maxNumSeqs 4 -> 8" in text) == (0, True)

    await until("the recommendation is approved", approved, seconds=PATIENCE, every=1)

    async def begun() -> bool:
        # A recommendation that went and came back, as on a busy machine, is another one: approved anew.
        if change_of(await play.status("asked")):
            return True
        await vllm(play, "approve", "asked")
        return False

    await until("the approved change begins", begun, seconds=PATIENCE, every=5)
    code, text = await vllm(play, "rollback", "asked")
    assert (code, "rollback of maxNumSeqs=8 requested" in text) == (0, True), text
    assert (await play.finished("asked"))["outcome"] == "RolledBack"
    code, text = await vllm(play, "rollback", "asked")
    assert (code, "no change in progress, nothing to roll back" in text) == (1, True), text
    code, text = await vllm(play, "status", "-o", "json")
    assert code == 0, text
    assert "asked" in {each["name"] for each in json.loads(text)["services"]}


@side_by_side(stage="faults")
async def test_a_paused_service_is_not_tuned_until_it_is_resumed(play: Play) -> None:
    await play.serves("halted")
    assert (await vllm(play, "pause", "halted"))[0] == 0
    await play.load("halted", CROWD)
    await play.until("halted", "a recommendation", lambda status: status.get("recommendation"))
    await play.ticks(4)
    assert not (await play.status("halted")).get("activeChange")
    code, text = await vllm(play, "resume", "halted")
    assert (code, text) == (0, f"{play.stage.namespace}/halted: tuning resumes\n")
    await play.change_is("halted", "WarmingUp", "Analyzing")


@side_by_side(stage="faults")
async def test_the_report_of_a_fleet_tells_gpus_and_what_the_services_went_through(play: Play) -> None:
    bed = play.stage.bed
    file = bed.admin_kubeconfig.with_name(f"{play.stage.namespace}.html")
    await play.serves("told", clients=2, accelerator={"product": "NVIDIA-H100-80GB-HBM3"})
    await play.edit("told", replicas=2)
    status = await play.until("told", "a second step", lambda found: len(found.get("gpuSteps") or []) == 2)
    assert [(step["cause"], step["gpus"], step["reference"]) for step in status["gpuSteps"]] == [
        ("Start", 1, 1),
        ("Owner", 2, 2),
    ]
    code, text = await vllm(play, "history", "told", "--gpu-price", "2.49")
    assert (code, "1 -> 2 GPUs, 2 replicas (set by its owner)" in text) == (0, True), text
    options = ("--html", str(file), "--since", "2m", "--gpu-price", "2.49")
    code, text = await vllm(play, "report", *options, "--prometheus", bed.prometheus_url)
    assert (code, "GPUs:     saved and spent nothing" in text) == (0, True), text
    page = file.read_text(encoding="utf-8")
    assert f"{play.stage.namespace}/told" in page
    # A service that has just begun to serve has one evaluation.
    assert "<svg" in page or "Only one evaluation" in page, text
    file.unlink()
    code, text = await vllm(play, "report", *options, "--prometheus", "http://127.0.0.1:1")
    assert (code, "127.0.0.1:1" in text, file.exists()) == (1, True, False), text
    code, text = await vllm(play, "report", *options, token="no-such-token")
    assert (code, file.exists()) == (1, False), text
    assert len(text.splitlines()) == 1, text
    code, text = await vllm(play, "report", *options, "-n", "kube-public")
    assert (code, "no VLLMService in namespace kube-public" in text) == (2, True), text
