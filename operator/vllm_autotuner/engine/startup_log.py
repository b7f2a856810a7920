"""Finds the reason why a vLLM server failed to start in its log.

Separate from `flags`, because a log is evidence and may be cut off anywhere.
Must not: guess. A text that matches no pattern is `Unknown`, with the line to read first.
Assumes vLLM 0.32's texts. The order of a log misleads: the *last* exception is the API server's `Engine core
initialization failed. See root cause above.`, harmless warnings quote `OSError`, pydantic prints its cause indented
and a link after it. So causes are looked for by their own words in the whole text, and the first one counts, because
whatever follows is a consequence.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vllm_autotuner.budgets import LOG_LINE_BYTES
from vllm_autotuner.engine.redaction import redacted


class StartupReason(StrEnum):
    """Why the engine did not start. The values are API: alerts match them."""

    INVALID_FLAG = "InvalidFlag"
    """The command line was refused, or two of its flags contradict each other. Remedy: correct what the message names.
    """
    HEADS_NOT_DIVISIBLE = "HeadsNotDivisible"
    """The model's attention heads do not divide by the tensor parallel size. Remedy: a size that divides them."""
    LENGTH_OVER_MODEL = "LengthOverModel"
    """max-model-len is longer than the model was made for. Remedy: at most the suggested length."""
    KV_TYPE_UNSUPPORTED = "KVTypeUnsupported"
    """The device, its attention backend or the model's weights do not take this type of KV cache. Remedy: the model's
    own type (auto), or other hardware."""
    INSUFFICIENT_KV_CACHE = "InsufficientKVCache"
    """The KV pool does not hold one sequence of max-model-len. Remedy: at most the suggested length, a higher tensor
    parallel size, fp8 KV, or more gpu-memory-utilization."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The GPU's memory ran out, or others hold it. Remedy: less gpu-memory-utilization, fewer sequences, higher TP."""
    IMAGE_PULL = "ImagePull"
    """The image cannot be fetched. Remedy: name, tag, registry, pull secret. Told by the pod, never by a log."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes the pod: GPUs, selectors, taints. Told by the scheduler, never by a log."""
    UNKNOWN = "Unknown"
    """No known cause in the text. The message is the most telling line of the log. Remedy: read the log."""


LACK_OF_MEMORY: Final = frozenset({StartupReason.INSUFFICIENT_KV_CACHE, StartupReason.OUT_OF_MEMORY})
"""Reasons that hold for everything that needs as much memory or more."""

REFUSALS: Final = frozenset(
    {
        StartupReason.INVALID_FLAG,
        StartupReason.HEADS_NOT_DIVISIBLE,
        StartupReason.LENGTH_OVER_MODEL,
        StartupReason.KV_TYPE_UNSUPPORTED,
    }
)
"""Reasons that stand in model, device and flags: the same engine gives them to the same value again, at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFailure:
    """A failed start: the reason, the engine's own words, and the length it would have accepted, if it says so."""

    reason: StartupReason
    message: str
    suggested_max_model_len: int | None = None
    """Tokens. From the engine's estimate or the model's limit; None when the log names neither."""


