"""A group of commands that are imported when they are run: `--help` must not wait for numpy, httpx and pydantic.

The group lists names and one-line helps from a table; a test compares them with the commands' own. Must not: hold
anything else about a command.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from vllm_autotuner.cli.options.usage_errors import USAGE_ERROR, UsageErrorExitsOne

__all__ = ["LazyCommand", "LazyGroup", "loaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """One command, without its code."""

    module: str
    """Where the function of the command's name is, and its `EXAMPLES`."""
    help: str
    """The first line of its docstring."""
    panel: str
    usage_exits_one: bool = False
    """For commands whose exit code 2 means something else, such as "no data", or nothing."""
    examples: str = "EXAMPLES"


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`, which a subclass names."""

    COMMANDS: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=each.help, rich_help_panel=each.panel) for name, each in self.COMMANDS.items()
        }

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table, not of the alphabet."""
        return [*self.COMMANDS]

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without arguments a usage error that shows the help: typer's own would leave it to `format_help` to print."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE_ERROR)
        return super().parse_args(ctx, args)

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Plain text, by click: boxes would cost more than half of the time, as typer draws them with all of rich."""
        super(TyperGroup, self).format_help(ctx, formatter)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands under their panels, each with all of its line."""
        for panel, names in groupby(self.COMMANDS, key=lambda name: self.COMMANDS[name].panel):
            with formatter.section(panel):
                formatter.write_dl([(name, self.COMMANDS[name].help) for name in names])

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What is run. Unknown names are refused by the base class, with suggestions."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else loaded(self.COMMANDS, name), rest


def loaded(commands: Mapping[str, LazyCommand], name: str) -> Any:
    """Import a command and return it with its options."""
    found = commands[name]
    module = import_module(found.module)
    of_one = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    of_one.command(
        name, cls=UsageErrorExitsOne if found.usage_exits_one else TyperCommand, epilog=getattr(module, found.examples)
    )(getattr(module, name.replace("-", "_")))
    return typer.main.get_command(of_one)
