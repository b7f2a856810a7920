"""The inputs of one tick for one service: everything that a decision or a report may use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import Effective, VLLMServiceStatus
from vllm_autotuner.change.verification import Verification
from vllm_autotuner.change.world import NO_VARIANTS, Rollout, Variants
from vllm_autotuner.control.decide.annotation_commands import approved_id, is_paused
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.guardrails.contest import Interference
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS, Limits
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.placement import FreeGpus

__all__ = ["Adoption", "Inputs", "OperatorState", "Refusal", "Workload", "serves", "wanted_replicas"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the API server rejects the rendered workload, in its own words."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What is special about a service with an adopted Deployment (spec.targetRef)."""

    about: str
    """Which engine is tuned, and which of its settings are not visible."""
    locked: Mapping[Knob, str]
    """Knobs that may not be written, with the reason."""
    conflict: Refusal | None = None
    """Which field manager declares a field that the operator should set, with the remedy; None without a conflict."""
    edited: bool = False
    """Another field manager wrote the engine's flags since the operator did."""
    holds_candidate: bool = False
    """The flags that another field manager wrote during a change still have the value under test."""
    floor: int = 0
    """Ready replicas that the Deployment's own rollout strategy guarantees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload of one service as the cluster shows it."""

    rollout: Rollout
    verification: Verification
    hash_of: Callable[[EngineKnobs], str]
    """The hash of the workload rendered from these knobs."""
    hash_version: int
    variants: Variants = NO_VARIANTS
    """Canary and baseline of the change in progress. `rollout` is about the service's own pods only."""
    pods: int = 0
    """Pods of the workload that exist, ready or not."""
    pod_names: tuple[str, ...] = ()
    """Of the service's own pods."""
    selector: str = ""
    adoption: Adoption | None = None
    """None: the workload is rendered by the operator."""
    interference: Interference | None = None
    """Which fields of the Deployment another field manager has overwritten."""
    runs: EngineKnobs | None = None
    """The knobs in the Deployment's arguments, where another field manager has overwritten them."""
    scaled_by: str = ""
    """The autoscaler, or the other field manager, that sets the Deployment's replicas; the operator then does not."""
    refusal: Refusal | None = None
    """Of the last apply, which is retried every tick until its cause is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """The operator's own state and limits in this tick."""

    watching_since: datetime
    epoch: int
    limits: Limits = NO_LIMITS
    """Of the whole cluster."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    """GPUs and models that the admin adds to the built-in tables."""
    trouble: str = ""
    """What is wrong with the operator itself; empty when it is healthy."""
    queue: str = ""
    """The message of a change that waits in the fleet's queue."""
    refresh_due: bool = True
    """Whether this tick is the service's slot to refresh its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of one service in this tick."""

    service: VLLMService
    observation: Observation
    """Of the service's own pods only."""
    workload: Workload
    operator: OperatorState
    history: History
    now: datetime
    free_gpus: FreeGpus | None = None
    """GPUs that are free for this service; None when not looked up, or unknown."""
    unreadable: bool = False
    """The spec cannot be read; `service` has the readable part of it."""

    @property
    def mode(self) -> Mode:
        """The effective mode: that of the spec, limited by the cluster's mode ceiling."""
        return self.operator.limits.of(self.service.spec.tuning.mode)

    @property
    def paused(self) -> bool:
        """Whether the spec or the annotation pauses tuning."""
        return is_paused(self.service)

    @property
    def approved(self) -> str:
        """The id of the approved recommendation; empty when there is none."""
        return approved_id(self.service, mode=self.mode)


def wanted_replicas(service: VLLMService, status: VLLMServiceStatus, *, scaled_by: str = "") -> int | None:
    """The replicas to set: the user's, or the scaled ones within their bounds. None: an autoscaler sets them (G35)."""
    if scaled_by:
        return None
    scaling = service.spec.scaling
    if scaling is None:
        return service.spec.replicas
    known = status.effective.replicas if status.effective is not None else None
    return max(scaling.min_replicas, min(scaling.max_replicas, known or scaling.min_replicas))


def serves(effective: Effective, rollout: Rollout) -> bool:
    """Whether the Deployment runs the effective configuration with all replicas ready."""
    same = rollout.config_hash == effective.config_hash and effective.replicas in (None, rollout.replicas)
    return same and rollout.settled
