"""The exit code of a usage error, for commands whose exit code 2 means something else, or nothing."""

from typing import Any, Final

from typer.core import TyperCommand
from typing_extensions import override

__all__ = ["USAGE_ERROR", "UsageErrorExitsOne"]

USAGE_ERROR: Final = 2
"""The exit code of a usage error, as click has it."""


class UsageErrorExitsOne(TyperCommand):
    """A command that exits with 1, not 2, for an unknown option or a missing value."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == USAGE_ERROR:
                error.exit_code = 1  # type: ignore[attr-defined]  # the class is private to typer
            raise
