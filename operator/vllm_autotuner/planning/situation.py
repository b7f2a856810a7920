"""Everything a plan is made from, gathered once."""

from dataclasses import dataclass, field
from datetime import datetime

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Scaling, Tuning
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.platform import Platform

__all__ = ["Situation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One service: what is seen, what it is called, what may move."""

    case: Case
    diagnosis: Diagnosis
    tuning: Tuning = field(default_factory=Tuning)
    """Bounds. A knob without bounds is recommended only."""
    replicas: int = 1
    scaling: Scaling | None = None
    """None: replicas are not ours to change."""
    replicas_since: datetime | None = None
    """When the newest of the replicas became ready; None where nobody told."""
    failed_seats: tuple[int, ...] = ()
    """Values of max-num-seqs that were rolled back in this environment and are not to be tried again yet."""
    failed: tuple[tuple[str, str], ...] = ()
    """Knobs and values of which the same is true, those of max-num-seqs included."""
    infeasible: tuple[EngineKnobs, ...] = ()
    """Configurations that found too little memory."""
    platform: Platform = field(default_factory=Platform)
    """What it runs on. What is not known there makes the knobs that need it recommend-only."""

    @property
    def observation(self) -> Observation:
        """What is seen."""
        return self.case.observation

    @property
    def targets(self) -> Targets:
        """The service levels that count."""
        return self.case.targets

    @property
    def knobs(self) -> EngineKnobs:
        """The flags in effect; None where nobody told."""
        return self.case.knobs
