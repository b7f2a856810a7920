"""The state of one workload from its Deployment, pods and metrics: observation, rollout, verification of a change.

The only API reads are pod logs, and only when a decision needs them: the start-up line while a change is verified (the
log of a crash is read in `crash_causes`). Must not: write, or decide.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.change.verification import Undecided, Verification, Witness, knobs_in, verify
from vllm_autotuner.change.world import Rollout
from vllm_autotuner.control.read.crash_causes import has_crashed, how_it_ended, lacked_host_memory
from vllm_autotuner.control.read.pod_logs import PodLogs
from vllm_autotuner.control.read.views import DeploymentView, PodView
from vllm_autotuner.engine.flags import EngineFlags, FlagError, parse_effective, parse_flags
from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.engine.startup_log import LACK_OF_MEMORY, REFUSALS, StartupReason
from vllm_autotuner.guardrails.contest import Interference
from vllm_autotuner.observation.observation import Observation, observe
from vllm_autotuner.observation.pod_starts import PodsView
from vllm_autotuner.observation.series import STALE_AFTER_INTERVALS
from vllm_autotuner.observation.snapshot import EngineSeries, FleetSnapshot

__all__ = [
    "knobs_of",
    "observed",
    "rollout_of",
    "verification_of",
]

START_LOG_BYTES: Final = 64 * 1024
"""vLLM prints its arguments within its first lines; plugins and warnings before them stay far below this."""
YOUNG: Final = timedelta(seconds=15)
"""How long a ready pod may be missing from the metrics: discovery and the first scrape take this long."""

logger = logging.getLogger(__name__)


def observed(
    snapshot: FleetSnapshot, pods: Sequence[PodView], *, now: datetime, starts: PodsView | None = None
) -> Observation:
    """What the metrics say about these pods. Pods that are being deleted do not count.

    A pod that has just become ready gets a grace period before its metrics are missed. The grace period does not apply
    to a pod that only failed its readiness probe for a moment: its process has reported before.
    """
    ready = {(pod.namespace, pod.name): pod for pod in pods if pod.ready and not pod.deleting}
    mine = [key for key in snapshot.engines if (key.namespace, key.pod) in ready]
    grace = max(YOUNG, timedelta(seconds=STALE_AFTER_INTERVALS * (snapshot.scrape_interval or 0)))
    expected = {key for key, pod in ready.items() if pod.ready_since is not None and now - pod.ready_since > grace}
    expected |= {
        place for key in mine if _has_reported(ready[place := (key.namespace, key.pod)], snapshot.engines[key])
    }
    return observe(snapshot, mine, expected=len(expected), pods=starts)


def _has_reported(pod: PodView, engine: EngineSeries) -> bool:
    """Whether the pod's current engine process was scraped at least once; an earlier one does not count."""
    running, started = engine.gauges.get(Meaning.RUNNING), pod.container_started_at
    return bool(running and running.times and started and running.times[-1] > started.timestamp())


def knobs_of(deployment: DeploymentView | None) -> EngineKnobs | None:
    """The knobs in the arguments of a Deployment's engine; None when they cannot be parsed."""
    try:
        flags = parse_flags(deployment.args) if deployment is not None else None
    except FlagError:
        return None
    return None if flags is None else knobs_in(flags)


