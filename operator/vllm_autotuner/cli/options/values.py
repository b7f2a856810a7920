"""Option values read from text: a wrong one is refused with what to write instead."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.cli.errors import CommandError

__all__ = ["duration_of", "header_of", "one_of"]

MOST_DIGITS: Final = 4
"""Of a number of days: more than a hundred years are none."""


def one_of(option: str, text: str, choices: Sequence[str]) -> str:
    """Return the choice in lower case. Raises CommandError."""
    if text.lower() not in choices:
        raise CommandError(f"{option} {text!r} is unknown: write {', '.join(choices[:-1])} or {choices[-1]}")
    return text.lower()


def duration_of(option: str, text: str) -> timedelta:
    """Read a duration above zero, also in days of 24 hours, such as 7d. Raises CommandError."""
    days, _, rest = text.partition("d")
    in_days = "d" in text and days.isascii() and days.isdecimal() and len(days) <= MOST_DIGITS
    try:
        duration = timedelta(days=int(days)) + parse_duration(rest or "0s") if in_days else parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}") from None
    if duration <= timedelta():
        raise CommandError(f"{option} {text!r}: write a duration above zero, such as 30s")
    return duration


def header_of(option: str, text: str) -> tuple[str, str]:
    """Read a header, NAME:VALUE or NAME=VALUE. Raises CommandError."""
    # Neither sign can stand in a name, so the first one ends it.
    ends = [place for place in (text.find(":"), text.find("=")) if place >= 0]
    name, value = (text[: min(ends)].strip(), text[min(ends) + 1 :].strip()) if ends else ("", "")
    if not name or " " in name or not value or not text.isprintable() or not text.isascii():
        # Not what was written: it may be a credential.
        raise CommandError(f"{option} needs NAME:VALUE (or NAME=VALUE), such as X-Scope-OrgID:team-a")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise CommandError(f"{option}: {name} tells how long a request is, which the command knows: leave it out")
    return name, value
