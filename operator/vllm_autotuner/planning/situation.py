"""The input of planning: one service with its diagnosis, bounds and platform."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob, knob_value
from vllm_autotuner.api.spec import Scaling, Tuning
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.engine.defaults import default_max_num_seqs
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.capacity import Replica
from vllm_autotuner.performance.kv_use import kv_bound
from vllm_autotuner.performance.step_time import NEWEST_STRETCHES
from vllm_autotuner.planning.current_replica import (
    UnknownReplica,
    current_replica,
    highest_mean,
    output_tokens,
    rate_now,
)
from vllm_autotuner.planning.platform import Platform

__all__ = ["RUNS_AWAY", "Situation"]

RUNS_AWAY: Final = "outputs run to their token limit: more GPUs do not help"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One service: its observation, its diagnosis and what may be changed."""

    case: Case
    diagnosis: Diagnosis
    tuning: Tuning = field(default_factory=Tuning)
    """Bounds. A knob without bounds is recommended only."""
    replicas: int = 1
    scaling: Scaling | None = None
    """None: the operator does not change replicas."""
    replicas_since: datetime | None = None
    """When the newest replica became ready; None if not known."""
    too_few: int = 0
    """The most replicas of what runs that were too few for a load like that of now."""
    failed: tuple[tuple[str, str], ...] = ()
    """Knobs and values that were rolled back in this environment and are still in cooldown."""
    left: tuple[tuple[str, str], ...] = ()
    """Knobs and values that a kept change has left lately."""
    infeasible: tuple[EngineKnobs, ...] = ()
    """Configurations that ran out of memory."""
    flags_known: bool = True
    """Whether a flag that is not among the knobs has the engine's default; else it is not known."""
    platform: Platform = field(default_factory=Platform)
    """The platform. Knobs that need an unknown value of it are recommended only."""

    # Found once: the candidates of one decision would each fit the same line, and add up the same windows.
    @cached_property
    def replica(self) -> Replica | UnknownReplica:
        """The average replica of now, or why there is no model of it."""
        return current_replica(self.case, default_slots=self.slots)

    @cached_property
    def planned_rate(self) -> float | None:
        """Requests per second to plan for: the most of the last ten minutes; None if not known.

        More than now, because a change outlasts the moment; no longer back, because a load that has ended asks for
        nothing.
        """
        seen = self.observation
        now, output = rate_now(seen), output_tokens(seen)
        if now is None or not output:
            return None
        return max(now, self.busiest / seen.window / output)

    @cached_property
    def made(self) -> dict[float, float]:
        """Output tokens in each window of the last ten minutes, by its end."""
        return self.observation.tokens_by_window(over=NEWEST_STRETCHES[1])

    @cached_property
    def busiest(self) -> float:
        """Output tokens in a window of the busiest stretch of these."""
        return highest_mean(self.made, window=self.observation.window)

    @cached_property
    def cores(self) -> int:
        """Engine cores of a replica."""
        return self.observation.cores_per_pod

    @cached_property
    def held(self) -> int | None:
        """How many sequences the KV cache of an engine holds, with a margin; None if not known."""
        return kv_bound(self.observation)

    @property
    def observation(self) -> Observation:
        """The observation of the service."""
        return self.case.observation

    @property
    def targets(self) -> Targets:
        """The objectives of the service."""
        return self.case.targets

    @property
    def knobs(self) -> EngineKnobs:
        """The flags in effect; None for a value that is not known."""
        return self.case.knobs

    @property
    def slots(self) -> int | None:
        """max-num-seqs as it is set, else the engine's default; None if neither is known."""
        given, platform = self.knobs.max_num_seqs, self.platform
        if given is not None or platform.gpu is None:
            return given
        return default_max_num_seqs(platform.gpu, step_tokens=platform.step_tokens)

    @property
    def failed_seats(self) -> tuple[int, ...]:
        """The values of max-num-seqs among `failed`; a text that is no number, as users can edit them, is none."""
        values = (knob_value(text) for knob, text in self.failed if knob == Knob.MAX_NUM_SEQS)
        return tuple(value for value in values if isinstance(value, int))

    @property
    def runs_away(self) -> bool:
        """Whether outputs run to their token limit: a user has to fix that, and GPUs would only hide it."""
        return DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in self.diagnosis.contributing)
