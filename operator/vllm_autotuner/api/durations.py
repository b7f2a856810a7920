"""Parses and formats durations of a VLLMService: `30s`, `10m`, `1h30m`, `500ms`.

Kubernetes uses Go durations; its tools do not accept ISO 8601, the default of pydantic. Only the unambiguous part of
the Go grammar is supported: no sign, no microseconds, no days (a day may have 23 to 25 hours).
"""

import re
from datetime import timedelta
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]{1,7}(\.[0-9]{1,3})?(ms|s|m|h))+$"
"""The grammar, in the common subset of RE2 (API server) and Python. Seven digits keep every sum far from overflow."""

DURATION_MAX_LENGTH: Final = 24
DURATION_MESSAGE: Final = "write a positive duration such as 500ms, 30s, 10m, 6h or 1h30m"

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNIT: Final = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


def parse_duration(text: str) -> timedelta:
    """Parse a duration; zero is allowed. Worked: `1h30m` is 90 minutes. Raises ValueError for any other text."""
    if len(text) > DURATION_MAX_LENGTH or re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(DURATION_MESSAGE)
    return sum((float(number) * _UNIT[unit] for number, unit in _PART.findall(text)), start=timedelta())


def format_duration(duration: timedelta) -> str:
    """Format a duration in its largest units, so that equal durations have equal texts. Worked: 5400 s is `1h30m`.

    Milliseconds are the smallest unit and carry up to three decimals. Raises ValueError for a negative duration.
    """
    if duration < timedelta():
        raise ValueError("a duration cannot be negative")
    rest, parts = duration, []
    for unit in ("h", "m", "s"):
        count, rest = divmod(rest, _UNIT[unit])
        parts += [f"{count}{unit}"] if count else []
    if rest:
        parts.append(f"{rest / _UNIT['ms']:.3f}".rstrip("0").rstrip(".") + "ms")
    return "".join(parts) or "0s"
