"""Builds the `Inputs` of one service from the registry and the metrics of a tick.

The only API reads are pod logs, and only when a decision needs them: the start-up line while a change is verified.
Must not: write, or decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.decide.inputs import Inputs, OperatorState, Workload
from vllm_autotuner.control.read.adopted import Adopted
from vllm_autotuner.control.read.crash_causes import CrashCauses
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.control.read.interference import interference_of, wanted_deployment
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.read.pod_logs import PodLogs
from vllm_autotuner.control.read.pod_state import pods_view
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.rendered_hashes import hashes_of
from vllm_autotuner.control.read.service_memory import ServiceMemory
from vllm_autotuner.control.read.trial_state import own_pods, variants_of
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.control.read.workload_state import knobs_of, observed, rollout_of, verification_of
from vllm_autotuner.guardrails.contest import gave_up_replicas
from vllm_autotuner.observation.snapshot import FleetSnapshot
from vllm_autotuner.workload.hashing import RENDERING_VERSION
from vllm_autotuner.workload.rendering import pod_selector

__all__ = ["InputsReader", "Look"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one tick has read of the whole fleet."""

    fleet: RegistrySnapshot
    snapshots: Mapping[str, FleetSnapshot]
    """Metrics by the name of their source."""


class InputsReader:
    """Builds the inputs of a decision."""

    def __init__(
        self,
        *,
        logs: PodLogs,
        causes: CrashCauses,
        sources: Sources,
        free_gpus: FreeGpuLookup,
        memory: ServiceMemory,
    ) -> None:
        self._logs = logs
        self._causes = causes
        self._sources = sources
        self._free_gpus = free_gpus
        self._memory = memory

    async def read(
        self,
        service: VLLMService,
        *,
        look: Look,
        adopted: Adopted | None,
        operator: OperatorState,
        now: datetime,
        unreadable: bool = False,
    ) -> Inputs:
        """Read one service. `adopted`: the Deployment that it names, whose owner's values stand in `service`.

        `unreadable`: the spec cannot be read, so nothing can be rendered to compare with. Raises ClusterError.
        """
        key = Key(service.metadata.namespace, service.metadata.name)
        everything, deployment = look.fleet.pods_of(key), look.fleet.deployments.get(key)
        pods, interference = own_pods(everything), None
        if adopted is not None:
            everything = pods = adopted.pods
            deployment = adopted.deployment
        elif not unreadable:
            interference = interference_of(deployment, wanted_deployment(service, service.status, deployment))
        warm_up = service.spec.tuning.strategy.warm_up
        starts = pods_view(pods, warm_up=warm_up, causes=self._causes, now=now)
        snapshot = self._sources.of(service, look.snapshots)
        model = service.spec.model
        experts = None if model is None else operator.catalogue.shape(model.name).experts
        observation = observed(snapshot, pods, now=now, starts=starts).of_mixture(experts)
        variants = variants_of(
            service.status.active_change,
            deployments=look.fleet.deployments_of(key),
            pods=everything,
            snapshot=snapshot,
            warm_up=warm_up,
            causes=self._causes,
            now=now,
        )
        workload = Workload(
            rollout=rollout_of(deployment, pods, starts=starts, interference=interference),
            variants=variants,
            verification=await verification_of(
                service,
                everything,
                logs=self._logs,
                observation=variants.canary.observation if variants.canary is not None else observation,
            ),
            hash_of=hashes_of(service, deployment) if adopted is None else adopted.hash_of,
            hash_version=RENDERING_VERSION,
            pods=deployment.current_replicas if deployment is not None else 0,
            pod_names=tuple(pod.name for pod in pods),
            selector=pod_selector(service.metadata.name) if adopted is None else adopted.selector,
            adoption=None if adopted is None else adopted.adoption,
            interference=interference,
            runs=knobs_of(deployment) if interference is not None else None,
            scaled_by=_scaled_by(service, deployment) if adopted is None else "",
            refusal=self._memory.refusal(service),
        )
        return Inputs(
            service=service,
            observation=observation,
            workload=workload,
            operator=operator,
            history=self._memory.of(service),
            now=now,
            free_gpus=self._free_gpus.of(service, workload.pod_names, now=now),
            unreadable=unreadable,
        )


def _scaled_by(service: VLLMService, deployment: DeploymentView | None) -> str:
    """The autoscaler or other field manager that sets the replicas; empty where the operator does."""
    contest = service.status.contest
    if contest is not None and gave_up_replicas(contest):
        return contest.manager
    return deployment.scaled_by if deployment is not None else ""
