"""Whether more seats are worth their trial where replicas may be added: a queue has two ways out, and one is slower.

Apart from `seats`, which finds a value. In place a trial costs a rollout, another one where it is taken back, and
minutes in which requests wait; a replica that is needed all the same ends the wait, and goes without a restart.
Must not: refuse seats that save a replica, or where replicas are not ours to add.
"""

import math

from vllm_autotuner.diagnosis.case import step_time, tpot_reading
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.performance.step_time import StepTime
from vllm_autotuner.planning.capped_value import HEADROOM
from vllm_autotuner.planning.demand import demand_of
from vllm_autotuner.planning.engines_in_general import seconds_per_sequence
from vllm_autotuner.planning.situation import Situation

__all__ = ["saves_no_replica"]


def saves_no_replica(situation: Situation, *, seats: int, value: int) -> str:
    """Say how `value` seats leave as many replicas needed as `seats` do; empty where they save one, or nobody may add.

    Needed are as many as hold what is there at once. Where not even the most replicas do, every seat counts.
    Worked: 114 requests are there at once on 80 seats, and tokens have time for 92: two replicas are needed with
    either. With 22 seats for 37 requests and time for 44 one replica is enough, so the seats come first.
    """
    scaling, there = situation.scaling, demand_of(situation).in_system
    useful = min(value, _seats_in_time(situation, seats=seats))
    needed, then = math.ceil(there / seats), math.ceil(there / useful)
    if scaling is None or not situation.replicas < needed <= scaling.max_replicas or then < needed:
        return ""
    free_gpus = situation.platform.free_gpus
    if free_gpus is not None and free_gpus.pods(free_gpus.devices) < needed - situation.replicas:
        return ""  # nodes may come for pods that wait, or not: seats are here
    return (
        f"{there:.0f} requests are there at once, and tokens have time for {useful:.0f} seats: that takes {needed} "
        f"replicas, as {seats} seats do"
    )


def _seats_in_time(situation: Situation, *, seats: int) -> float:
    """Return how many seats tokens have time for by engines in general; infinite where a model tells, or nothing does.

    All seats are taken, so that the TPOT that is measured is theirs.
    """
    each, reading = seconds_per_sequence(situation), tpot_reading(situation.case)
    modelled = isinstance(step_time(situation.observation), StepTime)
    if modelled or not each or not isinstance(reading, Measured):
        return math.inf
    spare = situation.targets.tpot.seconds * (1 - HEADROOM) - reading.value
    return seats + max(0, math.floor(spare / each))
