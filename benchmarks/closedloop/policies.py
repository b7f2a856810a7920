"""Who decides in a run: fixed settings, a rival's rule, or the product.

Must not: drive time (`playing` does), or know a rule's inside.
"""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.rivals import Rule, Seen
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner

__all__ = ["Fixed", "Policy", "Ruled"]


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


@dataclass(slots=True)
class Fixed:
    """One setting for the whole run; only the owner's edits change anything."""

    owner: Owner
    seats: int | None
    replicas: int
    kv_cache_dtype: str | None = None
    scraper: Scraper | None = None
    _generation: int = 0

    def begin(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        self._apply(cluster, ready=True)

    async def tick(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        if self.owner.generation != self._generation:
            self._apply(cluster)

    def _apply(self, cluster: SimulatedCluster, *, ready: bool = False) -> None:
        self._generation = self.owner.generation
        body = self.owner.rendered(seats=self.seats, replicas=self.replicas, kv_cache_dtype=self.kv_cache_dtype)
        cluster.apply(body, ready=ready)


@dataclass(slots=True)
class Ruled:
    """A rule for replicas within the user's bounds; flags stay as the user wrote them."""

    scenario: Scenario
    owner: Owner
    rule: Rule
    scraper: Scraper

    def begin(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        cluster.apply(self.owner.rendered(seats=self.scenario.seats, replicas=self.scenario.replicas), ready=True)

    async def tick(self, cluster: SimulatedCluster) -> None:
        """See Policy."""
        ready = len(cluster.ready)
        seen = Seen(now=cluster.now, replicas=cluster.replicas, ready=ready, gauges=self.scraper.gauges)
        wanted = max(self.scenario.min_replicas, min(self.scenario.max_replicas, self.rule.wanted(seen)))
        cluster.apply(self.owner.rendered(seats=self.scenario.seats, replicas=wanted))
