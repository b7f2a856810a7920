"""The canary and baseline Deployments of a change: their state and metrics, and which of them to delete.

Apart from `workload_state`, because the service's own pods and those of a trial must not be mixed up: a diagnosis made
with the canary's metrics would be about the trial.
Must not: write, or judge a trial's metrics.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from vllm_autotuner.api.status import ActiveChange, TrialRef, VLLMServiceStatus
from vllm_autotuner.change.trial_deployments import Track, trials
from vllm_autotuner.change.world import Variant, Variants
from vllm_autotuner.control.read.crash_causes import CrashCauses
from vllm_autotuner.control.read.pod_state import pods_view
from vllm_autotuner.control.read.views import DeploymentView, PodView
from vllm_autotuner.control.read.workload_state import observed, rollout_of
from vllm_autotuner.observation.snapshot import FleetSnapshot
from vllm_autotuner.workload.labels import STABLE

__all__ = ["is_orphan", "own_pods", "surplus", "variants_of"]

_TRACKS = frozenset(track.value for track in Track)


def own_pods(pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """The pods of the service's own Deployment."""
    return tuple(pod for pod in pods if pod.track == STABLE)


def variants_of(
    change: ActiveChange | None,
    *,
    deployments: Sequence[DeploymentView],
    pods: Sequence[PodView],
    snapshot: FleetSnapshot,
    warm_up: timedelta,
    causes: CrashCauses,
    now: datetime,
) -> Variants:
    """The canary and the baseline of this change as they are now."""

    def variant(ref: TrialRef | None, track: Track) -> Variant | None:
        live = next((one for one in deployments if ref is not None and one.name == ref.name), None)
        if live is None or change is None:
            return None
        mine = [pod for pod in pods if pod.track == track and pod.change == change.id]
        starts = pods_view(mine, warm_up=warm_up, causes=causes, now=now)
        return Variant(
            rollout=rollout_of(live, mine, starts=starts),
            observation=observed(snapshot, mine, now=now, starts=starts),
        )

    if change is None:
        return Variants()
    return Variants(
        canary=variant(change.canary_ref, Track.CANARY),
        baseline=variant(change.baseline_ref, Track.BASELINE),
    )


def surplus(
    status: VLLMServiceStatus, deployments: Iterable[DeploymentView], *, service_uid: str
) -> tuple[DeploymentView, ...]:
    """The trial Deployments of this very service that its written status does not ask for (G39, I12)."""
    wanted = {trial.name for trial in trials(status)}
    return tuple(
        one
        for one in deployments
        if one.track in _TRACKS and one.owner_uid == service_uid and one.name not in wanted and not one.deleting
    )


def is_orphan(deployment: DeploymentView, status: VLLMServiceStatus) -> bool:
    """Whether it belongs to no change in the status."""
    change = status.active_change
    known = {entry.id for entry in status.history} | ({change.id} if change is not None else set())
    return deployment.change not in known
