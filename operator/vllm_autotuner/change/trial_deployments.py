"""The canary and baseline Deployments that a change needs, derived from its persisted state. Pure, like `effective`.

Their names contain the change's id, so a new leader finds a Deployment that its predecessor created just before it died
and does not create a second one (T01, T03).
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
"""Replicas from which a canary is the default: with a single replica it would take half of the requests. Design."""
FEWEST_FOR_BASELINE: Final = 3
"""Replicas from which a fresh baseline pod with the old configuration is started as well: it costs a GPU, and removes
the canary's cold cache from the comparison (G20). Design."""

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
"""States in which the canary serves. During promotion it makes up for the pod that restarts."""


class Track(StrEnum):
    """The role of a trial Deployment."""

    CANARY = "canary"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A Deployment of one pod that exists only for a change."""

    name: str
    track: Track
    change_id: str
    knobs: EngineKnobs


def gpus_added(change: ActiveChange) -> int:
    """Most GPUs that a change adds at any time: those of canary and baseline, or of one pod of a rollout (G43)."""
    new, old = change.to.tensor_parallel_size or 1, change.from_.tensor_parallel_size or 1
    return new + (old if change.baseline_ref is not None else 0)


def canary_name(service: str, change_id: str) -> str:
    """The name of the Deployment with the new configuration."""
    return f"{service}-t-{change_id}"


def baseline_name(service: str, change_id: str) -> str:
    """The name of the Deployment with the old configuration."""
    return f"{service}-b-{change_id}"


def trials(status: VLLMServiceStatus) -> tuple[Trial, ...]:
    """The trial Deployments that should exist now. All others are to be deleted (G39)."""
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
