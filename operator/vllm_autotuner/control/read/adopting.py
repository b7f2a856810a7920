"""Reads the adopted Deployments (spec.targetRef), their pods and autoscalers, once per tick.

They carry no label of the operator, so no watch covers them: two requests per service, one after the other, and three
with `spec.scaling`; of several services at a time. Apart from `fleet_loop`, because a slow answer about one service
must not delay the others.
Must not: write, or keep anything: the next tick reads again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.service import KIND, VLLMService
from vllm_autotuner.budgets import READ_TICK_SECONDS
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.bounded_json import is_cut
from vllm_autotuner.cluster.client import REQUEST_TIMEOUT
from vllm_autotuner.cluster.errors import FORBIDDEN, NO_ANSWER, NotFound, Refused, Unavailable
from vllm_autotuner.cluster.field_managers import autoscaler_of
from vllm_autotuner.cluster.kinds import AUTOSCALER, DEPLOYMENT, POD
from vllm_autotuner.cluster.ownership import controller_of
from vllm_autotuner.control.read.adopted import Adopted, adopted_from
from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.read.views import Body, PodView, ServiceEntry
from vllm_autotuner.workload.adoption import Unadoptable, read_target
from vllm_autotuner.workload.labels import MANAGED_BY, OPERATOR, SERVICE

__all__ = ["Adopting", "claims"]

logger = logging.getLogger(__name__)

READS_AT_ONCE: Final = 16
"""As many as writes, and as there are connections: more would only queue later."""


LONGEST_READ: Final = REQUEST_TIMEOUT
"""Seconds until all that is read of one Deployment counts as unanswered. A selector of a user's may find thousands of
pods, 20 of which are one answer: the verdicts on all others waited for the last of them. Our choice."""


class Adopting:
    """What was read for one tick."""

    def __init__(
        self,
        services: Mapping[Key, ServiceEntry],
        *,
        cluster: Cluster,
        monotonic: Callable[[], float],
        beat: Callable[[], None],
    ) -> None:
        """`beat` is called after each service that was read."""
        self._services = services
        self._monotonic = monotonic
        self._beat = beat
        self._owners = claims(services.values())
        self._cluster = cluster
        self._gate = asyncio.Semaphore(READS_AT_ONCE)
        self._read: dict[Key, Adopted | Unadoptable | Exception] = {}

    async def read_all(self, *, put_off: Mapping[str, float]) -> Mapping[str, float]:
        """Read the Deployments that services name, as far as this tick has time for it. `of` raises what failed here.

        Those with a running change are all read, and first; then those that were `put_off`: by uid, since when. Returns
        those that are now.
        """
        services = [
            entry.service
            for entry in self._services.values()
            if isinstance(entry.service, VLLMService) and entry.service.spec.target_ref is not None
        ]
        began = self._monotonic()
        since = {each.metadata.uid: put_off.get(each.metadata.uid, began) for each in services}
        services.sort(key=lambda each: (not _has_a_change(each), since[each.metadata.uid]))
        until = began + READ_TICK_SECONDS.limit
        await asyncio.gather(*(self._remember(each, until=until) for each in services if not each.metadata.deleting))
        left = {
            each.metadata.uid: since[each.metadata.uid]
            for each in services
            if _key(each) not in self._read and not each.metadata.deleting
        }
        if left:
            READ_TICK_SECONDS.exceeded()
            logger.warning("no time left to read adopted Deployments in this tick", extra={"services": len(left)})
        return left

    def pods(self) -> Iterator[Sequence[PodView]]:
        """The pods of each Deployment that was read and is adopted."""
        yield from (found.pods for found in self._read.values() if isinstance(found, Adopted))

    async def of(self, service: VLLMService) -> Adopted | Unadoptable | None:
        """What was read for a service; the second call reads again. None where the service names no Deployment.

        Raises ClusterError when the read failed.
        """
        if service.spec.target_ref is None:
            return None
        found = self._read.pop(_key(service), None)
        if isinstance(found, Exception):
            raise found
        return found or await self._adopt(service)

    async def _remember(self, service: VLLMService, *, until: float) -> None:
        async with self._gate:
            # One that was begun is ended: were each slower than the limit, none would ever be read.
            if self._monotonic() > until and not _has_a_change(service):
                return
            try:
                self._read[_key(service)] = await self._adopt(service)
            except Exception as error:
                # A poisoned object is reported on itself and never stops the others.
                self._read[_key(service)] = error
            self._beat()

    async def _adopt(self, service: VLLMService) -> Adopted | Unadoptable:
        try:
            async with asyncio.timeout(LONGEST_READ):
                return await adopt(service, owners=self._owners, services=self._services, cluster=self._cluster)
        except TimeoutError as error:
            message = f"the Deployment of {service.key} and its pods were not read within {LONGEST_READ:g} s"
            raise Unavailable(message, reason=NO_ANSWER) from error
        except Refused as error:
            if error.status != FORBIDDEN:
                raise
            return Unadoptable(Reason.FORBIDDEN, str(error))


def _has_a_change(service: VLLMService) -> bool:
    return service.status.active_change is not None


def _key(service: VLLMService) -> Key:
    return Key(service.metadata.namespace, service.metadata.name)


def claims(services: Iterable[ServiceEntry]) -> Mapping[Key, Key]:
    """Return which VLLMService manages each named Deployment: the oldest of those that name it (G34)."""
    found: dict[Key, tuple[tuple[str, str], Key]] = {}
    for entry in services:
        service = entry.service
        # Also of one whose spec cannot be read as a whole: it may have a change in progress.
        if service.spec.target_ref is None or service.metadata.deleting:
            continue
        deployment = Key(entry.namespace, service.spec.target_ref.name)
        age = (entry.created, entry.uid)
        if deployment not in found or age < found[deployment][0]:
            found[deployment] = (age, Key(entry.namespace, entry.name))
    return {deployment: owner for deployment, (_, owner) in found.items()}


async def adopt(
    service: VLLMService, *, owners: Mapping[Key, Key], services: Mapping[Key, ServiceEntry], cluster: Cluster
) -> Adopted | Unadoptable:
    """Read the Deployment that a service names, and its pods. Raises ClusterError when a read fails."""
    reference, metadata = service.spec.target_ref, service.metadata
    if reference is None:
        raise ValueError(f"{service.key} names no Deployment")
    key = Key(metadata.namespace, reference.name)
    older = owners.get(key)
    if older is not None and older.name != metadata.name:
        message = f"Deployment {key.name} is already managed by VLLMService {older.name} (older): delete one of the two"
        return Unadoptable(Reason.CONFLICT, message)
    try:
        found = await cluster.read(DEPLOYMENT, namespace=key.namespace, name=key.name)
    except NotFound:
        found = {}
    if not found or "deletionTimestamp" in found["metadata"]:
        message = f"Deployment {'/'.join(key)} not found: create it or correct spec.targetRef.name"
        return Unadoptable(Reason.TARGET_NOT_FOUND, message)
    if (child_of := _rendered_by(found, services)) is not None:
        message = f"Deployment {key.name} is managed by VLLMService {child_of}: tune that VLLMService instead"
        return Unadoptable(Reason.CONFLICT, message)
    target = read_target(found)
    if isinstance(target, Unadoptable):
        return target
    selector = _selector(found)
    bodies = [
        pod
        async for page in cluster.pages(POD, namespace=key.namespace, selector=selector)
        for pod in page.objects
        if _runs_for(pod, key.name) and not is_cut(pod)
    ]
    scaled = service.spec.scaling is not None
    autoscalers = (*autoscaler_of(found), *(await _autoscalers(key, cluster=cluster) if scaled else ()))
    return adopted_from(service, target=target, bodies=bodies, selector=selector, autoscalers=autoscalers)


def _runs_for(pod: Body, deployment: str) -> bool:
    """Whether a pod comes from a ReplicaSet of this very Deployment: selectors of two Deployments may overlap."""
    controller = controller_of(pod)
    made_from = (pod["metadata"].get("labels") or {}).get("pod-template-hash", "")
    return controller is not None and controller.get("name") == f"{deployment}-{made_from}"


def _rendered_by(deployment: Body, services: Mapping[Key, ServiceEntry]) -> str | None:
    controller, metadata = controller_of(deployment), deployment["metadata"]
    if controller is not None and controller.get("kind") == KIND:
        return str(controller.get("name"))
    labels = metadata.get("labels") or {}
    name = labels.get(SERVICE, "") if labels.get(MANAGED_BY) == OPERATOR else ""
    # One that outlived its VLLMService (deletionPolicy Retain) may be adopted.
    return name if Key(metadata["namespace"], name) in services else None


def _selector(deployment: Body) -> str:
    found = deployment["spec"].get("selector") or {}
    parts = [f"{label}={value}" for label, value in (found.get("matchLabels") or {}).items()]
    for each in found.get("matchExpressions") or []:
        label, values = each["key"], ",".join(each.get("values") or ())
        match each["operator"]:
            case "In":
                parts.append(f"{label} in ({values})")
            case "NotIn":
                parts.append(f"{label} notin ({values})")
            case "Exists":
                parts.append(str(label))
            case _:
                parts.append(f"!{label}")
    return ",".join(parts)


async def _autoscalers(deployment: Key, *, cluster: Cluster) -> Sequence[str]:
    """Autoscalers that name this Deployment; KEDA's ScaledObjects work through such objects, too."""
    found = []
    async for page in cluster.pages(AUTOSCALER, namespace=deployment.namespace):
        for each in page.objects:
            if is_cut(each):
                continue
            scales = each["spec"]["scaleTargetRef"]
            if (scales.get("kind"), scales.get("name")) == ("Deployment", deployment.name):
                found.append(f"HorizontalPodAutoscaler {each['metadata']['name']}")
    return found
