"""The error of a command: one line that names the input and what to write instead."""

__all__ = ["CommandError"]


class CommandError(Exception):
    """The command cannot run. `str()` is the line to print; the exit code is 1."""
