"""What a command says instead of a traceback: one line that names the input and what to write."""

__all__ = ["CommandError"]


class CommandError(Exception):
    """The command cannot do what was asked. `str()` is the line for people; the exit code is 1."""
