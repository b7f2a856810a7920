"""The closed loop decides the same, whether each look reads what is new or everything."""

import asyncio

from tests.benchmarks.drawn import case

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner

CAPPED = case(rate=3.0, seconds=1800.0, seats=8, replicas=2, max_replicas=3)


def decided(*, whole: bool) -> Autotuner:
    """The operator after the run."""
    owner = Owner(CAPPED)
    product = Autotuner(CAPPED, owner, Scraper(), reads_whole=whole)
    asyncio.run(play(CAPPED, product, owner=owner))
    return product


def test_what_is_new_leads_to_what_everything_leads_to() -> None:
    new, whole = decided(whole=False), decided(whole=True)
    assert new.ended, "nothing was decided"
    assert new.status == whole.status
    assert (new.ended, new.states, new.named) == (whole.ended, whole.states, whole.named)
