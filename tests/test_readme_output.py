"""What README.md shows of an answer is what the command above it prints; `...` stands for lines that are left out."""

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")


def words(lines: list[str]) -> str:
    """The text without the box and without line breaks."""
    return " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in lines).split())


def test_the_diagnosis_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = re.search(
        r"^vllm-autotuner (diagnose --recording [^\n]*)$.*?^```\n(╭.*?╯\n)```", README, re.DOTALL | re.MULTILINE
    )
    assert found is not None
    result = CliRunner().invoke(app, shlex.split(found[1]), env={"COLUMNS": "116"})
    printed = words(result.output.splitlines())
    parts = [words(part.splitlines()) for part in re.split(r"^│ \.\.\. +│$", found[2], flags=re.MULTILINE)]
    assert result.exit_code == 0
    assert len(parts) > 1
    assert [part for part in parts if part not in printed] == []


def test_the_simulation_is_what_the_command_prints() -> None:
    found = re.search(
        r"^vllm-autotuner (simulate [^\n]*)$.*?^```\n(1 replica.*?)^```", README, re.DOTALL | re.MULTILINE
    )
    assert found is not None
    result = CliRunner().invoke(app, shlex.split(found[1]), env={"COLUMNS": "130"})
    assert result.exit_code == 0
    printed = words(result.output.splitlines())
    lines = [words([line]) for line in found[2].splitlines()]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []
