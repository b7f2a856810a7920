"""`kubectl vllm`: the plugin beside the real kubectl, on the real API server, answered by the real operator."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from e2e.bed import import_path
from e2e.control_plane import write_kubeconfig
from e2e.side_by_side import CROWD, Play, side_by_side

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def vllm(play: Play, *arguments: str) -> tuple[int, str]:
    """Run `kubectl vllm` as the admin, in the namespace of the stage; return the exit code and both outputs."""
    bed = play.stage.bed
    namespace, token = play.stage.namespace, bed.control_plane.admin_token_file.read_text(encoding="utf-8")
    kubeconfig = bed.admin_kubeconfig.with_name(f"admin-in-{namespace}.kubeconfig")
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
    await play.until("asked", "a recommendation", lambda status: status.get("recommendation"))
    code, text = await vllm(play, "approve", "asked", "--id", "another")
    assert code == 1
    assert "the recommendation is now maxNumSeqs 4 -> 8" in text
    code, text = await vllm(play, "approve", "asked")
    assert (code, "asked: approved maxNumSeqs 4 -> 8" in text) == (0, True), text
    await play.change_is("asked", "Provisioning", "Verifying", "WarmingUp", "Analyzing")
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
