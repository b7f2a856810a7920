"""What is said when the API server refuses, fails or is none: the HTTP status, and what to do."""

import json
from pathlib import Path

import pytest
from tests.cli.servers import serving
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app

PAGE = "<!DOCTYPE html>\n<html><title>503 Service Temporarily Unavailable</title></html>"


def kubeconfig(folder: Path, server: str) -> Path:
    here = {"name": "here"}
    file = folder / "kubeconfig"
    config = {
        "current-context": "here",
        "clusters": [here | {"cluster": {"server": server}}],
        "users": [here | {"user": {"token": "expired"}}],
        "contexts": [here | {"context": {"cluster": "here", "user": "here"}}],
    }
    file.write_text(json.dumps(config))
    return file


def refusal(reason: str, message: str) -> str:
    return json.dumps({"kind": "Status", "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("status", "body", "says", "answer"),
    [
        pytest.param(401, refusal("Unauthorized", "Unauthorized"), "log in again", "Unauthorized", id="not logged in"),
        pytest.param(403, refusal("Forbidden", "u cannot get x"), "ask an administrator", "u cannot get x", id="RBAC"),
        pytest.param(422, refusal("Invalid", "bad spec"), "the API server refuses this", "bad spec", id="refused"),
        pytest.param(500, refusal("InternalError", "etcd"), "try again", "etcd", id="it fails"),
        pytest.param(503, PAGE, "try again", "HTTP503", id="a proxy without an API server"),
    ],
)
def test_a_refusal_is_told_with_its_status_and_a_remedy(
    tmp_path: Path, status: int, body: str, says: str, answer: str
) -> None:
    with serving(lambda path, sent: (status, body)) as url:
        found = CliRunner().invoke(app, ["history", "chat", "--kubeconfig", str(kubeconfig(tmp_path, url))])
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"error: HTTP {status}: ")
    assert says in found.stderr
    assert found.stderr.endswith(f"/vllmservices/chat: {answer}\n")


@pytest.mark.parametrize("page", [PAGE, "", "[]"], ids=["a login page", "nothing", "a list"])
def test_what_is_no_api_server_is_told_with_a_remedy(tmp_path: Path, page: str) -> None:
    with serving(lambda path, sent: (200, page)) as url:
        found = CliRunner().invoke(app, ["history", "chat", "--kubeconfig", str(kubeconfig(tmp_path, url))])
    assert found.exit_code == 1
    assert "is no API server, perhaps a proxy that wants a login; is --context the right one?" in found.stderr


def test_an_empty_kubeconfig_is_one_that_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    found = CliRunner().invoke(app, ["history", "chat", "--kubeconfig", str(empty)])
    says = f"error: no kubeconfig: {empty} does not exist or is empty; use --kubeconfig FILE, or set KUBECONFIG\n"
    assert (found.exit_code, found.stderr) == (1, says)
