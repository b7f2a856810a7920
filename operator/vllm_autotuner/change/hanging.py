"""Detects engines that hang with the new configuration while those with the old one do not.

Separate from the verdict, for which a window without a token is no evidence, and from `failing`: a request that gets no
answer has not failed, and its client waits. Checked in every state.
"""

from dataclasses import replace

from vllm_autotuner.api.status import ActiveChange, ChangeTarget
from vllm_autotuner.change.world import World, reaches_the_service, sides
from vllm_autotuner.diagnosis.case import HANGS_AFTER
from vllm_autotuner.diagnosis.evidence import Threshold
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
    # The limits of Wedged lie apart, and what stops both sides is seen at the next scrape of each: here one limit
    # counts, and for the old ones half of it.
    found = _hangs(new, limit=HANGS_AFTER)
    if not found:
        return ""
    if len({hang.pod for hang in found}) == 1 < len(new.reporting):  # one of twenty may hang by itself, with any value
        return ""
    beside = [old] if old is not None else []
    if not reaches_the_service(change) and old is not world.observation:
        beside.append(world.observation)
    engines = sum(len(each.engines) for each in beside)
    half = replace(HANGS_AFTER, limit=HANGS_AFTER.limit / 2)
    stuck = sum(len(_hangs(each, limit=half)) for each in beside)
    return "" if engines and 2 * stuck >= engines else found[0].told


def _hangs(seen: Observation, *, limit: Threshold) -> list[Hang]:
    rule = Wedged(stalled=limit, stalled_queue=limit)
    found = (rule.hang(engine, at=seen.at) for engine in seen.engines)
    return [hang for hang in found if hang is not None]
