"""For how long a policy serves clearly fewer requests well than another one did of the very same requests.

Both runs get the same requests at the same times, so the load takes no part in a difference: what chance does is which
of them happen to be late in one run and not in the other. Those are at most all that were late in either, and where
chance alone decides each, the counts differ by the square root of that. Below is who is so by more than twice as much,
and by more than what counts as level.
Apart from `scoring`, which knows one run only. Must not: call a policy behind by what noise does.
"""

from collections.abc import Sequence
from datetime import timedelta
from math import sqrt
from typing import Final

from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scoring import MINUTE, Score
from benchmarks.closedloop.scraping import INTERVAL
from benchmarks.closedloop.service import Owner
from vllm_autotuner.change.comparison import LOOKS
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["longest_behind", "one_canary"]

WINDOW: Final = 3
"""Minutes that are compared at once. One alone is a start or a burst; more would hide a trial's end. Our choice."""
DEVIATIONS: Final = 2.0
"""Standard deviations that are noise. Some window of a run is below by chance all the same: one, and not ten in a row,
which is what a canary takes."""


def longest_behind(ours: Score, theirs: Score, *, level: float) -> float:
    """Seconds for which every window, one begun each minute, had `ours` clearly below `theirs`.

    `level`: part of goodput that counts as level. What is behind for t minutes is so in up to t + `WINDOW` - 1 windows.
    """
    longest = lasting = 0
    for begin in range(len(theirs.per_minute) - WINDOW + 1):
        minutes = slice(begin, begin + WINDOW)
        mine, its = _count(ours.per_minute[minutes]), _count(theirs.per_minute[minutes])
        late = 2 * _count(theirs.came_per_minute[minutes]) - mine - its
        behind = its - mine > max(level * its, DEVIATIONS * sqrt(max(0.0, late)))
        lasting = lasting + 1 if behind else 0
        longest = max(longest, lasting)
    return longest * MINUTE


def one_canary(scenario: Scenario) -> timedelta:
    """How long a change is tried at most before its verdict: a pod starts, warms up, is measured to the last look."""
    strategy = Owner(scenario).service().spec.tuning.strategy
    window = max(WindowSettings().state, INTERVAL * WindowSettings().fewest_scrapes)
    return timedelta(seconds=scenario.startup + LOOKS[-1] * window) + strategy.warm_up


def _count(per_second: Sequence[float]) -> float:
    return sum(per_second) * MINUTE
