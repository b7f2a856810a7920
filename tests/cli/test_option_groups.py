"""Option groups: one value per group in the command, one option per field on the command line."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner, Result

from vllm_autotuner.cli.command_tree import COMMANDS
from vllm_autotuner.cli.lazy_commands import loaded
from vllm_autotuner.cli.options.groups import with_groups

Tag = Annotated[str, typer.Option(metavar="TEXT", help="A tag.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    PANEL: ClassVar = "Place"

    town: Annotated[str, typer.Option("--town", "--city", metavar="NAME", help="Where.")]
    streets: Annotated[list[str] | None, typer.Option("--street", help="Repeatable.")] = None
    tag: Tag = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    PANEL: ClassVar = "Time"

    days: Annotated[int, typer.Option(help="How long.", envvar="HOW_MANY_DAYS")] = 3


def invoked(*args: str, **environment: str) -> tuple[Result, list[object]]:
    seen: list[object] = []
    small = typer.Typer()

    @with_groups
    def travel(
        name: Annotated[str, typer.Argument(help="Who.")],
        *,
        place: PlaceOptions,
        time: TimeOptions,
        fast: Annotated[bool, typer.Option("--fast", help="By train.")] = False,
    ) -> None:
        """Go somewhere."""
        seen.extend([name, place, time, fast])

    small.command()(travel)
    return CliRunner().invoke(small, list(args), env=environment), seen


def test_each_group_arrives_as_one_value() -> None:
    result, seen = invoked("Ada", "--city", "Bonn", "--street", "a", "--street", "b", "--fast", HOW_MANY_DAYS="9")
    assert result.exit_code == 0, result.output
    assert seen == ["Ada", PlaceOptions(town="Bonn", streets=["a", "b"], tag="here"), TimeOptions(days=9), True]


def test_defaults_are_those_of_the_dataclass() -> None:
    result, seen = invoked("Ada", "--town", "Bonn")
    assert result.exit_code == 0, result.output
    assert seen == ["Ada", PlaceOptions(town="Bonn"), TimeOptions(), False]


def test_a_field_without_a_default_is_a_required_option() -> None:
    result, seen = invoked("Ada")
    assert (result.exit_code, seen) == (2, [])
    assert "Missing option '--town'" in result.output


def test_help_has_a_heading_per_group_and_the_text_of_the_command() -> None:
    result, _ = invoked("--help")
    assert "Go somewhere." in result.output
    headings = [line.split()[1] for line in result.output.splitlines() if line.startswith("╭")]
    assert headings == ["Arguments", "Options", "Place", "Time"]


def test_one_option_may_stand_in_several_groups() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class LabelOptions:
        PANEL: ClassVar = "Labels"

        tag: Tag = "there"

    def label(*, labels: LabelOptions) -> None: ...

    (parameter,) = with_groups(label).__signature__.parameters.values()  # type: ignore[attr-defined]
    assert parameter.default == "there"
    assert parameter.annotation.__metadata__[0].rich_help_panel == "Labels"
    assert Tag.__metadata__[0].rich_help_panel is None  # type: ignore[attr-defined]


def test_two_groups_with_the_same_option_are_refused_at_import() -> None:
    def twice(*, one: TimeOptions, other: TimeOptions) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'days'"):
        with_groups(twice)


@pytest.mark.parametrize("command", ["diagnose", "doctor", "record", "explain", "backtest", "simulate", "run"])
def test_only_help_itself_stands_without_a_heading(command: str) -> None:
    """So that `--help` reads in groups: what an option is about, before what it is called."""
    flat = loaded(COMMANDS, command).params
    assert [one.name for one in flat if getattr(one, "rich_help_panel", None) is None and one.name != "name"] == []


ACCESS = (
    *("--bearer-token-file", "--basic-auth-user", "--basic-auth-password-file", "--ca-file", "--client-cert"),
    *("--client-key", "--insecure-skip-tls-verify", "--header", "--org-id"),
)
OBJECTIVES = ("--profile", "--ttft", "--tpot", "--quantile")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("diagnose", (*ACCESS, *OBJECTIVES)),
        ("doctor", (*ACCESS, *OBJECTIVES)),
        ("record", ACCESS),
        ("explain", (*ACCESS, *OBJECTIVES)),
        ("backtest", (*ACCESS, *OBJECTIVES)),
        ("simulate", OBJECTIVES),
    ],
)
def test_a_shared_group_is_whole_in_every_command(command: str, options: tuple[str, ...]) -> None:
    flat = loaded(COMMANDS, command).params
    known = [option for one in flat for option in one.opts]
    assert set(options) <= set(known)
    assert len(known) == len(set(known))
