"""Commands and make targets that pages name exist, with the options that they are given there."""

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from vllm_autotuner.cli.command_tree import COMMANDS
from vllm_autotuner.cli.lazy_commands import loaded

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.yml"),
        *(ROOT / ".github").rglob("*.md"),
    ]
)
LINE: Final = re.compile(r"(?:^|`)vllm-autotuner +(\w[^`\n]*)", re.MULTILINE)
MAKE: Final = re.compile(r"(?:^|`)make +([^`\n#]+)", re.MULTILINE)
TARGETS: Final = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def unknown(line: str) -> list[str]:
    """The command, or those of its options, that do not exist; empty when all do."""
    # What follows a pipe is another program.
    name, *arguments = shlex.split(line.partition(" | ")[0], comments=True)
    if name not in COMMANDS:
        return [name]
    command = loaded(COMMANDS, name)
    options = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}
    given = [argument.partition("=")[0] for argument in arguments if re.match(r"--?[a-zA-Z]", argument)]
    values = {arguments[at + 1] for at, each in enumerate(arguments[:-1]) if each == "--engine-args"}
    return [each for each in given if each not in options | {"--help"} and each not in values]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_command_and_option_exists(page: Path) -> None:
    assert [(line, wrong) for line in LINE.findall(page.read_text(encoding="utf-8")) if (wrong := unknown(line))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_make_target_exists(page: Path) -> None:
    lines = MAKE.findall(page.read_text(encoding="utf-8"))
    named = {word for line in lines for word in shlex.split(line) if re.fullmatch(r"[a-z][a-z0-9-]*", word)}
    assert named - TARGETS == set()


def test_the_check_finds_what_it_looks_for() -> None:
    assert unknown('diagnose --metrics URL --engine-args "--max-num-seqs 64" -o json  # --no-such') == []
    assert unknown("diagnose --no-such") == ["--no-such"]
    assert unknown("no-such --help") == ["no-such"]
