"""A proposal: one change worth making, before the guardrails have checked it.

Must not: be executed directly. Guardrails check it first; only the package `change` turns it into a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.api.wording import told_value

__all__ = ["NothingToGain", "Predicted", "Proposal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One expected effect. None: not known."""

    name: str
    unit: str
    current: float | None
    predicted: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One knob, one new value, and why."""

    knob: Knob
    current: int | str | None
    """None: the engine's default."""
    value: int | str
    target: ChangeTarget
    """The metric that it should improve and is judged by."""
    reason: str
    confidence: Confidence
    limited_by: str | None = None
    predicted: tuple[Predicted, ...] = ()
    recommend_only: str = ""
    """Why this may only be recommended; empty if it may be applied."""
    kv_cache_tokens: float | None = None
    """What the KV cache of one replica holds now, where the change is for a larger one; None for any other."""
    max_model_len: int | None = None
    """max-model-len that goes with it, in one change: without it the engine would not start. None: it stays."""
    max_num_seqs: int | None = None
    """max-num-seqs that goes with it: the memory of more slots is missed on fewer GPUs. None: it stays."""
    extra_replicas: int = 0
    """Replicas that it adds."""
    extra_gpus: int = 0
    """GPUs that it adds to the current replicas; negative if it frees some."""

    @property
    def values(self) -> Mapping[Knob, int | str]:
        """All that it sets: the value, and those of the knobs that go with it."""
        companions = {Knob.MAX_MODEL_LEN: self.max_model_len, Knob.MAX_NUM_SEQS: self.max_num_seqs}
        return {self.knob: self.value} | {knob: value for knob, value in companions.items() if value is not None}

    @property
    def told(self) -> str:
        """What is proposed, in words."""
        return told_value(
            self.knob.value, self.current, self.value, max_model_len=self.max_model_len, max_num_seqs=self.max_num_seqs
        )

    @property
    def count(self) -> int:
        """The value of a numeric knob. Raises ValueError for any other."""
        if isinstance(self.value, str):
            raise ValueError(f"{self.knob.value} is not a number")
        return self.value


@dataclass(frozen=True, slots=True)
class NothingToGain:
    """No proposal, with the reason that `explain` prints."""

    why: str
