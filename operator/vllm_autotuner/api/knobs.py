"""The knobs that the operator may change, by their field names in the API."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from vllm_autotuner.api.annotations import whole_number
from vllm_autotuner.api.fields import Count, Tokens, matching
from vllm_autotuner.api.model import ApiModel

KvCacheDtype = Annotated[
    str,
    *matching(r"^[a-z][a-z0-9_]{0,31}$", max_length=64, message="write a vLLM KV-cache dtype such as auto or fp8"),
]


class Knob(StrEnum):
    """The knobs; the values are the field names of the API and appear in status, Events and metrics."""

    MAX_NUM_SEQS = "maxNumSeqs"
    MAX_MODEL_LEN = "maxModelLen"
    KV_CACHE_DTYPE = "kvCacheDtype"
    TENSOR_PARALLEL_SIZE = "tensorParallelSize"
    REPLICAS = "replicas"


MOST_DIGITS: Final = 9
"""Of a knob's value; a longer text is none, whoever wrote it."""


def knob_value(text: str) -> int | str:
    """The value that a status has as text, in its own type; the status may have been edited by hand."""
    # int() also accepts decimals of other scripts; the operator writes ASCII only.
    number = whole_number(text) if text.isascii() and len(text) <= MOST_DIGITS else None
    return text if number is None else number


class EngineKnobs(ApiModel):
    """A configuration of the engine; an absent knob uses the engine's own default."""

    max_num_seqs: Count | None = None
    """Maximum number of concurrent sequences per replica (--max-num-seqs). Default: the engine's."""

    max_model_len: Tokens | None = None
    """Maximum tokens per request, prompt plus output (--max-model-len). Default: the model's."""

    kv_cache_dtype: KvCacheDtype | None = None
    """Data type of the KV cache (--kv-cache-dtype); less precision than the model's affects quality. Default: auto."""

    tensor_parallel_size: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    """GPUs per replica (--tensor-parallel-size). Default: 1."""

    @property
    def knobs(self) -> "EngineKnobs":
        """Only the knobs, for comparing subclasses that have other fields."""
        return EngineKnobs(
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
        )
