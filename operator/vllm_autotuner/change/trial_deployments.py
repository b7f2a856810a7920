"""Which Deployments a change needs beside the service's own, by its written state. Pure, like `effective`.

Their names are made from the change's id, so that a leader that dies between the status write and the creation leaves
nothing that the next one would create a second time (T01, T03).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import ActiveChange, ChangeState, TrialRef, VLLMServiceStatus
from vllm_autotuner.change.world import reaches_the_service

__all__ = [
    "FEWEST_FOR_BASELINE",
    "FEWEST_FOR_CANARY",
    "Track",
    "Trial",
    "baseline_name",
    "canary_name",
    "gpus_added",
    "trials",
]

FEWEST_FOR_CANARY: Final = 2
"""Replicas from which a canary is the default: beside a single one it would take half of the requests. Design."""
FEWEST_FOR_BASELINE: Final = 3
"""Replicas from which a fresh pod with the old configuration is started as well: it costs a device, and takes the
canary's cold cache out of the comparison (G20). Design."""

_TESTING: Final = frozenset(
    {
        ChangeState.PROVISIONING,
        ChangeState.VERIFYING,
        ChangeState.WARMING_UP,
        ChangeState.ANALYZING,
        ChangeState.HELD,
        ChangeState.PROMOTING,
    }
)
"""States in which the canary serves. While the service's own pods follow it, it makes up for the one that restarts."""


class Track(StrEnum):
    """Which of the pods of one service it is."""

    CANARY = "canary"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A Deployment of one pod that exists for a change."""

    name: str
    track: Track
    change_id: str
    knobs: EngineKnobs


def gpus_added(change: ActiveChange) -> int:
    """GPUs of the pods that a change adds at its height: the canary and its baseline, or one of a rollout (G43)."""
    new, old = change.to.tensor_parallel_size or 1, change.from_.tensor_parallel_size or 1
    return new + (old if change.baseline_ref is not None else 0)


def canary_name(service: str, change_id: str) -> str:
    """The Deployment with the new configuration."""
    return f"{service}-t-{change_id}"


def baseline_name(service: str, change_id: str) -> str:
    """The Deployment with the old configuration."""
    return f"{service}-b-{change_id}"


def trials(status: VLLMServiceStatus) -> tuple[Trial, ...]:
    """The Deployments that should exist now beside the service's own. Any other is to be deleted (G39)."""
    change = status.active_change
    if change is None or change.strategy is not StrategyType.CANARY:
        return ()
    found = []
    if change.canary_ref is not None and change.state in _TESTING:
        found.append(_trial(change, change.canary_ref, Track.CANARY, change.to.knobs))
    if change.baseline_ref is not None and (change.state in _TESTING or reaches_the_service(change)):
        found.append(_trial(change, change.baseline_ref, Track.BASELINE, change.from_.knobs))
    return tuple(found)


def _trial(change: ActiveChange, ref: TrialRef, track: Track, knobs: EngineKnobs) -> Trial:
    return Trial(name=ref.name, track=track, change_id=change.id, knobs=knobs)
