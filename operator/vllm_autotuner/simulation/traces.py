"""Reads recorded traffic from files: single requests, or the rate of a service over days.

Separate from generated traffic, because a file can be invalid: any deviation from the format is rejected with file,
line and reason, never skipped. Plain text or gzip.
Must not: fill in missing data; how to handle a gap is the caller's decision.

| file | columns |
|---|---|
| requests | `arrival_s` (seconds, ascending), `input_tokens`, `output_tokens` |
| rates | `category`, `model`, `window_start_s` (seconds, evenly spaced), `total_rps` (requests per second) |
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final

from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.lengths import LONGEST

__all__ = [
    "Gaps",
    "RateTrace",
    "RecordedRequest",
    "RequestTrace",
    "TraceError",
    "columns_of",
    "read_rates",
    "read_requests",
]

REQUEST_COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
RATE_COLUMNS: Final = ("category", "model", "window_start_s", "total_rps")
MOST_LINES: Final = 20_000_000
"""Above this a file is refused: about 2 GB of memory."""
LONGEST_LINE: Final = 4096
"""Characters. Above it a file is no trace."""
GAP_BELOW: Final = 0.1
"""Part of the median under which windows beside an empty one belong to its gap. Source: published traces, where windows
at 0 begin and end within one window and their neighbours hold under 2 %, while the quietest night holds 26 %."""


class TraceError(ValueError):
    """A file that is no such trace; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line: seconds since the start of the recording, tokens."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Recorded requests in order of arrival; at least two, at different times."""

    requests: Sequence[RecordedRequest]

    @property
    def seconds(self) -> float:
        """From the first to the last arrival."""
        return self.requests[-1].at - self.requests[0].at

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return (len(self.requests) - 1) / self.seconds


