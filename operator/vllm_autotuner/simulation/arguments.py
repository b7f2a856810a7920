"""The command line of `vllm serve`, with vLLM's own error messages.

Separate from `engine.flags`, which accepts any command line: here an unknown flag is an error, as in the real engine.
Must not: act on a value. Flags that do not change what this engine does are accepted by `ACCEPTED` and ignored; what
would change it and is not simulated (pipeline and data parallelism, a config file) is not accepted.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_autotuner.engine.flags import human_readable_int
from vllm_autotuner.simulation.sequence import SchedulingPolicy

VERSION: Final = "0.32.0"
DEFAULT_MODEL: Final = "Qwen/Qwen3-0.6B"
KV_CACHE_DTYPES: Final = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


def human_readable_int_or_auto(text: str) -> int:
    """Read a length; argparse prints this function's name when it cannot, as it does in vLLM."""
    return -1 if text.strip().lower() in {"auto", "-1"} else human_readable_int(text)


SIMULATED: Final[Mapping[str, dict[str, Any]]] = {
    "--host": {},
    "--port": {"type": int, "default": 8000},
    "--max-model-len": {"type": human_readable_int_or_auto},
    "--served-model-name": {"nargs": "+"},
    "--tensor-parallel-size": {"type": int, "default": 1},
    "--block-size": {"type": int},
    "--gpu-memory-utilization": {"type": float, "default": 0.92},
    "--kv-cache-dtype": {"choices": KV_CACHE_DTYPES, "default": "auto"},
    "--num-gpu-blocks-override": {"type": int},
    "--enable-prefix-caching": {"action": argparse.BooleanOptionalAction},
    "--max-num-batched-tokens": {"type": human_readable_int},
    "--max-num-seqs": {"type": int},
    "--enable-chunked-prefill": {"action": argparse.BooleanOptionalAction},
    "--scheduling-policy": {"choices": tuple(SchedulingPolicy), "default": "fcfs"},
    "--async-scheduling": {"action": argparse.BooleanOptionalAction},
}
"""What this engine acts on. The defaults are vLLM's: a flag given at its default is no `non-default arg`."""

ACCEPTED: Final[Mapping[str, dict[str, Any]]] = {
    "--enforce-eager": {"action": argparse.BooleanOptionalAction, "default": False},
    "--trust-remote-code": {"action": argparse.BooleanOptionalAction, "default": False},
    "--enable-log-requests": {"action": argparse.BooleanOptionalAction, "default": False},
    "--enable-auto-tool-choice": {"action": argparse.BooleanOptionalAction, "default": False},
    "--tool-call-parser": {},
    "--reasoning-parser": {},
    "--chat-template": {},
    "--api-key": {"nargs": "+"},
    "--dtype": {"default": "auto"},
    "--quantization": {},
    "--load-format": {"default": "auto"},
    "--download-dir": {},
    "--tokenizer": {},
    "--revision": {},
    "--generation-config": {"default": "auto"},
    "--attention-backend": {},
    "--distributed-executor-backend": {},
    "--uvicorn-log-level": {"default": "info"},
    "--seed": {"type": int, "default": 0},
    "--max-logprobs": {"type": int, "default": 20},
    "--compilation-config": {},
    "--hf-overrides": {},
    "--limit-mm-per-prompt": {},
}
"""Flags that exist in vLLM and make no difference here: pods that carry them start."""

_SHORT: Final = {"--tensor-parallel-size": "-tp", "--quantization": "-q"}


def parse_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """Read the arguments after the program's name. Exits with code 2 and vLLM's words when they are refused.

    Returns the arguments that differ from vLLM's defaults, by vLLM's names and in its order.
    """
    top = argparse.ArgumentParser(
        prog="vllm",
        usage=(
            "vllm [-h] [-v]\n            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,"
            "run-batch,snapshot}\n            ..."
        ),
    )
    top.add_argument("-v", "--version", action="version", version=VERSION)
    serve = top.add_subparsers(dest="subparser", required=True).add_parser("serve", prog="vllm serve")
    serve.add_argument("model_tag", nargs="?")
    for flag, options in {**SIMULATED, **ACCEPTED}.items():
        serve.add_argument(flag, *([_SHORT[flag]] if flag in _SHORT else []), **options)
    given = vars(top.parse_args(_as_vllm_reads(argv)))
    del given["subparser"]
    model = given["model_tag"] or DEFAULT_MODEL
    defaults = {action.dest: action.default for action in serve._actions}
    changed = {name: value for name, value in given.items() if value != defaults.get(name)}
    if model == DEFAULT_MODEL:
        return changed
    order = ("model_tag", "host", "port")
    first = {name: changed.pop(name) for name in order if name in changed}
    return {**first, "model": model, **changed}


def _as_vllm_reads(argv: Sequence[str]) -> list[str]:
    """Turn underscores in names into dashes and move `--model M` to where MODEL stands."""
    args: list[str] = []
    for argument in argv:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            argument = name.replace("_", "-") + equals + value
        args.append(argument)
    if args[:1] == ["serve"]:
        for index, argument in enumerate(args):
            if argument == "--model" and index + 1 < len(args):
                return ["serve", args[index + 1], *args[1:index], *args[index + 2 :]]
            if argument.startswith("--model="):
                return ["serve", argument.removeprefix("--model="), *args[1:index], *args[index + 1 :]]
    return args
