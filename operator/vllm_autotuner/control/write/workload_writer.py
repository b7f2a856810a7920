"""Applies a written status to the workload: the service's own Deployment, and the trial Deployments of a change.

Apart from `fleet_loop`, because the order here is about traffic and not about services: writes that take requests away
from a trial come first, writes that send it requests come last (G28). Every step can be repeated, and a step that fails
keeps no other from being taken: a Service that is refused must not be in the way of a rollback.
Must not: decide, or act on a status that is not written or has changed since.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ActiveChange, ChangeState, VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.change.trial_deployments import Trial, trials
from vllm_autotuner.change.world import reaches_the_service
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError, NotFound, Refused
from vllm_autotuner.cluster.kinds import DEPLOYMENT, SERVICE
from vllm_autotuner.control.read.interference import interference_of, wanted_deployment, without_fields
from vllm_autotuner.control.read.registry import Key, Registry, RegistrySnapshot
from vllm_autotuner.control.read.rendered_hashes import is_of_another_version
from vllm_autotuner.control.read.service_memory import ServiceMemory
from vllm_autotuner.control.read.trial_state import is_orphan, surplus
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.guardrails.contest import left_alone
from vllm_autotuner.workload.labels import CONFIG_HASH, METADATA_HASH
from vllm_autotuner.workload.rendering import render_service, render_trial, rendered_hash
from vllm_autotuner.workload.restoring import restored

__all__ = ["WorkloadWriter"]

logger = logging.getLogger(__name__)

Unchanged = Callable[[], Awaitable[bool]]
"""Reads from the API server whether the VLLMService still has the status that is applied."""
Effect = Callable[[], Awaitable[None]]
"""Writes one child object. Raises ClusterError."""
LOOK_AFTER: Final = timedelta(minutes=5)
"""How long a Service is taken to exist. No watch covers it: one that is deleted is created again after this time, in a
fleet of over 600 services later. Our choice: a read per service, and clients notice the deletion before."""


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
        now: datetime,
        idle: bool,
    ) -> None:
        """Apply the written status to the workload; writes nothing in steady state.

        `idle`: this tick may also look for what no watch would tell of. Raises the first ClusterError after every child
        was tried, a refusal before others.
        """
        key, uid = Key(service.metadata.namespace, service.metadata.name), service.metadata.uid
        own = fleet.deployments.get(key)
        deletions = self._deletions(service, status, fleet=fleet)
        missing = [trial for trial in trials(status) if not _runs(trial, service, fleet=fleet)]
        body = wanted_deployment(service, status, own)
        # Fields that another field manager keeps overwriting are left to it (G33), and only those.
        body = without_fields(body, left_alone(status.contest, interference_of(own, body)))
        write = self._write(own, body, service=service, status=status)
        if write is not None and own is not None and _is_relabelled(own, body):
            memory.unseen(uid)  # the Service has these labels, too
        seen_at = memory.seen_at(uid)
        exposed = own is not None and seen_at is not None
        if exposed and idle and not (deletions or write) and seen_at is not None and now - seen_at >= LOOK_AFTER:
            exposed = await self._is_exposed(service)
            memory.seen(uid, at=now)
        if not (deletions or missing or write or not exposed) or not await unchanged():
            return
        effects = [*deletions]
        if write is not None:
            effects.append(write)
        if not exposed:
            effects.append(partial(self._expose, service, memory=memory, now=now))
        failed = await _each(effects)
        if not failed:
            # Requests are sent to a trial only where nothing is wrong with what it is compared with.
            failed = await _each(
                partial(self._apply, render_trial(service, trial), service, trial.knobs) for trial in missing
            )
        if failed:
            raise next((error for error in failed if isinstance(error, Refused)), failed[0])

    async def undo(
        self, service: VLLMService, status: VLLMServiceStatus, *, fleet: RegistrySnapshot, unchanged: Unchanged
    ) -> None:
        """Roll back a change while the spec cannot be read: nothing can be rendered, and nothing else is touched.

        Trial Deployments are deleted. A Deployment that runs the value under test gets the old value back.
        """
        own = fleet.deployments.get(Key(service.metadata.namespace, service.metadata.name))
        deletions, change = self._deletions(service, status, fleet=fleet), status.active_change
        back = (
            change is not None
            and change.state is ChangeState.ROLLING_BACK
            and reaches_the_service(change)
            and own is not None
            and own.config_hash == change.to.config_hash != change.from_.config_hash
        )
        if not (deletions or back) or not await unchanged():
            return
        effects = [*deletions]
        if back and change is not None:
            effects.append(partial(self._restore, service, change))
        if failed := await _each(effects):
            raise failed[0]

    async def tidy(
        self, service: VLLMService, status: VLLMServiceStatus, *, fleet: RegistrySnapshot, unchanged: Unchanged
    ) -> None:
        """Delete the trial Deployments that the written status does not ask for, and touch nothing else.

        For a service that names a Deployment: a change may have been in progress when it still had one of its own.
        What fails is logged, so that the flags of that Deployment are written all the same; the next tick tries again.
        """
        deletions = self._deletions(service, status, fleet=fleet)
        if deletions and await unchanged():
            await _each(deletions)

    def _deletions(self, service: VLLMService, status: VLLMServiceStatus, *, fleet: RegistrySnapshot) -> list[Effect]:
        key = Key(service.metadata.namespace, service.metadata.name)
        too_many = surplus(status, fleet.deployments_of(key), service_uid=service.metadata.uid)
        return [partial(self._delete, found, service, status) for found in too_many]

    def _write(
        self, own: DeploymentView | None, body: dict[str, Any], *, service: VLLMService, status: VLLMServiceStatus
    ) -> Effect | None:
        """What brings the service's own Deployment to `body`; None where it is as it should be."""
        knobs, replicas = effective_knobs(service.spec, status), body["spec"].get("replicas")
        if own is not None and interference_of(own, body) is None:
            same = replicas is None or own.replicas == replicas
            if is_of_another_version(service, own, knobs=knobs):
                # To render it anew would roll every pod for a number of replicas (G49).
                return None if same else partial(self._scale, own, replicas, service)
            rendered = own.config_hash == body["metadata"]["annotations"].get(CONFIG_HASH, own.config_hash)
            if same and rendered and not _is_relabelled(own, body):
                return None
        return partial(self._apply, body, service, knobs)

    async def _apply(self, body: dict[str, Any], service: VLLMService, knobs: EngineKnobs) -> None:
        told = {
            "deployment": body["metadata"]["name"],
            "knobs": to_wire(knobs),
            "replicas": body["spec"].get("replicas"),
        }
        logger.info("applying deployment", extra={"service": service.key, **told})
        self._registry.deployments.see(await self._cluster.apply(body, epoch=self._epoch()))

    async def _scale(self, own: DeploymentView, replicas: int, service: VLLMService) -> None:
        logger.info("scaling deployment of another version", extra={"service": service.key, "replicas": replicas})
        await self._cluster.scale(own.namespace, own.name, replicas, resource_version=own.resource_version)

    async def _expose(self, service: VLLMService, *, memory: ServiceMemory, now: datetime) -> None:
        await self._cluster.apply(render_service(service), epoch=self._epoch())
        memory.seen(service.metadata.uid, at=now)

    async def _is_exposed(self, service: VLLMService) -> bool:
        """Whether its Service exists; also where that cannot be found out now."""
        try:
            await self._cluster.read(SERVICE, namespace=service.metadata.namespace, name=service.metadata.name)
        except NotFound:
            logger.warning("service was deleted, it is created again", extra={"service": service.key})
            return False
        except ClusterError as error:
            logger.info("failed to look for the service", extra={"service": service.key, "error": str(error)})
        return True

    async def _restore(self, service: VLLMService, change: ActiveChange) -> None:
        """Write the old value over the live Deployment."""
        namespace, name = service.metadata.namespace, service.metadata.name
        live = await self._cluster.read(DEPLOYMENT, namespace=namespace, name=name)
        logger.info("restoring deployment, spec is unreadable", extra={"service": service.key, "knob": change.knob})
        patched = await self._cluster.patch_child(
            live,
            restored(live, to=change.to, back=change.from_),
            service_name=name,
            service_uid=service.metadata.uid,
            epoch=self._epoch(),
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


def _is_relabelled(own: DeploymentView, body: Mapping[str, Any]) -> bool:
    """Whether the user's labels and annotations of Deployment and Service are others than those that were applied."""
    asked: str | None = body["metadata"]["annotations"].get(METADATA_HASH)
    return own.metadata_hash != asked


async def _each(effects: Iterable[Effect]) -> list[ClusterError]:
    """Try every effect in turn; return what went wrong."""
    failed = []
    for effect in effects:
        try:
            await effect()
        except ClusterError as error:
            logger.warning("failed to write child object", extra={"error": str(error)})
            failed.append(error)
    return failed


def _runs(trial: Trial, service: VLLMService, *, fleet: RegistrySnapshot) -> bool:
    live = fleet.deployments.get(Key(service.metadata.namespace, trial.name))
    return live is not None and live.config_hash == rendered_hash(service, trial.knobs)
