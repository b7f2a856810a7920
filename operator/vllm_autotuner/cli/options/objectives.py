"""The objectives as options, worded once for every command that holds a service against them.

Must not: have defaults of its own; what is left out takes the profile's.
"""

from typing import Annotated, TypeAlias

import typer

__all__ = ["ProfileName", "Quantile", "TpotTarget", "TtftTarget"]

_PANEL = "Objectives"

ProfileName: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="latency, throughput or bursty.", rich_help_panel=_PANEL)
]
TtftTarget: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="TTFT objective, such as 2s.", rich_help_panel=_PANEL)
]
TpotTarget: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="TPOT objective, such as 50ms.", rich_help_panel=_PANEL)
]
Quantile: TypeAlias = Annotated[
    str, typer.Option(metavar="Q", help="The quantile of both objectives.", rich_help_panel=_PANEL)
]
