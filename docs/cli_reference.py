"""Writes `cli.md` from the commands themselves: `make docs`.

Must not: describe an option in other words than its own `--help`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from docs.table_cell import cell
from vllm_autotuner.cli.command_tree import COMMANDS
from vllm_autotuner.cli.lazy_commands import loaded

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# Commands

Generated from the commands by `make docs`; do not edit. `--help` of each command prints the same. With the package
installed, `kubectl vllm` runs each of them as a plugin of kubectl. `--install-completion` without a command sets up
completion for your shell.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name in COMMANDS for line in _command(name))]) + "\n"


def _command(name: str) -> Iterator[str]:
    command = loaded(COMMANDS, name)
    with typer.Context(command, info_name=name) as context:
        yield f"## {name}\n"
        yield f"{_text(command.help)}\n"
        pieces = " ".join(command.collect_usage_pieces(context))
        yield f"```\nvllm-autotuner {name} {pieces}\n```\n"
        rows = [_row(each, context) for each in command.params if not getattr(each, "hidden", False)]
        yield "| option | meaning |\n|---|---|"
        yield "\n".join(f"| {option} | {meaning} |" for option, meaning in rows if option) + "\n"
        yield f"{_examples(command.epilog)}\n"


def _row(parameter: Any, context: Any) -> tuple[str, str]:
    record = parameter.get_help_record(context)
    if record is None:
        name = parameter.make_metavar(context) if hasattr(parameter, "make_metavar") else parameter.name
        return f"`{name}`", _cell(getattr(parameter, "help", "") or "")
    option, meaning = record
    return f"`{option.strip()}`", _cell(meaning)


def _cell(text: str) -> str:
    return cell(re.sub(r"\[/?[a-z_ ]+\]", "", text))


def _text(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("<", "&lt;")


def _examples(epilog: str) -> str:
    """Indented lines are commands; the last paragraph is about exit codes."""
    found = []
    for part in epilog.strip().split("\n\n"):
        lines = part.splitlines()
        if lines[0].startswith("    "):
            found.append("```\n" + "\n".join(line[4:] for line in lines) + "\n```")
        elif lines != ["Examples:"]:
            found.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(found)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
