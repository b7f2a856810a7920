"""The objectives (TTFT, TPOT) that a diagnosis uses, with defaults per profile for those that the spec leaves out."""

from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.spec import Objective, Objectives, Profile

__all__ = ["DEFAULTS", "Target", "Targets", "targets_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A quantile (0..1) that must stay at or below `seconds`."""

    quantile: float
    seconds: float
    defaulted: bool = False
    """True if the spec sets none and this is the default of the profile."""

    @property
    def label(self) -> str:
        """The quantile as a label, such as `p95`."""
        return f"p{self.quantile * 100:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The service levels of one service."""

    profile: Profile
    ttft: Target
    tpot: Target


DEFAULTS: Final = {
    # A person waits: 2 s to the first word and 20 words a second read as fluent. Our choice, unmeasured.
    Profile.LATENCY: (2.0, 0.050),
    # Batch jobs: only gross delays count. Our choice, unmeasured.
    Profile.THROUGHPUT: (60.0, 0.200),
    # Spikes are expected to queue for a moment. Our choice, unmeasured.
    Profile.BURSTY: (5.0, 0.050),
}
"""TTFT and TPOT (seconds, p95) by profile, for objectives that the user left out."""


def targets_of(objectives: Objectives) -> Targets:
    """Resolve the objectives of a spec. Pure."""
    ttft, tpot = DEFAULTS[objectives.profile]
    return Targets(
        profile=objectives.profile,
        ttft=_target(objectives.ttft, default=ttft),
        tpot=_target(objectives.tpot, default=tpot),
    )


def _target(objective: Objective | None, *, default: float) -> Target:
    if objective is None:
        return Target(quantile=0.95, seconds=default, defaulted=True)
    return Target(quantile=float(objective.quantile), seconds=objective.target.total_seconds())
