"""Parses the vLLM command line into values, and reads from the log which flags a server uses.

Separate from `startup_log`, because a command line is an input and a log is evidence.
Must not: assume a default (it depends on version, model and GPU; the running engine reports it), or start anything.
Assumes vLLM's own parser as of 0.32: dashes and underscores are the same in a flag's name, the last value wins, an
unambiguous beginning of a long flag counts as the flag, and only the counts in tokens or bytes know `8k` and `8K`.
"""

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TUNED_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "max-num-seqs": ("--max-num-seqs", "--max_num_seqs"),
    "max-model-len": ("--max-model-len", "--max_model_len"),
    "kv-cache-dtype": ("--kv-cache-dtype", "--kv_cache_dtype"),
    "tensor-parallel-size": ("--tensor-parallel-size", "--tensor_parallel_size", "-tp"),
}
"""The knobs that the operator sets itself, each with the spellings that vLLM documents.

To recognise every spelling that vLLM accepts (mixed separators, abbreviations, `=`), ask `tuned_knob`.
"""


class FlagError(ValueError):
    """A flag that vLLM would refuse. The message names the flag and what to write instead."""

    def __init__(self, flag: str, *, problem: str, remedy: str) -> None:
        super().__init__(f"{flag}: {problem}. {remedy}")
        self.flag = flag


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """What a command line says. None means not given: the engine's default, which is unknown to us."""

    model: str | None = None
    """Path or name of the model."""
    served_model_name: str | None = None
    """The name in requests and in the `model_name` label; the first one when several were given."""
    max_num_seqs: int | None = None
    """Sequences that may run together."""
    max_model_len: int | None = None
    """Longest prompt plus output, tokens. None also for `auto`; see `max_model_len_auto`."""
    max_model_len_auto: bool = False
    """True for `--max-model-len auto` (or -1): the engine takes the longest that fits."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step at most: the chunked-prefill budget."""
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    """Part of the GPU's memory that the engine may use, 0..1."""
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    """Tokens per KV block."""
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    enforce_eager: bool | None = None
    async_scheduling: bool | None = None
    """Plan a step while the one before runs."""
    scheduling_policy: str | None = None
    """`fcfs` or `priority`."""
    host: str | None = None
    port: int | None = None
    config: str | None = None
    """A file with further flags that we cannot see. A given flag wins over the file."""
    unknown: tuple[str, ...] = ()
    """Arguments that are none of the above, as they were written."""


LARGEST: Final = 10**12
"""Of any count or length: beyond, a number is a slip or an attack, and one of 4,300 digits cannot even be printed."""
LONGEST_NUMBER: Final = 100
"""Digits; beyond 308 a float is infinite, which is no integer."""
_SUFFIXES: Final = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


def human_readable_int(text: str) -> int:
    """Read an integer as vLLM does: `8k` is 8,000, `8K` is 8,192, `25.6k` is 25,600. Raises ValueError otherwise."""
    text = text.strip()
    if match := re.fullmatch(r"(\d+)(\.\d+)?([kmgtKMGT])", text):
        whole, fraction, suffix = match.groups()
        if fraction is None:
            return int(whole) * _SUFFIXES[suffix]
        if suffix.islower():
            if len(whole) > LONGEST_NUMBER:
                raise ValueError(f"a number of {len(whole)} digits")
            return int(float(whole + fraction) * _SUFFIXES[suffix])
        raise ValueError(f"{suffix} is a power of two and takes no decimals; {suffix.lower()} is a power of ten")
    return int(text)


def _count(flag: str, text: str) -> int:
    """Read a plain positive integer."""
    return _at_least_one(flag, text=text, read=int, example="a whole number such as 64")


def _tokens(flag: str, text: str) -> int:
    """Read a positive integer that may be written as `8k`."""
    return _at_least_one(flag, text=text, read=human_readable_int, example="a whole number such as 8192, 8k or 8K")


def _at_least_one(flag: str, *, text: str, read: Any, example: str) -> int:
    try:
        value = int(read(text))
    except (ValueError, OverflowError):
        raise FlagError(
            flag, problem=f"{text[:40]!r} is not a number vLLM accepts", remedy=f"Write {example}"
        ) from None
    if value > LARGEST:
        raise FlagError(flag, problem=f"{text[:40]!r} is larger than vLLM accepts", remedy=f"Write {example}")
    if value < 1:
        raise FlagError(flag, problem=f"{text[:40]!r} is below 1", remedy=f"Write {example}")
    return value


