"""What an owner writes into a command line, or an image into its log, costs a bounded time and is never a crash."""

import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.budgets import COMMAND_LINE_BYTES, LOG_LINE_BYTES
from vllm_autotuner.engine.command_line import changed, command_line
from vllm_autotuner.engine.flags import LARGEST, EngineFlags, FlagError, parse_effective, parse_flags
from vllm_autotuner.engine.startup_log import StartupReason, parse_startup_failure

SECONDS: Final = 1.0
"""A hundred times what it takes; each of these took 4 s and more."""


def script(text: str, **variables: str) -> dict[str, Any]:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {"name": "vllm", "command": ["sh", "-c", text], "env": env}


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(script("vllm serve m " + "x" * 800_000), id="one long word"),
        pytest.param(script("vllm serve m " + "x " * 400_000), id="many words"),
        pytest.param(script("vllm serve m '" + "x" * 800_000), id="an open quote"),
        pytest.param(script("vllm serve " + "$(A)" * 1000, A="y" * 100_000), id="a variable that multiplies"),
        pytest.param({"name": "vllm", "args": ["x" * 800_000]}, id="an argument"),
        pytest.param({"name": "vllm", "args": ["$(A)"] * 1000, "env": [{"name": "A", "value": "y" * 10_000}]}, id="A"),
    ],
)
def test_a_command_line_that_is_too_long_is_not_read_and_says_so(container: dict[str, Any]) -> None:
    before = time.process_time()
    line = command_line(container)
    for _ in range(20):
        with pytest.raises(FlagError, match="more than 32 KiB with its variables filled in"):
            _ = line.flags
        assert not isinstance(changed(line, knob="max-num-seqs", value=4), type(line))
    assert time.process_time() - before < SECONDS


def test_a_long_script_is_parsed_once() -> None:
    line = command_line(script(f"vllm serve m --served-model-name {'x' * (COMMAND_LINE_BYTES.limit - 100)}"))
    _ = line.flags
    before = time.process_time()
    for _ in range(50):
        _ = line.flags
    assert time.process_time() - before < SECONDS


@pytest.mark.parametrize(
    "log",
    [
        "No valid attention backend found " * 2000,
        "Free memory on device " * 3000,
        "non-default args: {" * 3400,
        "non-default args: {" + " " * 60_000 + "x",
        "non-default args: {'a': " + "(" * 60_000 + "}",
        "non-default args: {'a': " + "-" * 15_000 + "1}",
        "a." * 32_000,
        "(" * 64_000,
        "ERROR 11-20 10:00:00 [" * 3000,
    ],
    ids=["no backend", "free memory", "many args", "spaces", "parentheses", "signs", "dots", "open", "levels"],
)
def test_no_log_takes_long(log: str) -> None:
    before = time.process_time()
    parse_startup_failure(log)
    parse_effective(log)
    assert time.process_time() - before < SECONDS


def test_the_cause_is_found_beside_a_long_line() -> None:
    found = parse_startup_failure("x" * 60_000 + "\ntorch.cuda.OutOfMemoryError: CUDA out of memory.\n" + "y" * 60_000)
    assert found is not None
    assert found.reason is StartupReason.OUT_OF_MEMORY
    assert len(found.message) <= LOG_LINE_BYTES.limit


DIGITS: Final = "9" * 4400


@pytest.mark.parametrize("value", [DIGITS, f"{DIGITS}k", f"{DIGITS}.5k", str(LARGEST + 1), "9" * 4299 + "K"])
@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max-model-len", "--tensor-parallel-size"])
def test_a_number_of_thousands_of_digits_is_an_error_with_a_remedy(flag: str, value: str) -> None:
    with pytest.raises(FlagError, match=f"^{flag}: .{{1,140}}Write ") as caught:
        parse_flags([f"{flag}={value}"])
    assert len(str(caught.value)) < 300


def test_a_suggested_length_of_thousands_of_digits_is_no_length() -> None:
    text = f"To serve at least one request with the model's max seq len (1), estimated maximum model length is {DIGITS}"
    assert parse_startup_failure(text) is not None


@given(st.lists(st.text(max_size=20) | st.sampled_from(["sh", "-c", "vllm serve m", "$(A)", "'", "\\\n", "&&", "$("])))
def test_any_command_line_is_read_or_refused(words: list[str]) -> None:
    for container in ({"command": words}, {"args": words}, {"command": words[:2], "args": words[2:]}):
        line = command_line({"name": "vllm", "env": [{"name": "A", "value": "b"}], **container})
        try:
            assert isinstance(line.flags, EngineFlags)
        except FlagError:
            continue
