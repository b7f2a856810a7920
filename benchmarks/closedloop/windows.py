"""Five minutes of load at a time: did every objective hold at its quantile?

This is what a VLLMService promises, so it is what attainment means here: the share of windows with load in which it
was kept. A window in which 96 % of the requests met a target at p95 is in order, whatever became of the rest; a request
that failed has met nothing. Must not: know a policy, or what GPUs cost.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.scenario import Scenario
from vllm_autotuner.simulation.ledger import Period

__all__ = ["WINDOW", "Windows", "windows_of"]

WINDOW: Final = 300.0
"""Seconds: what an alert on an objective commonly looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows with load, in order of time."""

    begin: NDArray[np.float64]
    held: NDArray[np.bool_]

    @property
    def attainment(self) -> float:
        """Share of the windows in which every objective held; 1 without load."""
        return float(self.held.mean()) if len(self.held) else 1.0

    def within(self, since: float, until: float) -> "Windows":
        """Those that begin in [since, until)."""
        inside = (self.begin >= since) & (self.begin < until)
        return Windows(begin=self.begin[inside], held=self.held[inside])


def windows_of(scenario: Scenario, cluster: SimulatedCluster, *, since: float, until: float) -> Windows:
    """Judge the whole windows between two seconds, by the arrival of requests."""
    # Who arrived in the first window may have been answered much later than it ended, but never before it began.
    return judged(scenario, cluster.fleet.ledger.between(since, cluster.now), since=since, until=until)


def judged(scenario: Scenario, ended: Period, *, since: float, until: float) -> Windows:
    """Judge the whole windows between two seconds, given the requests that ended in and after them."""
    count = int((until - since) // WINDOW)
    if count <= 0:
        return Windows(begin=np.empty(0), held=np.empty(0, dtype=np.bool_))
    window = ((ended.arrival - since) // WINDOW).astype(np.int64)
    inside = (ended.arrival >= since) & (window < count)
    window = window[inside]
    came = np.bincount(window, minlength=count)
    held = np.ones(count, dtype=np.bool_)
    for took, target in ((ended.ttft, scenario.objectives.ttft), (ended.tpot, scenario.objectives.tpot)):
        # NaN compares as false: what failed has met nothing.
        met = np.bincount(window[took[inside] <= target], minlength=count)
        held &= met >= scenario.objectives.quantile * came
    loaded = came > 0
    begin = np.asarray(since + WINDOW * np.flatnonzero(loaded), dtype=np.float64)
    return Windows(begin=begin, held=held[loaded])