def _model_len(flag: str, text: str) -> int:
    """Read a length in tokens; -1 stands for `auto`."""
    return -1 if text.strip().lower() in {"auto", "-1"} else _tokens(flag, text)


def _fraction(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        problem = f"{text[:40]!r} is not a share of the GPU memory"
        raise FlagError(flag, problem=problem, remedy="Write a number above 0 and at most 1, such as 0.9")
    return value


def _port(flag: str, text: str) -> int:
    value = _count(flag, text)
    if value > 65535:
        raise FlagError(flag, problem=f"{text[:40]!r} is not a TCP port", remedy="Write a number from 1 to 65535")
    return value


def _text(flag: str, text: str) -> str:
    if not text:
        raise FlagError(flag, problem="the value is empty", remedy="Set a value, or omit the flag")
    return text


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


_READERS: Final[Mapping[str, Any]] = {
    "--model": _text,
    "--served-model-name": _text,
    "--max-num-seqs": _count,
    "--max-model-len": _model_len,
    "--max-num-batched-tokens": _tokens,
    "--kv-cache-dtype": _text,
    "--tensor-parallel-size": _count,
    "--pipeline-parallel-size": _count,
    "--gpu-memory-utilization": _fraction,
    "--num-gpu-blocks-override": _count,
    "--block-size": _count,
    "--scheduling-policy": _text,
    "--host": _text,
    "--port": _port,
    "--config": _text,
}
_SWITCHES: Final = frozenset(
    {"--enable-prefix-caching", "--enable-chunked-prefill", "--enforce-eager", "--async-scheduling"}
)
_SHORT: Final = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
_SHORTEST_ABBREVIATION: Final[Mapping[str, str]] = {
    # Generously short: an abbreviation that vLLM finds ambiguous costs its author the full name, a missed one would
    # let a pod run with an untuned value.
    "--max-num-seqs": "--max-num-s",
    "--max-model-len": "--max-m",
    "--kv-cache-dtype": "--kv-cache-d",
    "--tensor-parallel-size": "--te",
}


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **{_field(flag): (int,) for flag, read in _READERS.items() if read is not _text},
    **{_field(flag): (str,) for flag, read in _READERS.items() if read is _text},
    **{_field(flag): (bool,) for flag in _SWITCHES},
    "gpu_memory_utilization": (float, int),
}
"""What an engine prints for each; `type(...)` and not isinstance, as True is an int but no number of sequences."""


def _normal(argument: str) -> str:
    """Return the flag's name with dashes and without its `=value`; abbreviations of tuned flags are spelled out."""
    name = argument.split("=", 1)[0]
    if not name.startswith("--"):
        return _SHORT.get(name, name)
    name = name.replace("_", "-")
    for flag, shortest in _SHORTEST_ABBREVIATION.items():
        if name.startswith(shortest) and flag.startswith(name):
            return flag
    return name


def tuned_knob(argument: str) -> str | None:
    """Return the tuned knob that this argument sets, in any spelling that vLLM accepts, else None.

    Worked: `--max_num-seqs=8` and `--max-num-s` -> "max-num-seqs"; `-tp` -> "tensor-parallel-size"; `64` -> None.
    """
    name = _normal(argument)
    return next((knob for knob, spellings in TUNED_FLAGS.items() if name in spellings), None)


