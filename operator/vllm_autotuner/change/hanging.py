"""Detects engines that hang with the new configuration while those with the old one do not.

Separate from the verdict, for which a window without a token is no evidence, and from `failing`: a request that gets no
answer has not failed, and its client waits. Checked in every state.
"""

from vllm_autotuner.api.status import ActiveChange
from vllm_autotuner.change.world import World, sides
from vllm_autotuner.diagnosis.wedged import Wedged
from vllm_autotuner.observation.observation import Observation

__all__ = ["hanging"]


def hanging(change: ActiveChange, world: World) -> str:
    """Which engine with the new configuration hangs; empty if none does, or one with the old configuration as well."""
    new, old = sides(change, world)
    return "" if new is None or (old is not None and _first(old)) else _first(new)


def _first(seen: Observation) -> str:
    found = (Wedged().hang(engine, at=seen.at) for engine in seen.engines)
    return next((hang.told for hang in found if hang is not None), "")