_CAUSES: Final[tuple[tuple[StartupReason, re.Pattern[str]], ...]] = tuple(
    (reason, re.compile(pattern, re.MULTILINE))
    for reason, pattern in (
        (
            StartupReason.INVALID_FLAG,
            r"^\S+(?: serve)?: error: (?:unrecognized arguments|argument|ambiguous option|the following arguments)\b.*",
        ),
        (StartupReason.INVALID_FLAG, r"max_num_batched_tokens \(\d+\) must be greater than or equal to .*"),
        (StartupReason.HEADS_NOT_DIVISIBLE, r"Total number of attention heads \(\d+\) must be divisible by .*"),
        (StartupReason.LENGTH_OVER_MODEL, r"User-specified max_model_len \(\d+\) is greater than .*"),
        (StartupReason.KV_TYPE_UNSUPPORTED, r"FP8 KV cache (?:on CPU )?requires .*"),
        (StartupReason.KV_TYPE_UNSUPPORTED, r"(?:FP8|bfloat16) KV cache is not supported .*"),
        (StartupReason.KV_TYPE_UNSUPPORTED, r"fp8_e5m2 kv-cache is not supported .*"),
        (StartupReason.KV_TYPE_UNSUPPORTED, r"No valid attention backend found .*\bkv_cache_dtype not supported\b.*"),
        (StartupReason.INSUFFICIENT_KV_CACHE, r"To serve at least one request with the model's max seq len .*"),
        (StartupReason.INSUFFICIENT_KV_CACHE, r"The model's max seq len \(\d+\) is larger than the maximum number .*"),
        (StartupReason.INSUFFICIENT_KV_CACHE, r"No available memory for the cache blocks.*"),
        (StartupReason.OUT_OF_MEMORY, r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: .*"),
        (StartupReason.OUT_OF_MEMORY, r"(?:CUDA|HIP) out of memory.*"),
        (StartupReason.OUT_OF_MEMORY, r"Free memory on device .* is less than desired GPU memory utilization.*"),
    )
)
_LENGTHS: Final = (
    re.compile(r"estimated maximum model length is (\d{1,12})"),
    re.compile(r"max_position_embeddings=(\d{1,12})"),
    re.compile(r"stored in KV cache \((\d{1,12})\)"),
)
_STARTED: Final = "Application startup complete."
_LOGGED: Final = re.compile(r"^(?:\([^()]*\) )?(?P<level>[A-Z]+) [\d-]+ [\d:]+ \[[^\]]*\] ?(?P<text>.*)$")
_EXCEPTION: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?:: .*)?$|^\s*Value error, .*$")
_FINAL_ERROR: Final = re.compile(r"^\S+(?: serve)?: error: .*$|^exec\b.*: .*$")
_WRAPPERS: Final = ("Engine core initialization failed", "Engine process failed to start", "WorkerProc initialization")
_PYDANTIC_TAIL: Final = re.compile(r" \[type=\w+, input_value=.*$")


def parse_startup_failure(log: str) -> StartupFailure | None:
    """Return why the server did not start, or None when the log shows no failure before it was up.

    `log`: stdout and stderr of one attempt, or their end. The cause may lie far before the end (6 KiB and more when
    the engine core failed), so a kubelet's termination message alone often gives `Unknown`.
    """
    if _STARTED in log:
        return None
    lines = _serious_lines(log)
    text = "\n".join(line for _, line in lines)
    matches = [(match, reason) for reason, pattern in _CAUSES if (match := pattern.search(text))]
    if matches:
        match, reason = min(matches, key=lambda found: found[0].start())
        return _failure(reason, match.group())
    if line := _most_telling(lines):
        return _failure(StartupReason.UNKNOWN, line)
    return None


def _failure(reason: StartupReason, text: str) -> StartupFailure:
    lengths = [int(match.group(1)) for pattern in _LENGTHS if (match := pattern.search(text))]
    return StartupFailure(
        reason=reason,
        message=redacted(_PYDANTIC_TAIL.sub("", text).strip().removeprefix("Value error, ")),
        suggested_max_model_len=next((length for length in lengths if length > 0), None),
    )


def _serious_lines(log: str) -> list[tuple[str, str]]:
    """Return (level, text) of each line that is not a mere notice; the level is empty for what was not logged."""
    lines = []
    for whole in log.splitlines():
        line = whole[: LOG_LINE_BYTES.limit]
        if len(whole) > len(line):
            LOG_LINE_BYTES.exceeded()
        match = _LOGGED.match(line)
        level, text = (match["level"], match["text"]) if match else ("", line)
        if level not in {"DEBUG", "INFO", "WARNING"}:
            lines.append((level, text))
    return lines


def _most_telling(lines: list[tuple[str, str]]) -> str | None:
    """Return the last line that states an error: an exception before a mere wrapper, a wrapper before a log line."""
    exceptions = [text for _, text in lines if _EXCEPTION.match(text) or _FINAL_ERROR.match(text)]
    causes = [text for text in exceptions if not any(wrapper in text for wrapper in _WRAPPERS)]
    logged = [text for level, text in lines if level in {"ERROR", "CRITICAL"} and text.strip()]
    return next((found[-1] for found in (causes, exceptions, logged) if found), None)