def parse_flags(args: Sequence[str]) -> EngineFlags:
    """Read an argument vector, with or without a leading `vllm serve` or `python -m ...api_server`.

    What we do not know is kept in `unknown`, never dropped. Raises FlagError for a known flag with a malformed value.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    rest = _without_program(args)
    after_unknown_flag = False
    while rest:
        argument = rest.pop(0)
        name = _normal(argument)
        if name in _READERS:
            text = argument.split("=", 1)[1] if "=" in argument else _value_of(argument, rest)
            values[_field(name)] = _READERS[name](argument.split("=", 1)[0], text)
            if name == "--served-model-name" and "=" not in argument:
                # The flag takes several names. Metrics and answers carry the first, so the others end here.
                while rest and not rest[0].startswith("-"):
                    rest.pop(0)
            after_unknown_flag = False
        elif name in _SWITCHES or name.replace("--no-", "--", 1) in _SWITCHES:
            values[_field(name.replace("--no-", "--", 1))] = name in _SWITCHES
            after_unknown_flag = False
        elif argument.startswith("-") or after_unknown_flag or "model" in values:
            unknown.append(argument)
            after_unknown_flag = argument.startswith("-") and "=" not in argument
        else:
            values["model"] = argument
    return _flags(values, unknown=tuple(unknown))


def parse_command_line(text: str) -> EngineFlags:
    """Read a command line as a shell would split it. Raises FlagError as `parse_flags`, and for an open quote."""
    try:
        args = shlex.split(text)
    except ValueError as error:
        raise FlagError("command line", problem=str(error).lower(), remedy="Close the quotes") from error
    return parse_flags(args)


def render_flags(
    *,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
    kv_cache_dtype: str | None = None,
    tensor_parallel_size: int | None = None,
) -> list[str]:
    """Return the arguments for the four tuned knobs, in a fixed order; None leaves a knob to the engine's default."""
    knobs = {
        "--max-num-seqs": max_num_seqs,
        "--max-model-len": max_model_len,
        "--kv-cache-dtype": kv_cache_dtype,
        "--tensor-parallel-size": tensor_parallel_size,
    }
    return [f"{flag}={value}" for flag, value in knobs.items() if value is not None]


_EFFECTIVE: Final = "non-default args: "
_LONGEST_EFFECTIVE: Final = 16 * 1024
"""Characters of that line that are parsed, as Python: a usual one has 1,000. Whoever owns the image prints it."""


def parse_effective(log: str) -> EngineFlags | None:
    """Read the flags that an engine says it took, from its start-up line `non-default args: {...}`.

    vLLM lists only what differs from its default: None here means the default, also when the flag was given
    (`--tensor-parallel-size 1`). Returns None when the log has no readable such line (rotated away, cut off): then
    nothing is proven.
    The last line counts, as a restarted server appends to its log.
    """
    for line in reversed(log.splitlines()):
        _, marked, printed = line.partition(_EFFECTIVE)
        text = printed.rstrip()
        if not (marked and text.startswith("{") and text.endswith("}") and len(text) <= _LONGEST_EFFECTIVE):
            continue
        if (given := _top_level_literals(text)) is not None:
            return flags_from(given)
    return None


def flags_from(given: Mapping[str, object]) -> EngineFlags:
    """Turn vLLM's own names and values (`{'max_num_seqs': 16}`) into flags.

    Names that we do not know, and values of another type than ours, go to `unknown` by name.
    """
    values: dict[str, Any] = {}
    for name, value in {"model": given.get("model_tag"), **given}.items():
        if name == "served_model_name" and isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if name in _TYPES and type(value) in _TYPES[name]:
            values[name] = value
    return _flags(values, unknown=tuple(sorted(given.keys() - values.keys() - {"model_tag"})))


def _flags(values: dict[str, Any], *, unknown: tuple[str, ...]) -> EngineFlags:
    auto = values.get("max_model_len") == -1
    if auto:
        del values["max_model_len"]
    return EngineFlags(**values, max_model_len_auto=auto, unknown=unknown)


def _value_of(flag: str, rest: list[str]) -> str:
    if not rest or (rest[0].startswith("-") and not re.fullmatch(r"-\d+", rest[0])):
        raise FlagError(flag, problem="the value is missing", remedy=f"Write {flag} VALUE, or omit the flag")
    return rest.pop(0)


def _without_program(args: Sequence[str]) -> list[str]:
    """Drop what comes before the arguments of the server itself."""
    rest = list(args)
    for index, argument in enumerate(rest):
        if argument == "serve" or argument.startswith("vllm.entrypoints."):
            return rest[index + 1 :]
        if argument.startswith("--"):
            break
    return rest


def _top_level_literals(text: str) -> dict[str, object] | None:
    """Read a printed dict, leaving out values that are no literals (`<Mode.NONE: 0>`, `Config(...)`)."""
    for candidate in (text, re.sub(r"<[^<>]*>", "...", text)):
        try:
            node = ast.parse(candidate, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if not isinstance(node, ast.Dict):
            return None
        found: dict[str, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                continue
            try:
                found[key.value] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, RecursionError):
                found[key.value] = None
        return found
    return None
