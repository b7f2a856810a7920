"""Detects engines that hang with the new configuration while those with the old one do not.

Separate from the verdict, for which a window without a token is no evidence, and from `failing`: a request that gets no
answer has not failed, and its client waits. Checked in every state.
Limit: a rollout that has pods of both configurations in one Deployment does not tell which of them hang.
"""

from vllm_autotuner.api.status import ActiveChange, ChangeTarget
from vllm_autotuner.change.world import World, reaches_the_service, sides
from vllm_autotuner.diagnosis.case import HANGS_AFTER
from vllm_autotuner.diagnosis.wedged import Hang, Wedged
from vllm_autotuner.observation.observation import Observation

__all__ = ["hanging"]


def hanging(change: ActiveChange, world: World) -> str:
    """Which engine with the new configuration hangs; empty if too few do, or the old configuration does not do better.

    What was to make an engine start is not blamed for one that hangs: the way back does not start at all.
    """
    new, old = sides(change, world)
    if new is None or change.target is ChangeTarget.START:
        return ""
    # Both limits of a hang lie apart, and its beginning is seen at the next scrape only: of the new ones the longer one
    # counts, and of the old ones half of it.
    found = [hang for hang in _hangs(new) if hang.seconds >= HANGS_AFTER.limit]
    if not found or len(found) == 1 < len(new.engines):  # one of twenty may hang by itself, with any value
        return ""
    beside = [old] if old is not None else []
    if not reaches_the_service(change) and old is not world.observation:
        beside.append(world.observation)
    engines = sum(len(each.engines) for each in beside)
    stuck = sum(hang.seconds >= HANGS_AFTER.limit / 2 for each in beside for hang in _hangs(each, share=0.5))
    return "" if engines and 2 * stuck >= engines else found[0].told


def _hangs(seen: Observation, *, share: float = 1.0) -> list[Hang]:
    found = (Wedged().hang(engine, at=seen.at, share=share) for engine in seen.engines)
    return [hang for hang in found if hang is not None]
