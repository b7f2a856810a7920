"""The replicas there are, and the number that is asked for. Values only.

Apart from who decides, because both directions speak in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.scaling.backlog import ENDS_WITHIN

__all__ = ["Scale", "Supply"]

FORESEEN: Final = 300.0
"""Seconds for which the pace of a queue, or of a load, is believed at most, however long replicas take. Our choice,
unmeasured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The number to have, and why."""

    replicas: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The replicas there are, and what was tried and asked of them before."""

    current: int
    """As many are asked for at present."""
    ready: int
    newest_since: datetime | None
    """When the newest replica became ready. Only what has waited since then has waited in spite of it."""
    asked_since: datetime | None
    """When another number was last asked for. After each replica less, the rest have as long to show that they do; the
    next prediction would else rest on the same figures as the last."""
    failed: Sequence[ScaleInTried] = ()
    """Fewer replicas that were too few (`tried`)."""
    planned: int | None = None
    """As many replicas are what helps, by the plan; slow tokens alone do not tell whether they do."""
    needed: int | None = None
    """So many are needed in all, by what the ready ones do: what starts is supply, but may be too little of it."""

    start_up: timedelta | None = None
    """How long the newest took to start; None where nobody knows."""
    fewer_since: datetime | None = None
    """When fewer were last asked for: what those served that went is not in the metrics of the rest."""

    @property
    def serves_in(self) -> float:
        """Seconds until a replica serves that is asked for now: as long as the newest took, or as is usual."""
        return ENDS_WITHIN if self.start_up is None else min(self.start_up.total_seconds(), FORESEEN)
