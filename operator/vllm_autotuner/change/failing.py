"""Whether engines with the new configuration fail requests that those with the old one serve.

Apart from the verdict on latency, which does not see it: a request that failed at once is late for nobody, and where a
router sends requests to whoever has the fewest, an engine that fails them gets the most. Looked at in every state.
A pod of a change is fresh, so what its counters hold is what it did with this very configuration.
Must not: see what engines do not count. A server that refuses requests before its engine has them is not noticed here.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from vllm_autotuner.api.status import ActiveChange
from vllm_autotuner.change.world import World, reaches_the_service
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["MOST_FAILED", "failing"]

FEWEST: Final = 5
"""Failed requests below which nothing is said: one or two may be an accident. Our choice, unmeasured."""
MOST_FAILED: Final = 0.02
"""Part of the requests that may fail beside engines that fail fewer. An engine that is well fails none. Our choice."""
MOST_FAILED_ALONE: Final = 0.2
"""The same where no engine has the old configuration any more: it may have failed some as well. Our choice."""
TIMES: Final = 3.0
"""Times the part that fails with the old configuration: what both fail of lies in the requests. Our choice."""


class _Count(NamedTuple):
    failed: float
    finished: float

    @property
    def part(self) -> float:
        return self.failed / self.finished if self.finished > 0 else 0.0


def failing(change: ActiveChange, world: World) -> str:
    """Say how many requests the candidate fails, against the old configuration; empty when all is well."""
    variants = world.variants
    new, old = variants.canary, variants.baseline
    if reaches_the_service(change):
        rollout = world.rollout
        if not rollout.rolled_out or rollout.config_hash != change.to.config_hash:
            # Its pods are of both configurations: the canary, where there is one, still tells.
            found = None if new is None else _counted(new.observation.engines)
        else:
            found = _counted(world.observation.engines)
        reference = None if old is None else _counted(old.observation.engines)
    else:
        found = None if new is None else _counted(new.observation.engines)
        reference = _counted((old or world).observation.engines)
    if found is None or found.failed < FEWEST:
        return ""
    limit = MOST_FAILED_ALONE if reference is None else max(MOST_FAILED, TIMES * reference.part)
    if found.part <= limit:
        return ""
    beside = "" if reference is None else f"; with the old configuration {_told(reference)}"
    return f"{_told(found)}{beside}"


def _counted(engines: Iterable[EngineWindow]) -> _Count:
    """Since each engine was started."""
    known = [ended for engine in engines for ended in (engine.earlier, engine.lately) if ended is not None]
    return _Count(failed=sum(one.failed for one in known), finished=sum(one.finished for one in known))


def _told(count: _Count) -> str:
    return f"{count.failed:.0f} of {count.finished:.0f}"
