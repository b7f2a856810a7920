"""How each class is shown: its colour on pages and in terminals, and its severity for sorting.

Colours are those of Okabe and Ito, which people with any of the usual colour blindnesses tell apart. There are more
classes than such colours, so a class is a colour *and* a hatch: related classes share the colour. Names are always
written beside it. Must not: hold a text (`diagnosis.text` does), or decide.
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
    """How urgent a class is: for sorting, not a measure of load."""

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


LOOKS: Final[Mapping[DiagnosisClass, Look]] = {
    DiagnosisClass.HEALTHY: Look(_GREEN, "green", Severity.FINE),
    DiagnosisClass.IDLE: Look(_SKY, "cyan", Severity.FINE),
    DiagnosisClass.UNDERUTILIZED: Look(_SKY, "cyan", Severity.FINE, ".."),
    DiagnosisClass.COLD_START: Look(_SKY, "cyan", Severity.UNSURE, "//"),
    DiagnosisClass.UNCLEAR: Look(_GREY, "yellow", Severity.UNSURE),
    DiagnosisClass.DEFERRED_QUEUE: Look(_PURPLE, "magenta", Severity.LIMITED),
    DiagnosisClass.KV_CACHE_SATURATED: Look(_VERMILION, "red", Severity.LIMITED),
    DiagnosisClass.PREEMPTION_THRASH: Look(_VERMILION, "red", Severity.LIMITED, "xx"),
    DiagnosisClass.RUNAWAY_OUTPUTS: Look(_VERMILION, "red", Severity.LIMITED, "//"),
    DiagnosisClass.CONCURRENCY_CAPPED: Look(_ORANGE, "red", Severity.LIMITED),
    DiagnosisClass.CONTEXT_OVERSIZED: Look(_ORANGE, "red", Severity.LIMITED, ".."),
    DiagnosisClass.PAST_TPOT_KNEE: Look(_BLUE, "red", Severity.LIMITED),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: Look(_BLUE, "red", Severity.LIMITED, "//"),
    DiagnosisClass.COMMUNICATION_BOUND: Look(_BLUE, "red", Severity.LIMITED, "xx"),
    DiagnosisClass.PREFILL_BOUND: Look(_YELLOW, "red", Severity.LIMITED),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: Look(_YELLOW, "red", Severity.LIMITED, "//"),
    DiagnosisClass.OVERLOADED: Look(_WINE, "red", Severity.LIMITED),
    DiagnosisClass.METRICS_BLIND: Look(_GREY, "magenta", Severity.ALARM, "xx"),
    DiagnosisClass.STARTUP_FAILURE: Look(_PURPLE, "bright_red", Severity.ALARM, "xx"),
    DiagnosisClass.WEDGED: Look(_WINE, "bright_red", Severity.ALARM, "xx"),
}
"""A test holds it to every DiagnosisClass, and every pair of colour and hatch apart."""


def look_of(named: DiagnosisClass) -> Look:
    """The look of a class."""
    return LOOKS[named]
