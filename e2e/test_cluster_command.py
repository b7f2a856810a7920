"""What `python -m e2e.cluster` says where it cannot begin: stand-ins for kubectl and helm, and no cluster."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import __main__ as command
from e2e.cluster import acts, installation, manifests
from e2e.cluster.access import Cluster
from e2e.cluster.errors import ActFailed, ClusterError
from e2e.cluster.scene import Images, Scene
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.workload.rendering import render_deployment


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text("{}", encoding="utf-8")
    return path


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own with a kubectl and a helm that succeed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("kubectl", "helm"):
        program(folder / name, "echo https://127.0.0.1:1")
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def refusal(kubeconfig: Path) -> str:
    with pytest.raises(ClusterError) as caught:
        Cluster(kubeconfig=kubeconfig, namespace="e2e").check()
    return str(caught.value)


def test_a_cluster_that_answers_an_admin_is_fine(kubeconfig: Path, commands: Path) -> None:
    assert Cluster(kubeconfig=kubeconfig, namespace="e2e").check() == "https://127.0.0.1:1"


def test_without_a_kubeconfig_it_says_which_option_names_one(tmp_path: Path, commands: Path) -> None:
    assert "no kubeconfig at" in (said := refusal(tmp_path / "none"))
    assert "--kubeconfig" in said


@pytest.mark.parametrize("name", ["kubectl", "helm"])
def test_a_missing_command_is_named_with_where_to_get_it(name: str, kubeconfig: Path, commands: Path) -> None:
    (commands / name).unlink()
    assert f"{name} is not in the PATH: install it (https://" in refusal(kubeconfig)


def test_a_cluster_out_of_reach_is_named_with_the_words_of_kubectl(kubeconfig: Path, commands: Path) -> None:
    refuses = 'case "$*" in *view*) echo https://there:6443;; *) echo "connection refused" >&2; exit 1;; esac'
    program(commands / "kubectl", refuses)
    said = refusal(kubeconfig)
    assert said.startswith("the API server https://there:6443 gives no answer")
    assert "get nodes` has to work" in said
    assert said.endswith("connection refused")


def test_rights_that_are_too_few_are_named(kubeconfig: Path, commands: Path) -> None:
    program(commands / "kubectl", 'case "$*" in *can-i*clusterroles*) exit 1;; esac')
    assert "may not create clusterroles" in refusal(kubeconfig)


def test_the_command_ends_with_1_and_one_line(
    tmp_path: Path, commands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--kubeconfig", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("e2e: no kubeconfig at ")


def test_what_keeps_pods_from_serving_is_told_when_time_is_up(kubeconfig: Path, commands: Path) -> None:
    crash = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    refused = {"reason": "StartError", "message": "exec: not found\n"}
    pods = [
        pod("api-1", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: too few CPUs"}]),
        pod("api-2", containerStatuses=[{"state": crash}]),
        pod("api-3", containerStatuses=[{"state": crash, "lastState": {"terminated": {"exitCode": 128, **refused}}}]),
        pod("api-4", containerStatuses=[{"state": {"running": {}}}]),
    ]
    (commands / "pods.json").write_text(json.dumps({"items": pods}), encoding="utf-8")
    program(commands / "kubectl", f"/bin/cat {commands / 'pods.json'}")
    images = Images(operator="a", engine="b", prometheus="c")
    scene = Scene(cluster=Cluster(kubeconfig=kubeconfig, namespace="e2e"), images=images, say=print)
    with pytest.raises(ActFailed) as caught:
        scene.until("api serves", lambda: False, seconds=0)
    assert str(caught.value) == (
        "api serves: not within 0 s; pod api-1 is not scheduled: 0/1 nodes: too few CPUs; "
        "pod api-2: CrashLoopBackOff: back-off; "
        "pod api-3: CrashLoopBackOff: back-off; it ended with 128 (StartError): exec: not found"
    )


def pod(name: str, **status: object) -> dict[str, object]:
    return {"metadata": {"name": name}, "status": status}


@pytest.mark.parametrize(
    "service",
    [manifests.chat("engine", mode="Recommend"), manifests.batch("e"), manifests.search("e"), manifests.api("e")],
    ids=lambda service: str(service["metadata"]["name"]),
)
def test_the_services_of_the_acts_are_valid(service: dict[str, Any]) -> None:
    metadata = service["metadata"] | {"namespace": "e2e"}
    parsed = parse_service(service | {"metadata": metadata})
    assert isinstance(parsed, VLLMService), parsed


def test_what_the_questions_tell_for_the_restricted_standard_is_what_the_acts_run_under() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "faq.md").read_text(encoding="utf-8")
    told = yaml.safe_load(text.partition("PodSecurity")[2].partition("```yaml\n")[2].partition("```")[0])["spec"]
    service = manifests.chat("engine", mode="Recommend")
    service["spec"] |= told
    parsed = parse_service(service | {"metadata": service["metadata"] | {"namespace": "e2e", "uid": "u"}})
    assert isinstance(parsed, VLLMService), parsed
    rendered = render_deployment(parsed, EngineKnobs(), 1)["spec"]["template"]["spec"]
    assert manifests.RESTRICTED_POD.items() <= rendered["securityContext"].items()
    assert rendered["containers"][0]["securityContext"] == manifests.RESTRICTED_CONTAINER


def test_help_shows_every_act_and_examples() -> None:
    done = subprocess.run([sys.executable, "-m", "e2e.cluster", "--help"], capture_output=True, text=True, check=True)
    assert set(acts.ALL) <= set(done.stdout.replace(",", "").split())
    assert "make e2e KUBECONFIG=" in done.stdout


@pytest.mark.parametrize(
    ("image", "repository", "tag", "digest"),
    [
        ("vllm-autotuner:0.1.0", "vllm-autotuner", "0.1.0", ""),
        ("localhost:5000/team/tuner", "localhost:5000/team/tuner", "latest", ""),
        ("ghcr.io/team/tuner:1@sha256:ab", "ghcr.io/team/tuner", "1", "sha256:ab"),
    ],
)
def test_an_image_becomes_the_values_of_the_chart(image: str, repository: str, tag: str, digest: str) -> None:
    assert installation.image_values(image) == {"repository": repository, "tag": tag, "digest": digest}
