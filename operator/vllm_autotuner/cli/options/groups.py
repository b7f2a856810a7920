"""Option groups: one frozen dataclass in a command's signature stands for all options that are its fields.

Typer has no option groups. `with_groups` gives it the flat signature that it needs, and gives the command one value per
group:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TimeOptions:
        PANEL: ClassVar = "Time"  # the heading in --help
        at: Annotated[str | None, typer.Option(metavar="TIME", help="One moment.")] = None

    @with_groups
    def show(*, time: TimeOptions) -> None: ...  # show --at TIME

Must not: read or check a value. Groups and their defaults do.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_type_hints

__all__ = ["with_groups"]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Expand each parameter whose type is a dataclass into one option per field. All parameters become keywords."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    flat: list[Parameter] = []
    for one in signature(command).parameters.values():
        if one.name in groups:
            flat += _options_of(groups[one.name])
        else:
            flat.append(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]))

    @wraps(command)
    def expanded(**given: Any) -> None:
        built = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **built)

    # Typer reads both: the signature for names and defaults, the annotations for types.
    expanded.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    expanded.__annotations__ = {one.name: one.annotation for one in flat}
    return expanded


def _options_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, option = get_args(hints[field.name])
        option = copy(option)  # the same option may stand in several groups, each under its own heading
        option.rich_help_panel = group.PANEL
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
