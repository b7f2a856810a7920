"""The latency objectives that a service is held against.

Must not: have target values of its own; a target that is left out is the profile's.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

__all__ = ["ObjectiveOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveOptions:
    """The objectives as typed."""

    PANEL: ClassVar = "Objectives"

    profile: Annotated[str, typer.Option(metavar="NAME", help="Default objectives: latency, throughput or bursty.")] = (
        "latency"
    )
    ttft: Annotated[str | None, typer.Option(metavar="TIME", help="Objective for TTFT, such as 2s.")] = None
    tpot: Annotated[str | None, typer.Option(metavar="TIME", help="Objective for TPOT, such as 50ms.")] = None
    quantile: Annotated[str, typer.Option(metavar="Q", help="Quantile of both objectives, such as 0.95.")] = "0.95"
