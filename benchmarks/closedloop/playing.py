"""One policy through one scenario in virtual time.

Must not: score, or compare. Everything that a run depends on is in the scenario and the policy.
"""

from collections.abc import Callable

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import INTERVAL
from benchmarks.closedloop.service import Owner

__all__ = ["play"]


async def play(
    scenario: Scenario,
    policy: Policy,
    *,
    owner: Owner,
    faults: bool = True,
    given_up: Callable[[SimulatedCluster], bool] = lambda cluster: False,
) -> SimulatedCluster:
    """Run it and return the fleet with its ledger full. `faults` False: nothing goes wrong (offline trials).

    `given_up`: asked after each tick; where it says yes the run ends, and its ledger tells of no more than that.
    """
    cluster = SimulatedCluster(scenario, faults=faults)
    policy.begin(cluster)
    now = 0.0
    while now + INTERVAL <= scenario.duration:
        now += INTERVAL
        cluster.advance(now)
        owner.tick(now)
        if policy.scraper is not None:
            policy.scraper.scrape(cluster)
        await policy.tick(cluster)
        if given_up(cluster):
            return cluster
    # The longest wait of a client, counted from the last arrival: then every request has ended one way or the other.
    cluster.advance(now + scenario.patience + INTERVAL)
    return cluster
