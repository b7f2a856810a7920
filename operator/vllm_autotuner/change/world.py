"""Input and output types of the state machine: rollout state, observations, endings, steps. Values only.

Separate from the machine, because `control.read` builds these values too.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from vllm_autotuner.api.spec import Strategy, StrategyType
from vllm_autotuner.api.status import ActiveChange, ConfigRef, Outcome
from vllm_autotuner.change.verification import Verification
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation

__all__ = [
    "NO_VARIANTS",
    "Ending",
    "Rollout",
    "Step",
    "Variant",
    "Variants",
    "World",
    "raises_slots",
    "reaches_the_service",
    "sides",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout state of a Deployment, as read from the cluster."""

    config_hash: str | None
    """Hash of the live Deployment's configuration; None without a Deployment."""
    rolled_out: bool
    """Every existing pod has the live configuration."""
    settled: bool
    """Rolled out, and every replica ready."""
    ready: int
    replicas: int
    crashed: str = ""
    """Why new pods crash, from their log; empty if none has crashed."""
    died: str = ""
    """The pod with the live configuration whose engine died and restarted; empty if none did."""
    explained: bool = True
    """The log or the status of the crashed pod names the cause; False: nobody knows why its engine ended."""
    ended: int = 0
    """How often the engine of a pod with the live configuration has ended: of the pod where it did so most often."""
    ended_at: datetime | None = None
    """When one of them last ended."""
    older_ended_at: datetime | None = None
    """When the engine of a pod with another configuration than the live one last ended."""
    lacked_memory: bool = False
    """The crash was an out-of-memory error: configurations that need as much memory would crash too."""
    refused: bool = False
    """The engine refused the value: retrying would not help."""
    unschedulable: str = ""
    """Why new pods are unschedulable, or cannot be created; empty if neither."""
    newest_since: datetime | None = None
    """When the newest ready replica became ready; None without one."""
    start_up: timedelta | None = None
    """Time the most recently created replica took to become ready; None while it is not."""
    latest: frozenset[str] = frozenset()
    """The pods with the live configuration."""
    older_ready: int = 0
    """Ready pods with another configuration than the live one: they serve while the new ones start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A trial Deployment and the metrics of its pod."""

    rollout: Rollout
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The trial Deployments; None if absent."""

    canary: Variant | None = None
    baseline: Variant | None = None


NO_VARIANTS = Variants()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The input of one step."""

    now: datetime
    rollout: Rollout
    """Of the service's own Deployment."""
    observation: Observation
    """Of its pods, without those of a trial."""
    blind: bool
    """Fresh metrics of the service are missing: no progress, no verdict."""
    targets: Targets
    strategy: Strategy
    verification: Verification
    variants: Variants = NO_VARIANTS
    fixed_replicas: bool = False
    """The operator does not set the replicas: only a setting can help."""
    watching_since: datetime | None = None
    """Since when this operator process leads; None: all the time."""
    paused: bool = False
    unreadable: bool = False
    """The spec cannot be read: no verdict; a rollback continues."""
    abort: str = ""
    """Why the change must be rolled back (a user's request or a spec edit); empty if it need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a change ended. Whether the candidate did harm is in the change itself (`harmful`)."""

    outcome: Outcome
    reason: str
    serving: ConfigRef | None = None
    """After a failed rollback: the configuration that the workload keeps."""


@dataclass(frozen=True, slots=True)
class Step:
    """The change after one step; `ending` is set once the change is over."""

    change: ActiveChange
    ending: Ending | None = field(default=None)


def reaches_the_service(change: ActiveChange) -> bool:
    """Whether the service's own pods have or are getting the new configuration."""
    return change.strategy is StrategyType.IN_PLACE or change.promoted


def raises_slots(change: ActiveChange) -> bool:
    """Whether it raises max-num-seqs. What is raised is known (`PRESENT_UNKNOWN`): from a default only fewer come."""
    before, after = change.from_.max_num_seqs, change.to.max_num_seqs
    return before is not None and after is not None and after > before


def sides(change: ActiveChange, world: World) -> tuple[Observation | None, Observation | None]:
    """The engines that surely have the new configuration, and those that have the old one; None where there are none.

    Of a Deployment that is being rolled out, which has both, only the engines tell them apart, and no latency does.
    """
    new, old = world.variants.canary, world.variants.baseline
    reference = None if old is None else old.observation
    if not reaches_the_service(change):
        return None if new is None else new.observation, world.observation if reference is None else reference
    rollout, seen = world.rollout, world.observation
    if rollout.config_hash != change.to.config_hash:
        return None if new is None else new.observation, reference
    if rollout.rolled_out:
        return seen, reference
    latest = [each for each in seen.engines if each.key.pod in rollout.latest]
    older = [each for each in seen.engines if each.key.pod not in rollout.latest]
    if new is not None:
        latest += new.observation.engines
    beside = replace(seen, engines=tuple(older)) if older else None
    return replace(seen, engines=tuple(latest)), beside if reference is None else reference
