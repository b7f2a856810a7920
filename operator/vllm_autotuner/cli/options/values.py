"""Option values read from text: a wrong one is refused with what to write instead."""

from collections.abc import Sequence
from datetime import timedelta

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.cli.errors import CommandError

__all__ = ["duration_of", "one_of"]


def one_of(option: str, text: str, choices: Sequence[str]) -> str:
    """Return the choice in lower case. Raises CommandError."""
    if text.lower() not in choices:
        raise CommandError(f"{option} {text!r} is unknown: write {', '.join(choices[:-1])} or {choices[-1]}")
    return text.lower()


def duration_of(option: str, text: str) -> timedelta:
    """Read a duration above zero. Raises CommandError."""
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}") from None
    if duration <= timedelta():
        raise CommandError(f"{option} {text!r}: write a duration above zero, such as 30s")
    return duration
