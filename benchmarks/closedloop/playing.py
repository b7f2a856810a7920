"""One policy through one scenario in virtual time, to its end or until it has settled.

Must not: score, or compare. Everything that a run depends on is in the scenario and the policy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import TICK
from benchmarks.closedloop.service import Owner

__all__ = ["Run", "play"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A fleet with its ledger full."""

    cluster: SimulatedCluster
    played: float
    """Seconds of load that were played."""
    settled_since: float | None = None
    """From when on it went as it would have gone on; None: all was played."""
    shorter: "Run | None" = None
    """Where all was played all the same: the run as it would have ended when it had settled."""


class Settles(Protocol):
    """Says when a run need not go on: `settling.Settling`, or several of them."""

    def since(self, cluster: SimulatedCluster, policy: Policy) -> float | None:
        """Return since when the run goes on as it went, None while it has to be played. Asked after each tick."""


async def play(
    scenario: Scenario,
    policy: Policy,
    *,
    owner: Owner,
    faults: bool = True,
    settling: Settles | None = None,
    exact: bool = False,
    given_up: Callable[[SimulatedCluster], bool] = lambda cluster: False,
) -> Run:
    """Run it. `faults` False: nothing goes wrong (offline trials).

    `settling`: says when the rest may be left out; with `exact` it is only noted when that would have been.
    `given_up`: asked after each tick; where it says yes the run ends, and its ledger tells of no more than that.
    """
    cluster = SimulatedCluster(scenario, faults=faults)
    policy.begin(cluster)
    now, since = 0.0, None
    shorter: Run | None = None
    while now + TICK <= scenario.duration and since is None:
        now += TICK
        if policy.scraper is not None:
            policy.scraper.until(cluster, now)
        else:
            cluster.advance(now)
        owner.tick(now)
        await policy.tick(cluster)
        if given_up(cluster):
            return Run(cluster=cluster, played=now)
        if settling is not None and shorter is None:
            since = settling.since(cluster, policy)
            if exact and since is not None:
                shorter, since = Run(cluster=cluster, played=now, settled_since=since), None
    # The longest wait of a client, counted from the last arrival: then every request has ended one way or the other.
    cluster.advance(now + scenario.patience + TICK)
    return Run(cluster=cluster, played=now, settled_since=since, shorter=shorter)
