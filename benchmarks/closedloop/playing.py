"""One policy through one scenario in virtual time.

Must not: score, or compare. Everything that a run depends on is in the scenario and the policy.
"""

from benchmarks.closedloop.deployment import Deployment
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import INTERVAL
from benchmarks.closedloop.service import Owner

__all__ = ["play"]


async def play(scenario: Scenario, policy: Policy, *, owner: Owner, faults: bool = True) -> Deployment:
    """Run it and return the fleet with its ledger full. `faults` False: nothing goes wrong (offline trials)."""
    deployment = Deployment(scenario, faults=faults)
    policy.begin(deployment)
    now = 0.0
    while now + INTERVAL <= scenario.duration:
        now += INTERVAL
        deployment.advance(now)
        owner.tick(now)
        if policy.scraper is not None:
            policy.scraper.scrape(deployment)
        await policy.tick(deployment)
    # The longest wait of a client, counted from the last arrival: then every request has ended one way or the other.
    deployment.advance(now + scenario.patience + INTERVAL)
    return deployment