class Gaps(StrEnum):
    """What to make of windows without data."""

    BRIDGED = "bridged"
    """A straight line from the last window before to the first one after: the usual choice, as demand went on."""
    OUTAGE = "outage"
    """No requests: knowingly used as an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTrace:
    """Mean rates over windows of equal length. None: no data for that window."""

    window: float
    """Seconds."""
    rates: Sequence[float | None]

    @property
    def mean(self) -> float:
        """Mean requests per second of the windows with data."""
        known = [rate for rate in self.rates if rate is not None]
        return sum(known) / len(known)

    def curve(self, *, gaps: Gaps = Gaps.BRIDGED, scale: float = 1.0, repeat: bool = False) -> RateCurve:
        """Return the rates times `scale` as a curve of steps; after the end the last rate stays, or all repeats."""
        rates = [0.0 if rate is None else rate for rate in self.rates]
        if gaps is Gaps.BRIDGED:
            rates = _bridged(self.rates)
        levels = [(index * self.window, rate * scale) for index, rate in enumerate(rates)]
        return RateCurve.steps(levels, period=len(rates) * self.window if repeat else None)


def read_requests(path: Path) -> RequestTrace:
    """Read a trace of requests. Raises TraceError."""
    requests: list[RecordedRequest] = []
    for number, row in _rows(path, REQUEST_COLUMNS):
        at = _number(path, number, row, "arrival_s")
        if requests and at < requests[-1].at:
            raise TraceError(f"{path}, line {number}: arrival_s {row['arrival_s']} is before the line above it")
        requests.append(
            RecordedRequest(
                at=at,
                prompt_tokens=_tokens(path, number, row, "input_tokens"),
                output_tokens=_tokens(path, number, row, "output_tokens"),
            )
        )
    if len(requests) < 2 or requests[0].at == requests[-1].at:
        raise TraceError(f"{path}: a trace must have at least two requests at different times")
    return RequestTrace(requests)


def read_rates(path: Path, *, model: str | None, category: str | None = None) -> RateTrace:
    """Read the rates of one model; None: of the only one. Raises TraceError, naming the models that are there."""
    found: list[tuple[int, float, float]] = []
    names: set[tuple[str, str]] = set()
    for number, row in _rows(path, RATE_COLUMNS):
        start = _number(path, number, row, "window_start_s")
        rate = _number(path, number, row, "total_rps")
        names.add((row["category"], row["model"]))
        if model in (None, row["model"]) and category in (None, row["category"]):
            found.append((number, start, rate))
    categories = sorted({of for of, name in names if name == model and category in (None, of)})
    there = ", ".join(f"{of}/{name}" for of, name in sorted(names))
    if model is None and len(names) != 1:
        raise TraceError(
            f"{path} holds the rates of {len(names)} models: name one with --trace-model; {there or 'none'}"
        )
    if not found:
        raise TraceError(f"{path}: no model {model!r} there. There are {there or 'none'}")
    if len(categories) > 1:
        raise TraceError(f"{path}: model {model!r} is in several categories, {', '.join(categories)}: name one")
    window = _window(path, found)
    rates = [rate for _, _, rate in found]
    if not any(rates):
        raise TraceError(f"{path}: every window of model {model or there!r} is empty")
    return RateTrace(window=window, rates=_without_gaps(rates))


def columns_of(path: Path) -> Sequence[str]:
    """Return the names of the columns of a file, to tell traces apart. Raises TraceError when it cannot be read."""
    first = next((text for _, text in _lines(path) if text.strip()), "")
    return [name.strip() for name in first.split(",")]


def _window(path: Path, found: Sequence[tuple[int, float, float]]) -> float:
    if len(found) < 2:
        raise TraceError(f"{path}, line {found[0][0]}: one window has no length: a model needs at least two")
    window = found[1][1] - found[0][1]
    for index, (number, start, _) in enumerate(found):
        if window <= 0 or abs(start - found[0][1] - index * window) > 1e-6 * window:
            raise TraceError(
                f"{path}, line {number}: windows of a model must follow each other evenly, in order of time"
            )
    return window


def _without_gaps(rates: Sequence[float]) -> Sequence[float | None]:
    """Turn empty windows, and the all but empty ones that they are among, into None."""
    low = GAP_BELOW * median(rate for rate in rates if rate > 0)
    cleaned: list[float | None] = list(rates)
    index = 0
    while index < len(rates):
        end = index
        while end < len(rates) and rates[end] < low:
            end += 1
        if any(rate == 0 for rate in rates[index:end]):
            cleaned[index:end] = [None] * (end - index)
        index = end + 1
    return cleaned


def _bridged(rates: Sequence[float | None]) -> list[float]:
    known = [(index, rate) for index, rate in enumerate(rates) if rate is not None]
    filled: list[float] = []
    after = 0
    for index in range(len(rates)):
        while after < len(known) and known[after][0] < index:
            after += 1
        later = known[min(after, len(known) - 1)]
        earlier = known[max(after - 1, 0)] if later[0] != index else later
        span = later[0] - earlier[0]
        share = (index - earlier[0]) / span if span > 0 else 0.0
        filled.append(earlier[1] + (later[1] - earlier[1]) * min(max(share, 0.0), 1.0))
    return filled


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row by column). The order of columns is free, further ones are let be."""
    header: list[str] | None = None
    for number, text in _lines(path):
        if number > MOST_LINES:
            raise TraceError(f"{path} has more than {MOST_LINES:,} lines; cut it into shorter traces")
        if not text.strip():
            continue
        fields = next(csv.reader([text]))
        if header is None:
            header = [field.strip() for field in fields]
            if missing := [column for column in columns if column not in header]:
                raise TraceError(
                    f"{path}, line {number}: no column {', '.join(missing)}; the first line must name the columns "
                    f"{', '.join(columns)}"
                )
            continue
        if len(fields) != len(header):
            raise TraceError(f"{path}, line {number}: {len(fields)} fields where the first line names {len(header)}")
        yield number, dict(zip(header, fields, strict=True))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        if path.is_fifo():
            # Its first bytes and its columns are looked at before it is read.
            raise TraceError(f"{path} is a pipe, which can be read only once: save the trace into a file")
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if zipped
            else path.open(encoding="utf-8-sig", newline="")
        ) as text:
            number = 0
            while line := text.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise TraceError(f"{path}, line {number}: longer than {LONGEST_LINE} characters: this is no trace")
                yield number, line
    except FileNotFoundError as error:
        raise TraceError(f"file {path} does not exist") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is a damaged or truncated gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not text; a trace is CSV, plain or gzip") from error
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error


def _number(path: Path, number: int, row: dict[str, str], column: str) -> float:
    try:
        # Python would read 1_000 as a number; no other reader of this file would.
        value = float(row[column].replace("_", "?"))
    except ValueError:
        raise TraceError(f"{path}, line {number}: {column} {row[column]!r} is not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{path}, line {number}: {column} {row[column]!r} must be a number of 0 or more")
    return value


def _tokens(path: Path, number: int, row: dict[str, str], column: str) -> int:
    text = row[column].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and 1 <= int(text) <= LONGEST):
        raise TraceError(f"{path}, line {number}: {column} {text!r} is not a whole number from 1 to {LONGEST:,}")
    return int(text)
