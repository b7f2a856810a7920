"""The commands as they are listed and as they are; nothing heavy is imported to list them."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from vllm_autotuner.cli import command_tree
from vllm_autotuner.cli.command_tree import COMMANDS, app
from vllm_autotuner.cli.lazy_commands import loaded

HEAVY = ("numpy", "httpx", "pydantic", "kubernetes", "aiohttp", "kopf", "matplotlib", "yaml")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_each_command_what_it_says_of_itself(name: str) -> None:
    own = loaded(COMMANDS, name).help
    assert " ".join(own.partition("\n\n")[0].split()) == COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_in_its_help(name: str) -> None:
    found = CliRunner().invoke(app, [name, "--help"])
    assert found.exit_code == 0
    assert "Examples:" in found.stdout


def test_an_unknown_command_is_refused_with_a_similar_one() -> None:
    found = CliRunner().invoke(app, ["diagnos"])
    assert found.exit_code == 2
    assert "'diagnose'" in found.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"vllm-autotuner {version('vllm-autotuner')}\n"


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys; from typer.testing import CliRunner; from vllm_autotuner.cli.command_tree import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_as_a_plugin_of_kubectl_it_calls_itself_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-vllm", "--help"])
    with pytest.raises(SystemExit):
        command_tree.main()
    assert "Usage: kubectl vllm [OPTIONS] COMMAND" in capsys.readouterr().out
