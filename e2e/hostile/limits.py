"""What an operator may cost by the chart that installs it: the interval of its ticks and the memory of its pod.

Apart from the story, so that a figure is held against the installation and not against a number of a test.
"""

from dataclasses import dataclass
from typing import Final

import yaml

from e2e.release import CHART
from vllm_autotuner.api.durations import parse_duration

_UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one installation."""

    tick_seconds: float
    """The interval: a tick that takes longer delays the next one."""
    memory_bytes: int


def chart_limits() -> Limits:
    """Those of the chart's default values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    memory = str(values["resources"]["limits"]["memory"])
    return Limits(
        tick_seconds=parse_duration(values["interval"]).total_seconds(),
        memory_bytes=int(memory[:-2]) * _UNITS[memory[-2:]],
    )
