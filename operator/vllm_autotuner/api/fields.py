"""Field types of the API: durations, timestamps, numbers, messages; their validation, CRD schema and error messages."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from vllm_autotuner.api.durations import (
    DURATION_MAX_LENGTH,
    DURATION_MESSAGE,
    DURATION_PATTERN,
    format_duration,
    parse_duration,
)
from vllm_autotuner.api.model import VALIDATIONS

MESSAGE_MAX_LENGTH: Final = 1024
"""Messages are cut to this length (in characters), so that a long engine error cannot exceed the size of a status."""

NOTE_MAX_LENGTH: Final = 256
"""The same for messages in lists."""

_LARGEST_FLOAT: Final = sys.float_info.max

EARLIEST_YEAR, LATEST_YEAR = 1970, 2500
"""The first is what a clock without a battery says. Our choice: further from the ends of the calendar than any duration
of a spec is long."""


def matching(pattern: str, *, max_length: int, message: str) -> tuple[AfterValidator, Any]:
    """Return the metadata of a string that must match a pattern, with a readable error message.

    The API server checks the pattern by CEL, not by `pattern`: a schema violation would hide the message.
    """

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(message)
        return text

    rule: dict[str, Any] = {"rule": f"self.matches({cel_string(pattern)})", "message": message}
    return AfterValidator(check), Field(max_length=max_length, json_schema_extra={VALIDATIONS: [rule]})


def cel_string(text: str) -> str:
    """Quote a text as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


OVERFLOWING: Final = r"[0-9]{6}(\.[0-9]+)?h"
"""Go's durations end at 292 years, where CEL has an error instead of an answer."""


def lasting_at_most(longest: timedelta) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """Return the metadata of a positive duration; on the wire a text, in Python a timedelta as well."""
    limit = format_duration(longest)
    too_long = f"write at most {limit}"

    def read(value: object) -> timedelta:
        duration = parse_duration(value) if isinstance(value, str) else value
        if not isinstance(duration, timedelta) or duration <= timedelta():
            raise ValueError(DURATION_MESSAGE)
        if duration > longest:
            raise ValueError(too_long)
        return duration

    overflows = f"self.matches({cel_string(OVERFLOWING)})"
    well_formed = f"self.matches({cel_string(DURATION_PATTERN)})"
    rules = [
        {"rule": f"{well_formed} && self.matches('[1-9]')", "message": DURATION_MESSAGE},
        {"rule": f"!{well_formed} || (!{overflows} && duration(self) <= duration('{limit}'))", "message": too_long},
    ]
    schema = {"type": "string", "maxLength": DURATION_MAX_LENGTH, VALIDATIONS: rules}
    return BeforeValidator(read), PlainSerializer(format_duration, return_type=str), WithJsonSchema(schema)


def _utc(moment: datetime) -> datetime:
    # A status is edited by hand, too: near the ends of the calendar every sum overflows, and stops the whole loop.
    if not EARLIEST_YEAR <= moment.year < LATEST_YEAR:
        raise ValueError(f"write a time between the years {EARLIEST_YEAR} and {LATEST_YEAR}")
    return moment.astimezone(UTC)


def format_time(moment: datetime) -> str:
    """Format an instant as RFC 3339 in UTC with `Z`; microseconds only if there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _finite(value: object) -> object:
    """Turn NaN and what is beyond a float into None (unknown): JSON cannot represent it, and zero would be wrong."""
    beyond = isinstance(value, int | float) and not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT
    return None if beyond else value


def _significant(value: float | None) -> float | None:
    """Six digits: no histogram tells more, and a status has hundreds of such figures."""
    return None if value is None else float(f"{value:.6g}")


def _cut(length: int) -> AfterValidator:
    return AfterValidator(lambda text: text if len(text) <= length else text[: length - 1] + "…")


Duration = Annotated[timedelta, *lasting_at_most(timedelta(days=365))]
"""A positive duration of at most a year: a timedelta in Python, `1h30m` on the wire."""

PhaseDuration = Annotated[timedelta, *lasting_at_most(timedelta(hours=24))]
"""The same for a phase of a change, of at most a day: while it lasts, other services may wait for their turn."""

Timestamp = Annotated[
    AwareDatetime,
    AfterValidator(_utc),
    PlainSerializer(format_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An instant, always in UTC."""

Number = Annotated[float | None, BeforeValidator(_finite), AfterValidator(_finite)]
"""A measured number; None if unknown. Never NaN."""

WindowFigure = Annotated[Number, AfterValidator(_significant)]
"""The same of one window."""

Message = Annotated[str, _cut(MESSAGE_MAX_LENGTH)]
"""A human-readable message, cut at MESSAGE_MAX_LENGTH."""

Note = Annotated[str, _cut(NOTE_MAX_LENGTH)]
"""A human-readable message inside a list, cut at NOTE_MAX_LENGTH."""

Count = Annotated[int, Field(strict=True, ge=1, le=1_048_576)]
"""A positive whole number of sequences or devices."""

Tokens = Annotated[int, Field(strict=True, ge=1, le=134_217_728)]
"""A positive number of tokens."""

Quantile = Annotated[
    str,
    *matching(
        r"^0\.[0-9]{0,5}[1-9][0-9]{0,5}$",
        max_length=12,
        message='write the quantile as a string between "0" and "1", both excluded, such as "0.95"',
    ),
]
"""A quantile such as `"0.95"`; a string because the Kubernetes API avoids floats."""

DnsLabel = Annotated[
    str,
    *matching(
        r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        max_length=253,
        message="write a name of at most 63 lower-case letters, digits and '-', such as `main`",
    ),
]


def newest(length: int) -> tuple[AfterValidator, Any]:
    """Return the metadata of a list that keeps its newest (last) `length` items."""

    def cut(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return items[-length:]

    return AfterValidator(cut), Field(json_schema_extra={"maxItems": length})


def most_important(length: int) -> tuple[AfterValidator, Any]:
    """Return the metadata of a list in order of importance that keeps its first `length` items."""

    def cut(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return items[:length]

    return AfterValidator(cut), Field(json_schema_extra={"maxItems": length})
