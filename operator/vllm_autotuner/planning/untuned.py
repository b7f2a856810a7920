"""Knobs that this tool does not change and a person might: what each does, and what it costs. Recommend-only, always.

Apart from the advice of a class, because one knob helps several classes and its caveat is the same everywhere.
Must not: promise an effect. Figures are of the named source, not of the service at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["UNTUNED", "Untuned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Untuned:
    """One knob, why one would turn it, and what to watch."""

    knob: str
    why: str
    caveat: str

    @override
    def __str__(self) -> str:
        """In one line."""
        return f"{self.knob}: {self.why}. {self.caveat}."


_MEMORY: Final = Untuned(
    knob="--gpu-memory-utilization",
    why="a larger share of the GPU's memory is a larger KV cache",
    caveat="What start-up did not reserve is missing under load: engines that ran out of memory are set to 0.85-0.90. "
    "Defaults moved (0.9, since vLLM 0.29 0.92), and since 0.21 CUDA graphs count inside it",
)
_PREFIX: Final = Untuned(
    knob="--enable-prefix-caching",
    why="a beginning that prompts share is computed once (2,048 shared and 512 own tokens: 125 ms became 32 ms)",
    caveat="It gains nothing where prompts differ from their first token on; put the shared part first",
)
_BATCHED: Final = Untuned(
    knob="--max-num-batched-tokens",
    why="more prompt tokens in one step bring the first token sooner",
    caveat="Each such step delays every running request: the time between tokens spikes when long prompts arrive",
)
_WEIGHTS: Final = Untuned(
    knob="quantised weights",
    why="each step reads fewer bytes, and the memory that is freed becomes KV cache",
    caveat="It is another model: compare its answers before",
)
_SPECULATIVE: Final = Untuned(
    knob="speculative decoding",
    why="several tokens come from one step while the GPU's arithmetic is idle",
    caveat="In large batches the arithmetic is not idle, and guesses that are thrown away cost throughput",
)
_CAPS: Final = Untuned(
    knob="max_tokens of requests",
    why="an output that never ends holds its KV cache and its seat",
    caveat="Set at the gateway or in the client; a cap that is too low cuts answers off",
)

UNTUNED: Final[Mapping[DiagnosisClass, tuple[Untuned, ...]]] = {
    DiagnosisClass.PREEMPTION_THRASH: (_MEMORY, _WEIGHTS, _CAPS),
    DiagnosisClass.KV_CACHE_SATURATED: (_MEMORY, _PREFIX, _WEIGHTS, _CAPS),
    DiagnosisClass.PAST_TPOT_KNEE: (_WEIGHTS, _SPECULATIVE),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: (_WEIGHTS, _SPECULATIVE),
    DiagnosisClass.PREFILL_BOUND: (_PREFIX, _BATCHED),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: (_CAPS, _BATCHED),
    DiagnosisClass.RUNAWAY_OUTPUTS: (_CAPS,),
}
"""Where nothing stands, none of these helps. Source: field guide F2, F4, F5; measured facts 2.6."""
