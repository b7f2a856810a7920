"""How each class looks wherever it is shown: its colour on pages, its colour in terminals, its place in "worst first".

Colours are those of Okabe and Ito, which people with any of the usual colour blindnesses tell apart. There are more
classes than such colours, so a class is a colour *and* a hatch: related classes share the colour. Names are always
written beside it. Must not: hold a word (`diagnosis_text` does), or decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["LOOKS", "Look", "Severity", "look_of"]

_GREEN, _SKY, _GREY, _PURPLE = "#009E73", "#56B4E9", "#999999", "#CC79A7"
_VERMILION, _ORANGE, _BLUE, _YELLOW, _WINE = "#D55E00", "#E69F00", "#0072B2", "#F0E442", "#882255"


class Severity(IntEnum):
    """How soon a person should look: the order of a list, not a measure of load."""

    FINE = 0
    UNSURE = 1
    LIMITED = 2
    ALARM = 3


@dataclass(frozen=True, slots=True)
class Look:
    """Of one class."""

    colour: str
    """#RRGGBB."""
    terminal: str
    """A style of rich."""
    severity: Severity
    hatch: str = ""
    """A hatch of matplotlib."""


LOOKS: Final[Mapping[str, Look]] = {
    "Healthy": Look(_GREEN, "green", Severity.FINE),
    "Idle": Look(_SKY, "cyan", Severity.FINE),
    "Underutilized": Look(_SKY, "cyan", Severity.FINE, ".."),
    "ColdStart": Look(_SKY, "cyan", Severity.UNSURE, "//"),
    "Unclear": Look(_GREY, "yellow", Severity.UNSURE),
    "DeferredQueue": Look(_PURPLE, "magenta", Severity.LIMITED),
    "KVCacheSaturated": Look(_VERMILION, "red", Severity.LIMITED),
    "PreemptionThrash": Look(_VERMILION, "red", Severity.LIMITED, "xx"),
    "RunawayOutputs": Look(_VERMILION, "red", Severity.LIMITED, "//"),
    "ConcurrencyCapped": Look(_ORANGE, "red", Severity.LIMITED),
    "ContextOversized": Look(_ORANGE, "red", Severity.LIMITED, ".."),
    "PastTPOTKnee": Look(_BLUE, "red", Severity.LIMITED),
    "DecodeBandwidthBound": Look(_BLUE, "red", Severity.LIMITED, "//"),
    "CommunicationBound": Look(_BLUE, "red", Severity.LIMITED, "xx"),
    "PrefillBound": Look(_YELLOW, "red", Severity.LIMITED),
    "HeadOfLineBlocking": Look(_YELLOW, "red", Severity.LIMITED, "//"),
    "Overloaded": Look(_WINE, "red", Severity.LIMITED),
    "MetricsBlind": Look(_GREY, "magenta", Severity.ALARM, "xx"),
    "StartupFailure": Look(_PURPLE, "bright_red", Severity.ALARM, "xx"),
    "Wedged": Look(_WINE, "bright_red", Severity.ALARM, "xx"),
}
"""By the value of the class. A test holds it to every DiagnosisClass and every pair of colour and hatch apart."""


def look_of(named: DiagnosisClass) -> Look:
    """The look of a class."""
    return LOOKS[named.value]
