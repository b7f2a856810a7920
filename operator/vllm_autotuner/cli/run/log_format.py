"""Log lines of a long-running command: a constant message and fields, as text for people or JSON for log aggregation.

Apart from the command, because the format is a contract of its own. Only `run` logs; other commands print.
"""

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from typing_extensions import override


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """From which severity on lines are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; the others are the fields of the event."""

_QUIETED: Final = {
    # One line per object and event would bury everything else: kopf reports each handler's success.
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "httpx": logging.WARNING,
}


def configure_logging(*, log_format: LogFormat, level: LogLevel) -> None:
    """Write all logs to stderr in this format. Replaces whatever was configured before."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _QUIETED.items():
        # Debugging is asked for when something is wrong: then nothing is kept back.
        logging.getLogger(name).setLevel(logging.NOTSET if level is LogLevel.DEBUG else least)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; a field that JSON cannot hold is written as text."""
        line = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, then `key=value` fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line; a traceback follows on lines of its own."""
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        line = f"{_moment(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in text for character in ' "=\n') else text
