"""Status models for the basis of a change: diagnosis, evidence and predicted effect.

Separate from the status, because change records keep it too: together with the measured result it shows how accurate
the operator's predictions are.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.fields import Note, Number, most_important
from vllm_autotuner.api.model import ApiModel

GROUNDS_LENGTH: Final = 4
"""Evidence and predictions kept per change: the rules produce two to four. Our choice, for size (T35)."""


class Confidence(StrEnum):
    """The confidence of a diagnosis or prediction."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"


class Evidence(ApiModel):
    """One measured fact behind a diagnosis."""

    name: str
    """What was measured."""

    value: Number = None
    """The measured value; absent if unknown."""

    unit: str | None = None
    """Unit of value and threshold."""

    threshold: Number = None
    """The threshold that the value was compared with."""

    window: str | None = None
    """The time over which it was measured."""

    note: Note | None = None
    """What it means."""


class Prediction(ApiModel):
    """The predicted effect of a recommendation on one metric."""

    name: str
    """The metric."""

    unit: str | None = None
    """Its unit."""

    current: Number = None
    """The current value."""

    predicted: Number = None
    """The predicted value after the change."""


class Grounds(ApiModel):
    """The basis of a change, in numbers."""

    diagnosis: str
    """The diagnosis class at the time of the decision."""

    confidence: Confidence | None = None
    """Confidence of the prediction."""

    evidence: Annotated[tuple[Evidence, ...], *most_important(GROUNDS_LENGTH)] = ()
    """The evidence behind the diagnosis, each with its threshold and window, most important first."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(GROUNDS_LENGTH)] = ()
    """The predicted effect."""
