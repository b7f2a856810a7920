"""Log lines: a constant message and fields, in both formats, whatever is in the fields."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from vllm_autotuner.cli.run.log_format import JsonFormatter, LogFormat, LogLevel, TextFormatter, configure_logging


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("vllm_autotuner.x", logging.INFO, "x.py", 1, "change rolled back", None, None)
    made.created = 1_795_219_200.25
    vars(made).update(fields)
    return made


def test_json_is_one_object_with_the_fields_beside_the_message() -> None:
    assert json.loads(JsonFormatter().format(record(service="prod/chat", epoch=7, when=object))) == {
        "time": "2026-11-21T00:00:00.250Z",
        "level": "info",
        "logger": "vllm_autotuner.x",
        "message": "change rolled back",
        "service": "prod/chat",
        "epoch": 7,
        "when": "<class 'object'>",
    }


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        pytest.param({}, "change rolled back", id="no fields"),
        pytest.param({"service": "prod/chat", "epoch": 7}, " service=prod/chat epoch=7", id="plain values"),
        pytest.param({"why": "a b"}, ' why="a b"', id="a space is quoted"),
        pytest.param({"why": ""}, ' why=""', id="nothing is quoted"),
        pytest.param({"why": 'x="1"'}, ' why="x=\\"1\\""', id="quotes are escaped"),
        pytest.param({"why": "a\nb"}, ' why="a\\nb"', id="a line stays one line"),
    ],
)
def test_text_ends_with_the_fields(fields: dict[str, object], end: str) -> None:
    line = TextFormatter().format(record(**fields))
    assert line.startswith("2026-11-21T00:00:00.250Z INFO    vllm_autotuner.x: change rolled back")
    assert line.endswith(end)
    assert "\n" not in line


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_a_traceback_is_kept(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("the cause")
    except ValueError:
        text = formatter.format(record(exc_info=sys.exc_info()))
    assert "ValueError: the cause" in text


@pytest.fixture
def restored() -> Iterator[None]:
    """Leave the process' logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("kopf.objects", "httpx")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("level", "chatty", "own"),
    [
        pytest.param(LogLevel.INFO, False, True, id="info keeps libraries quiet"),
        pytest.param(LogLevel.DEBUG, True, True, id="debug keeps nothing back"),
        pytest.param(LogLevel.ERROR, False, False, id="error is about errors"),
    ],
)
def test_levels(level: LogLevel, chatty: bool, own: bool) -> None:
    configure_logging(log_format=LogFormat.TEXT, level=level)
    assert logging.getLogger("kopf.objects").isEnabledFor(logging.INFO) is chatty
    assert logging.getLogger("vllm_autotuner").isEnabledFor(logging.INFO) is own
