"""Settings that the operator does not change but a user can: what each does and what it costs. Recommended only.

Separate from the advice of a class, because one setting helps several classes and its caveat is the same everywhere.
Must not: promise an effect. Figures come from the named source, not from the service at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["UNTUNED", "Untuned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Untuned:
    """One setting, its benefit and its caveat."""

    knob: str
    why: str
    caveat: str

    @override
    def __str__(self) -> str:
        """In one line."""
        return f"{self.knob}: {self.why}. {self.caveat}."


_MEMORY: Final = Untuned(
    knob="--gpu-memory-utilization",
    why="a larger share of GPU memory gives a larger KV cache",
    caveat="Too large a share can run out of memory under load; then set 0.85 to 0.90. "
    "The default is 0.92 since vLLM 0.21 (0.9 before), and CUDA graphs are included since then",
)
_PREFIX: Final = Untuned(
    knob="--enable-prefix-caching",
    why="a shared beginning of prompts is computed once (2,048 shared and 512 own tokens: TTFT 125 ms -> 32 ms)",
    caveat="No gain where prompts differ from the first token on; put the shared part first",
)
_BATCHED: Final = Untuned(
    knob="--max-num-batched-tokens",
    why="more prompt tokens per step lower TTFT",
    caveat="Each such step delays every running request: inter-token latency spikes when long prompts arrive",
)
_WEIGHTS: Final = Untuned(
    knob="quantised weights",
    why="each step reads fewer bytes, and the freed memory becomes KV cache",
    caveat="The model changes: compare its answers first",
)
_SPECULATIVE: Final = Untuned(
    knob="speculative decoding",
    why="one step produces several tokens while GPU compute is idle",
    caveat="In large batches compute is not idle, and rejected draft tokens cost throughput",
)
_CAPS: Final = Untuned(
    knob="max_tokens of requests",
    why="an output that does not end keeps its KV cache and its slot",
    caveat="Set it at the gateway or in the client; too low a limit truncates answers",
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
"""For other classes none of these helps. Sources: field reports F2, F4, F5."""