def rollout_of(
    deployment: DeploymentView | None,
    pods: Sequence[PodView],
    *,
    starts: PodsView,
    interference: Interference | None = None,
) -> Rollout:
    """What the cluster says about the Deployment; `starts` says why its newest pods crash, where they do.

    A template that another field manager has overwritten counts as an unknown configuration, whatever its annotation.
    """
    if deployment is None:
        return Rollout(config_hash=None, rolled_out=False, settled=False, ready=0, replicas=0)
    current = deployment.observed_generation >= deployment.generation
    rolled_out = current and deployment.updated_replicas == deployment.current_replicas
    complete = deployment.current_replicas == deployment.replicas == deployment.ready_replicas
    staying = [pod for pod in pods if not pod.deleting]
    latest = [pod for pod in staying if pod.config_hash == deployment.config_hash]
    crashed = {pod.name for pod in latest if has_crashed(pod)}
    causes = [start.failure for start in starts.failing if start.name in crashed and start.failure is not None]
    back = [pod for pod in latest if pod.ready and how_it_ended(pod)]
    older = [pod for pod in staying if pod.config_hash != deployment.config_hash]
    ours = interference is None or not interference.of_pods
    return Rollout(
        config_hash=deployment.config_hash if ours else None,
        rolled_out=rolled_out,
        settled=rolled_out and complete and len(latest) >= deployment.replicas,
        ready=deployment.ready_replicas,
        replicas=deployment.replicas,
        crashed=next((f"{cause.reason.value}: {cause.message}" for cause in causes), ""),
        died=how_it_ended(back[0]) if back else "",
        explained=(causes[0].reason is not StartupReason.UNKNOWN if causes else any(map(lacked_host_memory, back))),
        ended=max((pod.restarts for pod in latest if pod.last_termination is not None), default=0),
        ended_at=_last_end(latest),
        older_ended_at=_last_end(older),
        lacked_memory=bool(causes) and causes[0].reason in LACK_OF_MEMORY,
        refused=bool(causes) and causes[0].reason in REFUSALS,
        unschedulable=next((pod.unschedulable for pod in latest if pod.unschedulable), deployment.not_created),
        newest_since=max((pod.ready_since for pod in latest if pod.ready_since is not None), default=None),
        start_up=_start_up(latest),
        latest=frozenset(pod.name for pod in latest),
        older_ready=sum(pod.ready for pod in older),
    )


def _last_end(pods: Sequence[PodView]) -> datetime | None:
    ends = [pod.last_termination.finished_at for pod in pods if pod.last_termination is not None]
    return max((end for end in ends if end is not None), default=None)


def _start_up(pods: Sequence[PodView]) -> timedelta | None:
    """What the pod took that was created last: of those that have never ended, which serve since their first start."""
    first = [
        (pod.created, pod.ready_since - pod.created)
        for pod in pods
        if not pod.restarts and pod.created is not None and pod.ready_since is not None
    ]
    return max(first)[1] if first else None


async def verification_of(
    service: VLLMService, pods: Sequence[PodView], *, logs: PodLogs, observation: Observation
) -> Verification:
    """Whether the running engines use the value under test; checked only while a change is being verified."""
    change = service.status.active_change
    if change is None or change.state is not ChangeState.VERIFYING:
        return Undecided("nothing to verify")
    if change.knob not in set(Knob):
        return Undecided(f"this version does not support the knob {change.knob}")
    serving = [pod for pod in pods if pod.ready and not pod.deleting and pod.config_hash == change.to.config_hash]
    pools = {engine.key.pod: engine.pool for engine in observation.engines}
    asked = {pod.name: _flags(pod) for pod in serving}
    started: dict[str, str] = {}

    async def read(pod: PodView) -> None:
        if (text := await logs.text(pod, head_bytes=START_LOG_BYTES)) is not None:
            started[pod.name] = text

    await logs.within_budget(read(pod) for pod in serving if asked[pod.name] is not None)
    witnesses = [
        Witness(
            pod=pod.name,
            asked=asked[pod.name],
            started_with=parse_effective(started[pod.name]) if pod.name in started else None,
            pool=pools.get(pod.name),
        )
        for pod in serving
    ]
    return verify(Knob(change.knob), change.to.knobs, witnesses=witnesses)


def _flags(pod: PodView) -> EngineFlags | None:
    try:
        return parse_flags(pod.args)
    except FlagError as error:
        logger.warning("failed to parse engine arguments", extra={"pod": pod.name, "error": str(error)})
        return None
