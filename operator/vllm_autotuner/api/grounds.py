"""What a change was decided on: the diagnosis with its figures, and what was foreseen.

Apart from the status, because the records of changes keep it too: beside what was measured in the end, it is the ledger
that tells how often the operator was right.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.fields import Note, Number, most_important
from vllm_autotuner.api.model import ApiModel

GROUNDS_LENGTH: Final = 4
"""Facts and predictions kept of each change: the rules name two to four. Our choice, for size (T35)."""


class Confidence(StrEnum):
    """How sure a statement is."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"


class Evidence(ApiModel):
    """One measured fact behind a diagnosis."""

    name: str
    """What was measured."""

    value: Number = None
    """The measured value; absent when nobody knows."""

    unit: str | None = None
    """Unit of value and threshold."""

    threshold: Number = None
    """What it was compared with."""

    window: str | None = None
    """Over which time."""

    note: Note | None = None
    """What it means."""


class Prediction(ApiModel):
    """What a recommendation is expected to do to one measure."""

    name: str
    """The measure."""

    unit: str | None = None
    """Its unit."""

    current: Number = None
    """Now."""

    predicted: Number = None
    """After the change."""


class Grounds(ApiModel):
    """Why a change was made, in figures."""

    diagnosis: str
    """The diagnosis class of that moment."""

    confidence: Confidence | None = None
    """Of the prediction."""

    evidence: Annotated[tuple[Evidence, ...], *most_important(GROUNDS_LENGTH)] = ()
    """The facts behind the diagnosis, each with its limit and window, most important first."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(GROUNDS_LENGTH)] = ()
    """The effect that was foreseen."""
