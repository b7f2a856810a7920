"""The log lines of vLLM's startup and startup failures.

Separate from the server, because texts are vLLM's and `engine.startup_log` must be able to parse them.
Must not: print, or read a clock. Shorter than the real logs (no banner, no frames), but with the same misleading order.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from vllm_autotuner.simulation.configuration import ConfigRefused, CoreRefused, EngineConfig, StartupRefused

NOISE = "Triton is installed, but doesn't include CPU backend. Disabling Triton."


def announcement(given: Mapping[str, Any], *, pid: int, at: str) -> str:
    """Return the first lines of a start. `at`: `11-20 22:09:37`."""
    head = f"(APIServer pid={pid})"
    return (
        f"{NOISE}\n"
        f"{head} INFO {at} [api_utils.py:286] non-default args: {dict(given)!r}\n"
        f"{head} WARNING {at} [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase. "
        "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`."
    )


def capacity(config: EngineConfig, *, pid: int, at: str) -> str:
    """Return the lines with which the engine core states its KV pool."""
    head = f"(EngineCore pid={pid}) INFO {at} [kv_cache_utils.py:2400]"
    tokens = config.num_gpu_blocks * config.block_size
    return (
        f"{head} GPU KV cache size: {tokens:,} tokens\n{head} Maximum concurrency for {config.max_model_len:,} tokens "
        f"per request: {tokens / config.max_model_len:.2f}x"
    )


def refusal(error: StartupRefused, *, pid: int, at: str) -> str:
    """Return what vLLM prints when it refuses to start; the cause is not in the last lines of a core's failure."""
    match error:
        case ConfigRefused():
            return (
                "Traceback (most recent call last):\n"
                f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {error.config}\n"
                f"  Value error, {error} [type=value_error, input_value=ArgsKwargs((), {{}}), input_type=ArgsKwargs]\n"
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
            )
        case CoreRefused():
            core = f"(EngineCore pid={pid}) ERROR {at} [core.py:1510]"
            # As in the real log, the cause lies beyond the 2,048 bytes of a termination message.
            frames = '  File "site-packages/vllm/v1/engine/core_client.py", line 1120, in __init__\n' * 30
            return (
                f"{core} EngineCore failed to start.\n{core} Traceback (most recent call last):\n"
                f"{core} ValueError: {error}\nProcess EngineCore:\nTraceback (most recent call last):\n"
                f"ValueError: {error}\nTraceback (most recent call last):\n{frames}"
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                "{'EngineCore': 1}"
            )
        case StartupRefused():
            raise AssertionError("a refusal is either of the configuration or of the core") from error
        case unreachable:
            assert_never(unreachable)
