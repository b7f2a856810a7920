"""Who decides in a run: fixed settings, a rival's rule, or the product.

Must not: drive time (`playing` does), or know a rule's inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.rivals import Rule, Seen
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner

__all__ = ["Fixed", "Policy", "Ruled"]

RULES_SETTLE: Final = 1800.0
"""Seconds: six times the longest window of any rule here."""


class Policy(Protocol):
    """Applies a Deployment at the start and whenever it wants another."""

    @property
    def scraper(self) -> Scraper | None:
        """Where scrapes go; None for one that never looks."""
        ...

    def begin(self, cluster: SimulatedCluster) -> None:
        """Apply the Deployment that serves when the run begins."""
        ...

    async def tick(self, cluster: SimulatedCluster) -> None:
        """Every 15 s, after the scrape."""
        ...

    @property
    def quiet_since(self) -> float:
        """Since when nothing is under way and nothing more is to be expected; infinite while something is."""
        ...


@dataclass(slots=True)
class Fixed:
    """One setting of flags for the whole run, and replicas that are fixed as well or follow a schedule."""

    owner: Owner
    seats: int | None
    replicas: int
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    schedule: Sequence[tuple[float, int]] = ()
    """(seconds, replicas) in order of time; what is asked for from then on."""
    scraper: Scraper | None = None
    _generation: int = 0
    _done: int = 0

    def begin(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        self._turn(0.0)
        self._apply(cluster, ready=True)

    async def tick(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        if self._turn(cluster.now) or self.owner.generation != self._generation:
            self._apply(cluster)

    @property
    def quiet_since(self) -> float:
        """See Policy."""
        return self.schedule[-1][0] if self.schedule else 0.0

    def _turn(self, now: float) -> bool:
        before = self._done
        while self._done < len(self.schedule) and self.schedule[self._done][0] <= now:
            self.replicas = self.schedule[self._done][1]
            self._done += 1
        return self._done != before

    def _apply(self, cluster: SimulatedCluster, *, ready: bool = False) -> None:
        self._generation = self.owner.generation
        body = self.owner.rendered(
            seats=self.seats,
            replicas=self.replicas,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
            max_model_len=self.max_model_len,
        )
        cluster.apply(body, ready=ready)


@dataclass(slots=True)
class Ruled:
    """A rule for replicas within the user's bounds; flags stay as they were at the start."""

    scenario: Scenario
    owner: Owner
    rule: Rule
    scraper: Scraper
    seats: int | None
    """Those of the start, which an offline sweep may have chosen."""
    _body: dict[str, Any] = field(default_factory=dict)
    _asked: tuple[int, int] = (0, 0)

    def begin(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        cluster.apply(self.owner.rendered(seats=self.seats, replicas=self.scenario.replicas), ready=True)

    async def tick(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        ready = len(cluster.ready)
        seen = Seen(now=cluster.now, replicas=cluster.replicas, ready=ready, gauges=self.scraper.gauges)
        wanted = max(self.scenario.min_replicas, min(self.scenario.max_replicas, self.rule.wanted(seen)))
        asked = (self.owner.generation, wanted)
        # Rendering costs more than the engines of a quarter of a minute.
        if asked != self._asked:
            self._asked, self._body = asked, self.owner.rendered(seats=self.seats, replicas=wanted)
        cluster.apply(self._body)

    @property
    def quiet_since(self) -> float:
        """See Policy. A rule is never done, but it takes its last habit within the first half hour of a steady load."""
        return RULES_SETTLE
