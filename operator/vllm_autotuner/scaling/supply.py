"""The current replicas (`Supply`) and the desired number (`Scale`). Values only, shared by scale-out and scale-in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.scaling.backlog import ENDS_WITHIN

__all__ = ["Scale", "Supply"]

FORESEEN: Final = 300.0
"""Longest time in seconds over which the rate of a queue is extrapolated, however long replicas take to
start. Our choice, unmeasured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The desired number of replicas, and why."""

    replicas: int
    reason: str
    lacking: bool = False
    """More because requests waited or were late: the number before was too low."""
    foretold: bool = False
    """Fewer because the rest are foretold to carry the load, which may turn out to be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The current replicas, with earlier scalings and their results."""

    current: int
    """The number of replicas currently requested."""
    rolled_out: bool
    """Every pod has the live configuration. While pods are replaced, one that goes may not come back: the new ones may
    not start."""
    ready: int
    newest_since: datetime | None
    """When the newest replica became ready. Only waiting since then shows that it was not enough."""
    pods_changed_at: datetime | None
    """When replicas were last set, or the pods of a trial went. Fewer pods are observed for the stabilization time:
    what those that went have served is not in the metrics of the rest, and would be missing in the next prediction."""
    failed: Sequence[ScaleInTried] = ()
    """Numbers of replicas that were too low (`tried`)."""
    start_up: timedelta | None = None
    """How long the newest replica took to start; None if not known."""

    @property
    def serves_in(self) -> float:
        """Seconds until a replica that is requested now serves: as long as the newest took, or a typical time."""
        return ENDS_WITHIN if self.start_up is None else min(self.start_up.total_seconds(), FORESEEN)
