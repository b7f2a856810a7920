"""One service as one tick sees it: everything that a decision or a report may look at."""

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
    """Why the API server does not take the workload as it was rendered, in its own words."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What is special about a service whose Deployment is somebody else's (spec.targetRef)."""

    about: str
    """Which engine is looked after, and what of it cannot be seen."""
    locked: Mapping[Knob, str]
    """Knobs that may not be written, with the reason."""
    conflict: Refusal | None = None
    """Who declares what this service asks us to set, and what to paste where; None when nobody does."""
    edited: bool = False
    """Somebody else wrote the engine's flags since we did."""
    floor: int = 0
    """Ready replicas below which the Deployment does not do what its own rollout strategy promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload of one service as the cluster shows it."""

    rollout: Rollout
    verification: Verification
    hash_of: Callable[[EngineKnobs], str]
    """The hash of the workload rendered from these knobs."""
    hash_version: int
    variants: Variants = NO_VARIANTS
    """Canary and baseline of the change under way. `rollout` is about the service's own pods only."""
    pods: int = 0
    """Pods of the workload that exist, ready or not."""
    pod_names: tuple[str, ...] = ()
    """Of the service's own pods."""
    selector: str = ""
    adoption: Adoption | None = None
    """None: the workload is rendered by the operator."""
    interference: Interference | None = None
    """What somebody else has done to the Deployment since we wrote it."""
    runs: EngineKnobs | None = None
    """What the Deployment really asks the engine for, where that is not ours any more."""
    scaled_by: str = ""
    """The autoscaler that sets the Deployment's replicas; then they are not ours to write."""
    refusal: Refusal | None = None
    """Of the last attempt; it is repeated every tick, so that a repaired cause is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """What the operator is and may do in this tick."""

    watching_since: datetime
    epoch: int
    limits: Limits = NO_LIMITS
    """Of the whole cluster."""
    catalogue: Catalogue = field(default_factory=Catalogue)
    """What the admin adds to the tables of GPUs and models."""
    trouble: str = ""
    """What is wrong with the operator itself; empty when all is well."""
    queue: str = ""
    """Why no change may begin before it is this service's turn."""
    refresh_due: bool = True
    """It is this service's turn to write figures that have moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One service as this tick sees it."""

    service: VLLMService
    observation: Observation
    """Of the service's own pods only."""
    workload: Workload
    operator: OperatorState
    history: History
    now: datetime
    free_gpus: FreeGpus | None = None
    """GPUs that are free for this service; None where nobody looked, or nobody can say."""
    unreadable: bool = False
    """The spec cannot be read; `service` has what can be read of it."""

    @property
    def mode(self) -> Mode:
        """How far the operator may go with this service: what its spec says, under the ceiling of the cluster."""
        return self.operator.limits.of(self.service.spec.tuning.mode)

    @property
    def paused(self) -> bool:
        """Whether a person said stop."""
        return is_paused(self.service)

    @property
    def approved(self) -> str:
        """The recommendation id that a person approved; empty when none is."""
        return approved_id(self.service, mode=self.mode)


def wanted_replicas(service: VLLMService, status: VLLMServiceStatus, *, scaled_by: str = "") -> int | None:
    """The replicas to ask for: the user's number, or the scaled one within its bounds. None: an autoscaler's (G35)."""
    if scaled_by:
        return None
    scaling = service.spec.scaling
    if scaling is None:
        return service.spec.replicas
    known = status.effective.replicas if status.effective is not None else None
    return max(scaling.min_replicas, min(scaling.max_replicas, known or scaling.min_replicas))


def serves(effective: Effective, rollout: Rollout) -> bool:
    """Whether the Deployment runs what it is asked to, complete and ready."""
    same = rollout.config_hash == effective.config_hash and effective.replicas in (None, rollout.replicas)
    return same and rollout.settled
