"""Validates `spec.engine.args`: flags with a field of their own in the spec are rejected.

A tuned flag hidden in the arguments would override every decision of the operator, so it is rejected in each spelling
that argparse accepts: `--max-num-seqs`, `--max-num-seqs=64`, `--max_num_seqs`, `-tp`, and unambiguous abbreviations.
"""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from vllm_autotuner.api.fields import cel_string
from vllm_autotuner.api.model import VALIDATIONS

ARG_MAX_LENGTH: Final = 4096
ARGS_MAX_ITEMS: Final = 64


def _spellings(unmistakable: str, rest: str = "", *, short: str = "", end: str = "(=|$)") -> str:
    """Return the pattern of a long flag, its abbreviations from `unmistakable` on, and a short form.

    `end`: the pattern of what follows the name.
    """
    tail = ""
    for letter in reversed(rest):
        tail = f"({letter}{tail})?"
    long = (f"--{unmistakable}{tail}").replace("_", "[-_]")
    return f"^({long}{'|' + short if short else ''}){end}"


_RESERVED: Final[tuple[tuple[str, str], ...]] = (
    (_spellings("max_num_s", "eqs"), "use spec.engine.maxNumSeqs instead of --max-num-seqs"),
    (_spellings("max_m", "odel_len"), "use spec.engine.maxModelLen instead of --max-model-len"),
    (_spellings("kv_cache_d", "type"), "use spec.engine.kvCacheDtype instead of --kv-cache-dtype"),
    (
        _spellings("te", "nsor_parallel_size", short="-tp"),
        "use spec.engine.tensorParallelSize instead of --tensor-parallel-size",
    ),
    (_spellings("model"), "use spec.model.name instead of --model"),
    (_spellings("served_", "model_name"), "use spec.model.servedName instead of --served-model-name"),
    (_spellings("rev", "ision"), "use spec.model.revision instead of --revision"),
    (
        _spellings("(port|host)"),
        "use spec.engine.port instead of --port, and no --host: it listens everywhere",
    ),
    (r"^-[^=\s]*\s", "write one word per item: a flag and its value are two items, or joined by '='"),
    (_spellings("config"), "write the flags into spec.engine.args instead of --config: a file could hide tuned flags"),
)


_MORE_THAN_ONE: Final = "(=([^1]|1.)|$)"
MORE_DEVICES: Final = "|".join(
    (
        _spellings("pi", "peline_parallel_size", short="-pp", end=_MORE_THAN_ONE),
        _spellings("data_parallel_size", short="-dp", end=_MORE_THAN_ONE),
    )
)
"""Flags by which a replica needs more devices than its tensor-parallel size says."""


def _check(argument: str) -> str:
    for pattern, message in _RESERVED:
        if re.search(pattern, argument) is not None:
            raise ValueError(message)
    return argument


_RULES: Final[list[dict[str, Any]]] = [
    {"rule": f"!self.matches({cel_string(pattern)})", "message": message} for pattern, message in _RESERVED
]

EngineArg = Annotated[
    str, AfterValidator(_check), Field(max_length=ARG_MAX_LENGTH, json_schema_extra={VALIDATIONS: _RULES})
]
"""One word of the engine's command line."""

_SCRIPT: Final = "leave out -c: a script does not pass the arguments on; put it into the image"


def _no_script(word: str) -> str:
    if word == "-c":
        raise ValueError(_SCRIPT)
    return word


CommandWord = Annotated[
    str,
    AfterValidator(_no_script),
    Field(
        min_length=1,
        max_length=ARG_MAX_LENGTH,
        json_schema_extra={VALIDATIONS: [{"rule": "self != '-c'", "message": _SCRIPT}]},
    ),
]
"""One word of what runs before the engine's arguments."""
