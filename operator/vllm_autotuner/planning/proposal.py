"""A change worth making, before anybody asked whether it may be made.

Must not: be executed. Guardrails answer first; `change` is the only room that makes a change out of it.
"""

from dataclasses import dataclass

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence

__all__ = ["Predicted", "Proposal"]


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
    """What it is meant to improve, and is judged by."""
    reason: str
    confidence: Confidence
    limited_by: str | None = None
    predicted: tuple[Predicted, ...] = ()
    recommend_only: str = ""
    """Why this may be recommended, but not applied; empty when it may."""
    extra_replicas: int = 0
    """Replicas that it adds: what it costs."""
    extra_gpus: int = 0
    """GPUs that it adds to the replicas that there are; negative when it frees some."""

    @property
    def count(self) -> int:
        """The value of a knob that is counted. Raises ValueError for one that is a word."""
        if isinstance(self.value, str):
            raise ValueError(f"{self.knob.value} is no number")
        return self.value
