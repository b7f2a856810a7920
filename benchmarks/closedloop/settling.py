"""Whether a run goes on as it went: then the rest of the day is arithmetic and need not be played.

A run has settled where the load and everything else about the case stay as they are (`Scenario.steady_from`), the
policy has nothing under way and nothing that it waits for (`Policy.quiet_since`), its GPUs are the same in both halves
of the time since, and there are windows enough to know its attainment. What was left out is told with the figures.
Must not: be asked about a load that moves for as long as the run lasts.
"""

import math
from dataclasses import dataclass
from typing import Final

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.policies import Policy
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.windows import WINDOW, windows_of

__all__ = ["EXACT", "QUICK", "USUAL", "Patience", "Settling"]

WARM_UP: Final = 900.0
"""Seconds after which a queue that stood at the start, or came with the last change, has gone. Our choice: the longest
start-up is twice this, but until then replicas differ between the halves."""
SAME_GPUS: Final = 0.03
"""Halves whose mean GPUs differ by less are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How sure is sure enough."""

    fewest: float
    """Seconds of settled load that are played at least."""
    error: float
    """Standard error of the share of windows in order; where many are not, a fifth of their share is enough."""


USUAL: Final = Patience(fewest=7200.0, error=0.025)
"""40 windows without a miss, 3.3 h. `--exact` shows what it costs: docs/benchmarks.md."""
QUICK: Final = Patience(fewest=3600.0, error=0.05)
EXACT: Final = None
"""Everything is played."""


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
        middle = (since + now) / 2
        halves = cluster.gpu_seconds(since, middle), cluster.gpu_seconds(middle, now)
        if abs(halves[0] - halves[1]) > SAME_GPUS * max(halves):
            return None
        # The last requests have not ended yet, and a window that they are missing in is none.
        last = now - self.scenario.patience
        windows = windows_of(self.scenario, cluster, since=since, until=last)
        if not len(windows.held):
            return None
        share = (float(windows.held.sum()) + 1) / (len(windows.held) + 2)
        error = math.sqrt(share * (1 - share) / len(windows.held))
        return since if error <= max(self.patience.error, (1 - share) / 5) else None
