"""One policy through one scenario in virtual time.

Must not: score, or compare. Everything that a run depends on is in the scenario and the policy.
"""

from typing import Final

from benchmarks.closedloop.fleet import Fleet
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import INTERVAL
from benchmarks.closedloop.service import Owner

__all__ = ["play"]

TAIL: Final = 900.0
"""Seconds after the last arrival in which requests under way may finish; what then still runs has failed."""


async def play(scenario: Scenario, policy: Policy, *, owner: Owner, faults: bool = True) -> Fleet:
    """Run it and return the fleet with its ledger full. `faults` False: nothing goes wrong (offline trials)."""
    fleet = Fleet(scenario, faults=faults)
    policy.begin(fleet)
    now = 0.0
    while now + INTERVAL <= scenario.duration:
        now += INTERVAL
        fleet.advance(now)
        owner.tick(now)
        if policy.scraper is not None:
            policy.scraper.scrape(fleet)
        await policy.tick(fleet)
    end = scenario.duration + TAIL
    while fleet.busy and now < end:
        now += INTERVAL
        fleet.advance(now)
    fleet.finish()
    return fleet
