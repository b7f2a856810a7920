"""The commands as they are listed and as they are; nothing heavy is imported to list them."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_autotuner.cli import command_tree
from vllm_autotuner.cli.command_tree import COMMANDS, app
from vllm_autotuner.cli.lazy_commands import loaded

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "httpx", "pydantic", "kubernetes", "aiohttp", "kopf", "matplotlib", "yaml", "rich", "pygments")
LATER = ("kubernetes", "kopf", "aiohttp", "matplotlib", "vllm_autotuner.simulation")
RECORDING = "tests/data/vllm-0.32/recordings/kv-saturation.om.gz"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_each_command_what_it_says_of_itself(name: str) -> None:
    own = loaded(COMMANDS, name).help
    assert " ".join(own.partition("\n\n")[0].split()) == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_in_its_help(name: str) -> None:
    found = CliRunner().invoke(app, [name, "--help"])
    assert found.exit_code == 0
    assert "Examples:" in found.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_exits_with_the_code_that_the_help_has_for_it(name: str) -> None:
    told = " ".join(CliRunner().invoke(app, [name, "--help"]).stdout.split()).partition("Exit codes:")[2]
    code = 1 if told and "2 wrong options" not in told and "2 a check failed or could not run" not in told else 2
    assert CliRunner().invoke(app, [name, "--nonsense"]).exit_code == code


def test_an_unknown_command_is_refused_with_a_similar_one() -> None:
    found = CliRunner().invoke(app, ["diagnos"])
    assert found.exit_code == 2
    assert "'diagnose'" in found.stderr


def test_without_a_command_the_help_is_shown_as_a_usage_error() -> None:
    found = CliRunner().invoke(app, [])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == CliRunner().invoke(app, ["--help"]).stdout


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"vllm-autotuner {version('vllm-autotuner')}\n"


def imported(names: tuple[str, ...], *arguments: str) -> str:
    """Which of these modules a command has imported when it ends."""
    check = (
        "import sys; from typer.testing import CliRunner; from vllm_autotuner.cli.command_tree import app; "
        f"assert CliRunner().invoke(app, {[*arguments]!r}).exit_code == 0; "
        f"print([name for name in {names!r} if name in sys.modules])"
    )
    return subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_help_imports_nothing_heavy() -> None:
    assert imported(HEAVY, "--help") == "[]\n"


def test_diagnose_imports_nothing_of_other_commands() -> None:
    assert imported(LATER, "diagnose", "--recording", RECORDING) == "[]\n"


def test_the_help_lists_each_command_in_its_group_with_all_of_its_line() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}, terminal_width=200).stdout
    at = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert at == sorted(at)
    assert [each.help for each in COMMANDS.values() if each.help not in " ".join(shown.split())] == []
    assert [each.panel for each in COMMANDS.values() if f"\n{each.panel}:\n" not in shown] == []


def test_as_a_plugin_of_kubectl_it_calls_itself_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-vllm", "--help"])
    with pytest.raises(SystemExit):
        command_tree.main()
    assert "Usage: kubectl vllm [OPTIONS] COMMAND" in capsys.readouterr().out


DIAGNOSE = ("diagnose", "--recording", RECORDING)


def typed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell gets, with the streams of its own."""
    return subprocess.run(
        (sys.executable, "-m", "vllm_autotuner", *arguments),
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("columns", ["0", "1", "-5", "many", "999999999"])
def test_a_width_that_no_terminal_has_is_not_believed(columns: str) -> None:
    found = typed("doctor", "--help", COLUMNS=columns)
    assert "whether the metrics are complete" in " ".join(found.stdout.split())


def test_an_encoding_without_boxes_is_no_traceback() -> None:
    found = typed("doctor", "--help", PYTHONIOENCODING="ascii")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("arguments", [DIAGNOSE, (*DIAGNOSE, "-o", "json")], ids=["for people", "for programs"])
def test_a_stream_that_the_caller_closed_is_no_traceback(arguments: tuple[str, ...], stream: int) -> None:
    command = f'exec "$0" -m vllm_autotuner "$@" {stream}>&-'
    found = subprocess.run(
        ("sh", "-c", command, sys.executable, *arguments),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
