"""What one step of a change may look at, and what it may answer. Values only.

Apart from the machine, because looking (`control`) and stepping both speak in them.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from vllm_autotuner.api.spec import Strategy, StrategyType
from vllm_autotuner.api.status import ActiveChange, ConfigRef, Outcome
from vllm_autotuner.change.verification import Verification
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation

__all__ = ["NO_VARIANTS", "Ending", "Rollout", "Step", "Variant", "Variants", "World", "reaches_the_service"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What the cluster says about a Deployment."""

    config_hash: str | None
    """Of the live Deployment; None when there is none."""
    rolled_out: bool
    """Every pod that exists is of the live configuration; none of an older one is left."""
    settled: bool
    """Rolled out, and every replica ready."""
    ready: int
    replicas: int
    crashed: str = ""
    """Why new pods do not start, by their own log; empty while none has failed."""
    died: str = ""
    """Which pod of the live configuration serves again after its engine had ended; empty when none does."""
    lacked_memory: bool = False
    """They crashed for lack of memory: so will everything that needs as much."""
    refused: bool = False
    """They crashed for a reason that no time removes: the engine does not take the value here."""
    unschedulable: str = ""
    """Why new pods find no node; empty when they do."""
    newest_since: datetime | None = None
    """When the newest of the ready replicas became ready; None when there is none."""
    start_up: timedelta | None = None
    """How long the replica that was created last took to become ready; None while none is."""
    older_ready: int = 0
    """Ready pods of another configuration than the live one: they serve while the new ones start, or do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the Deployments that exist for a trial, and what the metrics say about its pod."""

    rollout: Rollout
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The Deployments of a trial; None where there is none."""

    canary: Variant | None = None
    baseline: Variant | None = None


NO_VARIANTS = Variants()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything a step may look at."""

    now: datetime
    rollout: Rollout
    """Of the service's own Deployment."""
    observation: Observation
    """Of its pods; those of a trial are not among them."""
    blind: bool
    """Fresh metrics of the service are missing: progress freezes, nothing is concluded."""
    targets: Targets
    strategy: Strategy
    verification: Verification
    variants: Variants = NO_VARIANTS
    paused: bool = False
    unreadable: bool = False
    """The spec cannot be read: nobody knows what the user wants, nothing is concluded, and undoing goes on."""
    abort: str = ""
    """Why a person or the spec wants the change undone; empty when nobody does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a change ended. Whether the candidate was to blame stands in the change itself (`harmful`)."""

    outcome: Outcome
    reason: str
    serving: ConfigRef | None = None
    """After a failed rollback: what the workload goes on with."""


@dataclass(frozen=True, slots=True)
class Step:
    """The change after one step; `ending` set when it is over."""

    change: ActiveChange
    ending: Ending | None = field(default=None)


def reaches_the_service(change: ActiveChange) -> bool:
    """Whether the service's own pods have been given the new configuration, or are being given it."""
    return change.strategy is StrategyType.IN_PLACE or change.promoted
