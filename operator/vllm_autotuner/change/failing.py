"""Detects engines that fail requests with the new configuration more often than with the old one.

Separate from the verdict on latency, which misses it: a request that fails at once has no latency, and a router that
prefers the pod with the fewest requests sends most of them to an engine that fails them. Checked in every state.
The pods of a change are new, so their counters cover exactly this configuration.
Limit: only failures that engines count. A server that rejects requests before they reach its engine goes unnoticed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from vllm_autotuner.api.status import ActiveChange
from vllm_autotuner.change.world import World, sides
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["MOST_FAILED", "failing"]

FEWEST: Final = 5
"""Failed requests below which nothing is reported: one or two may be an accident. Our choice, unmeasured."""
MOST_FAILED: Final = 0.02
"""Tolerated share of failed requests if engines with the old configuration fail fewer. Our choice; a healthy engine
fails none."""
MOST_FAILED_ALONE: Final = 0.2
"""The same if no engine runs the old configuration any more: it may have failed some as well. Our choice."""
TIMES: Final = 3.0
"""Tolerated multiple of the old configuration's share: failures on both sides come from the requests. Our choice."""


class _Count(NamedTuple):
    failed: float
    finished: float

    @property
    def part(self) -> float:
        return self.failed / self.finished if self.finished > 0 else 0.0


def failing(change: ActiveChange, world: World) -> str:
    """How many requests the candidate failed, compared with the old configuration; empty if within limits."""
    new, old = sides(change, world)
    if new is None:
        return ""
    found, reference = _counted(new.engines), None if old is None else _counted(old.engines)
    if found.failed < FEWEST:
        return ""
    limit = MOST_FAILED_ALONE if reference is None else max(MOST_FAILED, TIMES * reference.part)
    if found.part <= limit:
        return ""
    beside = "" if reference is None else f" (old configuration: {_told(reference)})"
    return f"{_told(found)}{beside}"


def _counted(engines: Iterable[EngineWindow]) -> _Count:
    """Requests since each engine started."""
    known = [ended for engine in engines for ended in (engine.earlier, engine.lately) if ended is not None]
    return _Count(failed=sum(one.failed for one in known), finished=sum(one.finished for one in known))


def _told(count: _Count) -> str:
    return f"{count.failed:.0f} of {count.finished:.0f}"
