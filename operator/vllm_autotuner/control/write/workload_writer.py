"""Applies a written status to the workload: the service's own Deployment, and the trial Deployments of a change.

Apart from `fleet_loop`, because the order here is about traffic and not about services: writes that take requests away
from a trial come first, writes that send it requests come last (G28). Every step can be repeated.
Must not: decide, or act on a status that is not written or has changed since.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ChangeState, VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.trial_deployments import Trial, trials
from vllm_autotuner.change.world import reaches_the_service
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.kinds import DEPLOYMENT
from vllm_autotuner.control.read.interference import interference_of, wanted_deployment, without_fields
from vllm_autotuner.control.read.registry import Key, Registry, RegistrySnapshot
from vllm_autotuner.control.read.rendered_hashes import is_of_another_version
from vllm_autotuner.control.read.service_memory import ServiceMemory
from vllm_autotuner.control.read.trial_state import is_orphan, surplus
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.guardrails.contest import left_alone
from vllm_autotuner.workload.labels import CONFIG_HASH
from vllm_autotuner.workload.rendering import render_service, render_trial, rendered_hash
from vllm_autotuner.workload.restoring import restored

__all__ = ["WorkloadWriter"]

logger = logging.getLogger(__name__)

Unchanged = Callable[[], Awaitable[bool]]
"""Reads from the API server whether the VLLMService still has the status that is applied."""


class WorkloadWriter:
    """Writes the children of a service."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        registry: Registry,
        epoch: Callable[[], int],
        count_orphan: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._epoch = epoch
        self._count_orphan = count_orphan

    async def follow(
        self,
        service: VLLMService,
        status: VLLMServiceStatus,
        *,
        fleet: RegistrySnapshot,
        memory: ServiceMemory,
        unchanged: Unchanged,
    ) -> None:
        """Apply the written status to the workload; writes nothing in steady state. Raises ClusterError."""
        cluster, epoch = self._cluster, self._epoch()
        key = Key(service.metadata.namespace, service.metadata.name)
        own = fleet.deployments.get(key)
        if own is None or memory.is_new(service.metadata.uid):
            await cluster.apply(render_service(service), epoch=epoch)
            memory.seen(service.metadata.uid)
        too_many = surplus(status, fleet.deployments_of(key), service_uid=service.metadata.uid)
        missing = [trial for trial in trials(status) if not _runs(trial, service, fleet=fleet)]
        body = wanted_deployment(service, status, own)
        # Fields that another field manager keeps overwriting are left to it (G33), and only those.
        body = without_fields(body, left_alone(status.contest, interference_of(own, body)))
        apply = not _is_as_wanted(own, body, service=service, status=status)
        if not (too_many or missing or apply) or not await unchanged():
            return
        for found in too_many:
            await self._delete(found, service, status)
        if apply:
            knobs, replicas = to_wire(effective_knobs(service.spec, status)), body["spec"].get("replicas")
            logger.info("applying deployment", extra={"service": service.key, "knobs": knobs, "replicas": replicas})
            applied = await cluster.apply(body, epoch=epoch)
            self._registry.deployments.see(applied)
        for trial in missing:
            logger.info("applying trial deployment", extra={"service": service.key, "trial": trial.name})
            applied = await cluster.apply(render_trial(service, trial), epoch=epoch)
            self._registry.deployments.see(applied)

    async def undo(
        self, service: VLLMService, status: VLLMServiceStatus, *, fleet: RegistrySnapshot, unchanged: Unchanged
    ) -> None:
        """Roll back a change while the spec cannot be read: nothing can be rendered, and nothing else is touched.

        Trial Deployments are deleted. A Deployment that runs the value under test gets the old value back.
        """
        key = Key(service.metadata.namespace, service.metadata.name)
        too_many = surplus(status, fleet.deployments_of(key), service_uid=service.metadata.uid)
        own, change = fleet.deployments.get(key), status.active_change
        back = (
            change is not None
            and change.state is ChangeState.ROLLING_BACK
            and reaches_the_service(change)
            and own is not None
            and own.config_hash == change.to.config_hash != change.from_.config_hash
        )
        if not (too_many or back) or not await unchanged():
            return
        for found in too_many:
            await self._delete(found, service, status)
        if back and change is not None:
            cluster, epoch = self._cluster, self._epoch()
            live = await cluster.read(DEPLOYMENT, namespace=key.namespace, name=key.name)
            logger.info("restoring deployment, spec is unreadable", extra={"service": service.key, "knob": change.knob})
            patched = await cluster.patch_child(
                live,
                restored(live, to=change.to, back=change.from_),
                service_name=service.metadata.name,
                service_uid=service.metadata.uid,
                epoch=epoch,
            )
            self._registry.deployments.see(patched)

    async def _delete(self, found: DeploymentView, service: VLLMService, status: VLLMServiceStatus) -> None:
        logger.info("deleting trial deployment", extra={"service": service.key, "trial": found.name})
        await self._cluster.delete(
            DEPLOYMENT,
            namespace=found.namespace,
            name=found.name,
            service_name=service.metadata.name,
            service_uid=service.metadata.uid,
            epoch=self._epoch(),
        )
        if is_orphan(found, status):
            self._count_orphan()
        self._registry.deployments.evict(Key(found.namespace, found.name), uid=found.uid)


def _is_as_wanted(
    own: DeploymentView | None, body: Mapping[str, Any], *, service: VLLMService, status: VLLMServiceStatus
) -> bool:
    replicas = body["spec"].get("replicas")
    if own is None or interference_of(own, body) is not None or (replicas is not None and own.replicas != replicas):
        return False
    if own.config_hash == body["metadata"]["annotations"].get(CONFIG_HASH, own.config_hash):
        return True
    return is_of_another_version(service, own, knobs=effective_knobs(service.spec, status))


def _runs(trial: Trial, service: VLLMService, *, fleet: RegistrySnapshot) -> bool:
    live = fleet.deployments.get(Key(service.metadata.namespace, trial.name))
    return live is not None and live.config_hash == rendered_hash(service, trial.knobs)
