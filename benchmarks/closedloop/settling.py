"""Whether a run goes on as it went: then the rest of the day is arithmetic and need not be played.

A run has settled where the load and everything else about the case stay as they are (`Scenario.steady_from`), the
policy has nothing under way and nothing that it waits for (`Policy.quiet_since`), and what the rest of the day would
add is known well enough: attainment from the windows since then, GPUs from the eighths of that time. What was left out
is told with the figures. Must not: be asked about a load that moves for as long as the run lasts.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Final

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.windows import WINDOW, windows_of

__all__ = ["QUICK", "USUAL", "Patience", "Settling"]

WARM_UP: Final = 900.0
"""Seconds after which a queue that stood at the start, or came with the last change, has gone. Our choice: twice the
longest mean start-up."""
BLOCKS: Final = 8
"""Parts of the settled time whose GPUs are compared: of a quarter of an hour or longer, so that one is no part of
another's scale-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How sure is sure enough, about the figures of the whole day."""

    fewest: float
    """Seconds of settled load that are played at least."""
    error: float
    """Standard error of attainment."""
    gpus: float = 0.01
    """Standard error of GPU-hours, as a part of them."""
    missed: float = 0.05
    """Where many windows are missed, a standard error of this part of their share is enough."""
    whole_day: bool = True
    """Whether the oracle's choice is played to its end all the same."""


USUAL: Final = Patience(fewest=14_400.0, error=0.012)
"""4 h and more: with half of that and twice the error a change that came 4 h after the cooldown was missed (10 % of the
GPU-hours), and attainment was 5 points off (seed 201, commit 5a2d4ad). `--exact` shows what it costs."""
QUICK: Final = Patience(fewest=3600.0, error=0.05, gpus=0.03, missed=0.2, whole_day=False)
"""For a first look: whole points of attainment and some per cent of GPU-hours are chance."""


@dataclass(slots=True, kw_only=True)
class Settling:
    """Asked after each tick; looks once a window."""

    scenario: Scenario
    patience: Patience
    _next: float = 0.0

    def since(self, cluster: SimulatedCluster, policy: Policy) -> float | None:
        """Return since when the run has settled, None while it has not."""
        steady, now = self.scenario.steady_from, cluster.now
        if steady is None or now < self._next:
            return None
        self._next = now + WINDOW
        quiet_since = policy.quiet_since
        if math.isinf(quiet_since):
            return None
        since = math.ceil((max(steady, quiet_since) + WARM_UP) / WINDOW) * WINDOW
        if now - since < self.patience.fewest:
            return None
        left = (self.scenario.duration - now) / self.scenario.duration
        known = self._gpus_known(cluster, since, left=left) and self._attainment_known(cluster, since, left=left)
        return since if known else None

    def _gpus_known(self, cluster: SimulatedCluster, since: float, *, left: float) -> bool:
        edges = [since + (cluster.now - since) * part / BLOCKS for part in range(BLOCKS + 1)]
        blocks = [cluster.gpu_seconds(begin, end) for begin, end in pairwise(edges)]
        return left * stdev(blocks) / math.sqrt(BLOCKS) <= self.patience.gpus * fmean(blocks)

    def _attainment_known(self, cluster: SimulatedCluster, since: float, *, left: float) -> bool:
        # The last requests have not ended yet, and a window that they are missing in is none.
        windows = windows_of(self.scenario, cluster, since=since, until=cluster.now - self.scenario.patience)
        count = len(windows.held)
        if not count:
            return False
        share = (float(windows.held.sum()) + 1) / (count + 2)
        error = left * math.sqrt(share * (1 - share) / count)
        return error <= max(self.patience.error, self.patience.missed * (1 - share))
