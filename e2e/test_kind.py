"""`make kind` without Docker: what it runs and in which order, with stand-ins; and the real kind on its config."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster import __main__ as command
from e2e.cluster import kind as kind_command
from e2e.cluster.kind import CLUSTER, CONFIG, REPOSITORY, main
from e2e.stage import SIMULATED_ENGINE

BUILDS = ["docker info", "docker build --target operator", "docker build --target engine", "kind get clusters"]


DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")


class Machine:
    """A PATH with a docker and a kind that only write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        self._log.touch()
        for name in ("docker", "kind"):
            self.program(name)

    def program(self, name: str, script: str = "") -> None:
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._log}\n{script}\n', encoding="utf-8")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """The first words of each call."""
        words = [line.split() for line in self._log.read_text(encoding="utf-8").splitlines()]
        return [" ".join(call[: 4 if call[1] == "build" else 3]) for call in words]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kind_command, "KUBECONFIG", tmp_path / "state" / "kubeconfig")
    return Machine(tmp_path)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """With which arguments the acts were played; they pass."""
    runs: list[Sequence[str]] = []

    def play(arguments: Sequence[str]) -> int:
        runs.append(arguments)
        return 0

    monkeypatch.setattr(command, "main", play)
    return runs


def test_it_builds_creates_loads_plays_and_deletes(machine: Machine, played: list[Sequence[str]]) -> None:
    assert main(["--only", "serve"]) == 0
    assert machine.calls() == [*BUILDS, "kind create cluster", "kind load docker-image", "kind delete cluster"]
    assert played == [["--kubeconfig", str(kind_command.KUBECONFIG), "--only", "serve"]]


def test_a_cluster_that_is_kept_is_used_again(machine: Machine, played: list[Sequence[str]]) -> None:
    machine.program("kind", f"case $1 in get) echo {CLUSTER};; esac")
    assert main(["--keep"]) == 0
    assert machine.calls() == [*BUILDS, "kind export kubeconfig", "kind load docker-image"]
    assert "--keep" in played[0]


def test_a_cluster_that_cannot_be_made_leaves_nothing(
    machine: Machine, played: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.program("kind", "case $1 in create) exit 3;; esac")
    assert main([]) == 1
    assert machine.calls()[-2:] == ["kind create cluster", "kind delete cluster"]
    assert "kind create cluster" in (said := capsys.readouterr().err)
    assert "ended with exit code 3" in said
    assert played == []


def test_without_a_daemon_nothing_is_begun(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.program("docker", "exit 1")
    assert main([]) == 1
    assert machine.calls() == ["docker info"]
    assert capsys.readouterr().err == "kind: no Docker daemon answers: start Docker (`docker info` has to work)\n"


def test_without_docker_it_says_where_to_get_it(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docker").unlink()
    assert main([]) == 1
    assert "docker is not in the PATH: install it" in capsys.readouterr().err


def test_the_dockerfile_has_both_targets_and_makes_the_operator_without_one() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    targets = {words[2]: stage for stage in stages if (words := stage.split())[1] == "AS"}
    assert {"operator", "engine"} <= targets.keys()
    assert list(targets)[-1] == "operator"


def test_the_bed_runs_what_the_image_of_the_engine_runs() -> None:
    engine = DOCKERFILE.partition(" AS engine\n")[2]
    entrypoint = re.search(r"^ENTRYPOINT (.*)$", engine, re.MULTILINE)
    command = SIMULATED_ENGINE["command"]
    assert entrypoint is not None
    assert isinstance(command, list)
    assert json.loads(entrypoint[1])[1:] == command[1:]


@pytest.mark.kubeconfig
def test_the_real_kind_reads_the_config(kind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the config before it looks for Docker, of which there is none in this PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    misspelt = tmp_path / "kind.yaml"
    misspelt.write_text(CONFIG.read_text(encoding="utf-8").replace("role:", "rolle:"), encoding="utf-8")

    def said(config: Path) -> str:
        create = [str(kind), "create", "cluster", "--name", "parsed", "--config", str(config)]
        done = subprocess.run(
            [*create, "--kubeconfig", str(tmp_path / "kubeconfig")], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        return done.stderr

    assert "unable to decode config" in said(misspelt)
    assert "failed to get docker info" in (fine := said(CONFIG))
    assert "config:" not in fine
