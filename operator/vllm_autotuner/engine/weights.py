"""The data type of a model's weights, from its name and the command line.

Separate from the geometry, because the same shape is published in several types.
Must not: guess. Without a named type it is 16 bit, as vLLM loads it; an unrecognised type gives None.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["bytes_per_weight"]

_SMALL: Final = 0.56
"""Four bits and a 16-bit scale for each group of 32 to 128 weights: 0.52-0.56; the larger counts here, as it leaves
less room for the cache."""
_BY_METHOD: Final[Mapping[str, float]] = {
    "fp8": 1.0, "fbgemm_fp8": 1.0, "ptpc_fp8": 1.0, "modelopt": 1.0, "experts_int8": 1.0,
    "awq": _SMALL, "awq_marlin": _SMALL, "gptq": _SMALL, "gptq_marlin": _SMALL, "modelopt_fp4": _SMALL,
    "bitsandbytes": _SMALL, "mxfp4": _SMALL,
}  # fmt: skip
"""vLLM's `--quantization`."""
_BY_NAME: Final = (
    (re.compile(r"\b(awq|gptq|int4|w4a16|w4a8|nvfp4|fp4|mxfp4|bnb|4bit)\b"), _SMALL),
    (re.compile(r"\b(fp8|int8|w8a8|w8a16|8bit)\b"), 1.0),
)
"""Words by which published checkpoints name their type; the smaller first, as some name both."""
_FLAG: Final = re.compile(r"^(?:--quantization|-q)(?:=(?P<method>.*))?$")


def bytes_per_weight(model: str, args: Sequence[str] = ()) -> float | None:
    """Return the bytes of one weight of a matrix. None for a `--quantization` that is not in the table."""
    for index, argument in enumerate(args):
        if (found := _FLAG.match(argument)) is not None:
            method = found["method"] or next(iter(args[index + 1 :]), "")
            return _BY_METHOD.get(method.lower())
    words = re.sub(r"[^a-z0-9]+", " ", model.rsplit("/", 1)[-1].lower())
    return next((size for pattern, size in _BY_NAME if pattern.search(words)), 2.0)
