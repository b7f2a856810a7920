"""What `make release` builds: the same bytes from the same commit, and a wheel that works on its own."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest
from tests.chart.test_chart import helm_binary

REPOSITORY: Final = Path(__file__).resolve().parents[2]
UV: Final = REPOSITORY / ".state" / "uv" / "bin" / "uv"
VERSION: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NAMES: Final = {
    f"vllm_autotuner-{VERSION}-py3-none-any.whl",
    f"vllm_autotuner-{VERSION}.tar.gz",
    f"vllm-autotuner-{VERSION}.tgz",
    f"vllm-autotuner-{VERSION}.cdx.json",
    f"vllmservices-{VERSION}.yaml",
}


def run(*command: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)


def clone(folder: Path) -> Path:
    found = run("git", "clone", "--quiet", REPOSITORY, folder, cwd=REPOSITORY)
    assert found.returncode == 0, found.stderr
    return folder


def release(tree: Path, version: str = VERSION, *more: str) -> "subprocess.CompletedProcess[str]":
    helm = helm_binary()
    if helm is None:
        pytest.skip("no helm: `python -m e2e.binaries helm` builds it")
    return run(sys.executable, "tools/release.py", version, "--uv", UV, "--helm", helm, "--no-image", *more, cwd=tree)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of the commit of this repository."""
    if not UV.is_file():
        pytest.skip("no uv in .state: `make setup` installs it")
    tree = clone(tmp_path_factory.mktemp("release") / "one")
    done = release(tree)
    assert done.returncode == 0, done.stderr
    return tree / "dist"


def sums(dist: Path) -> dict[str, str]:
    lines = (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def test_everything_is_there_with_its_checksum(dist: Path) -> None:
    found = sums(dist)
    assert found.keys() == NAMES
    assert {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in found} == found


def test_the_same_commit_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    again = clone(tmp_path / "two")
    done = release(again)
    assert done.returncode == 0, done.stderr
    assert sums(again / "dist") == sums(dist)


def test_the_sbom_lists_every_dependency_of_the_lock_file(dist: Path) -> None:
    exported = run(
        UV,
        "export",
        "--quiet",
        "--frozen",
        "--no-dev",
        "--all-extras",
        "--no-hashes",
        "--no-emit-project",
        cwd=dist.parent,
    )
    locked = set(re.findall(r"^([a-z0-9._-]+)==(\S+)", exported.stdout, re.MULTILINE))
    components = json.loads((dist / f"vllm-autotuner-{VERSION}.cdx.json").read_text(encoding="utf-8"))["components"]
    assert len(locked) > 20
    assert locked <= {(each["name"], each["version"]) for each in components}


def test_the_wheel_diagnoses_a_recording_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    made = run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    [wheel] = dist.glob("*.whl")
    installed = run(UV, "pip", "install", "--quiet", "--python", tmp_path / "venv", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    recording = min((REPOSITORY / "tests" / "data" / "vllm-0.32" / "recordings").glob("*.om.gz"))
    for name in ("vllm-autotuner", "kubectl-vllm"):
        found = run(tmp_path / "venv" / "bin" / name, "diagnose", "--recording", recording, "-o", "json", cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)


def test_another_version_and_a_changed_tree_are_refused(dist: Path) -> None:
    tree = dist.parent
    assert "but pyproject.toml says" in release(tree, "9.9.9").stderr
    (tree / "README.md").write_text("changed", encoding="utf-8")
    try:
        assert "a release is of a commit" in release(tree).stderr
    finally:
        assert run("git", "checkout", "--quiet", "README.md", cwd=tree).returncode == 0


def test_a_folder_with_other_files_is_not_emptied(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    for place, says in ((tmp_path, "no SHA256SUMS of an earlier release"), (tmp_path / "thesis.txt", "not a folder")):
        done = release(dist.parent, VERSION, "--output", str(place))
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "years of work"
