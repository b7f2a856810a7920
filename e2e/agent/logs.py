"""Container logs: one file for each start, one line `TIME STREAM F|P TEXT`, and what a reader asks of them.

`P` marks a part of a line longer than 16 KiB; the next line goes on.
Apart from `server`, because the termination message is made of the same lines.
Must not: know HTTP or processes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BufferedWriter
from pathlib import Path
from typing import Final

_LONGEST_LINE: Final = 16 * 1024
_FALLBACK_LINES: Final = 80
_FALLBACK_BYTES: Final = 2048


class LogFile:
    """Writes what a container prints. Each stream may be fed with any part of a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BufferedWriter = path.open("wb")
        self._rest: dict[str, bytes] = {}

    def feed(self, stream: str, data: bytes, *, now: datetime) -> None:
        """Write the complete lines of what has come so far."""
        *lines, rest = (self._rest.get(stream, b"") + data).split(b"\n")
        for line in lines:
            self._write(stream, "F", line, now=now)
        while len(rest) > _LONGEST_LINE:
            self._write(stream, "P", rest[:_LONGEST_LINE], now=now)
            rest = rest[_LONGEST_LINE:]
        self._rest[stream] = rest
        self._file.flush()

    def close(self, *, now: datetime) -> None:
        """Write what came without a newline, and close."""
        for stream, rest in self._rest.items():
            if rest:
                self._write(stream, "F", rest, now=now)
        self._file.close()

    def _write(self, stream: str, tag: str, text: bytes, *, now: datetime) -> None:
        # The nine digits of a container runtime: `sinceTime` and sorting compare them as text.
        self._file.write(f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z {stream} {tag} ".encode() + text + b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """What `GET /containerLogs` may ask."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: str = ""
    """RFC 3339 in UTC without the `Z`, so that it sorts before the same time with more digits."""

    @classmethod
    def parse(cls, parameters: Mapping[str, str], *, now: datetime) -> "LogQuery":
        """Read the query string. Raises ValueError."""
        since = ""
        if "sinceSeconds" in parameters:
            since = f"{now - timedelta(seconds=int(parameters['sinceSeconds'])):%Y-%m-%dT%H:%M:%S.%f}"
        elif "sinceTime" in parameters:
            # A fraction of nanoseconds is more than Python reads; microseconds are what the lines have.
            moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", parameters["sinceTime"]))
            since = f"{moment.astimezone(now.tzinfo):%Y-%m-%dT%H:%M:%S.%f}"
        return cls(
            follow=_is_true(parameters.get("follow")),
            previous=_is_true(parameters.get("previous")),
            timestamps=_is_true(parameters.get("timestamps")),
            tail_lines=int(parameters["tailLines"]) if "tailLines" in parameters else None,
            limit_bytes=int(parameters["limitBytes"]) if "limitBytes" in parameters else None,
            since=since,
        )


def tail(lines: list[bytes], count: int | None) -> list[bytes]:
    """Return the last `count` lines, all when it is None."""
    return lines if count is None else lines[max(0, len(lines) - count) :]


def shown(lines: Iterable[bytes], query: LogQuery) -> Iterator[bytes]:
    """Return stored lines as the reader wants them, without those before `since`; `limit_bytes` is not applied here."""
    for line in lines:
        stamp, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if query.since and stamp.decode() < query.since:
            continue
        prefix = stamp + b" " if query.timestamps else b""
        yield prefix + (text if tag == b"F" else text.removesuffix(b"\n"))


def fallback_message(path: Path) -> str:
    """Return the end of a log as a termination message: at most 80 lines and 2,048 bytes."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    text = b"".join(shown(tail(lines, _FALLBACK_LINES), LogQuery()))
    return text[-_FALLBACK_BYTES:].decode(errors="replace")


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() in {"true", "1"}
