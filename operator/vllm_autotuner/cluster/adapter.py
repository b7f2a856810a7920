"""The operator's Kubernetes API calls: reads, preconditioned status writes, owned applies, Events, logs, lists.

Every write waits for the throttle and then checks again whether this process may still write: leadership can be lost
while waiting. Objects go in and come out as plain dicts; failures come out as `ClusterError`.
A request that was refused for want of time (429) is made twice more: a rollback is four of them, and where every third
is refused it took minutes. Must not: decide, remember anything about an object, or repeat what may have been executed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

from vllm_autotuner.cluster.client import JSON, MERGE_PATCH, SERVER_SIDE_APPLY, Connection
from vllm_autotuner.cluster.errors import (
    NOT_LEADER,
    READ_ONLY,
    TOO_MANY_REQUESTS,
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
)
from vllm_autotuner.cluster.events import Event, event_body
from vllm_autotuner.cluster.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, POD, VLLM_SERVICE, Kind, kind_of
from vllm_autotuner.cluster.ownership import controller_of, objection
from vllm_autotuner.cluster.throttle import Throttle
from vllm_autotuner.workload.labels import LEASE_EPOCH, OPERATOR, SERVICE

PAGE_SIZE: Final = 20
"""Objects per list request: 0.4 MB of usual ones, and no more than 30 MB where each is as large as etcd allows. Of
those 5 MB are read (`OBJECT_BYTES`), which take up to 100 MB: the watches of three kinds may list at the same time."""
LOG_READ_LIMIT: Final = 8 * 1024 * 1024
"""Bytes read of one log at most while looking for its end."""
LOG_TAIL_LINES: Final = 20_000
TRIES: Final = 3
"""How often a request is made that is answered with 429. Our choice: where a third is refused, four in a row succeed
every fifth time with one try, and six of seven times with three."""
LONGEST_PAUSE: Final = 2.0
"""Seconds that are waited for before another try, as the API server asks; where it asks for more the next tick is it.
Its priority and fairness asks for one."""
CONFLICT_PAUSES: Final = (0.01, 0.05, 0.25)
"""Seconds before a conflict is met with another look: client-go's DefaultBackoff, for what controllers write too."""
_Result = TypeVar("_Result")
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Object = dict[str, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a list. All pages of one list show the state at one `resource_version`."""

    objects: tuple[Object, ...]
    resource_version: str


class Cluster:
    """The Kubernetes API for this operator.

    `instance` names this process in Events. `may_write` is called right before each write, `observe` after it with the
    verb, the kind, and `Done` or the name of the error's class.
    """

    writes: ClassVar[bool] = True
    """Whether what is decided reaches the cluster; False in `read_only.ReadOnlyCluster`."""

    def __init__(
        self,
        connection: Connection,
        *,
        throttle: Throttle,
        instance: str,
        may_write: Callable[[], bool] = lambda: True,
        observe: Callable[[str, str, str], None] = lambda verb, kind, outcome: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._connection = connection
        self._throttle = throttle
        self._instance = instance
        self._may_write = may_write
        self._observe = observe

    async def serves_crd(self) -> bool:
        """Return whether the CRD is installed. Raises ClusterError when the request fails."""
        try:
            found = await self._request("GET", f"/apis/{VLLM_SERVICE.api_version}")
        except NotFound:
            return False
        return any(resource.get("name") == VLLM_SERVICE.plural for resource in found.get("resources") or [])

    async def read_service(self, namespace: str, name: str) -> Object:
        """Return the VLLMService as the API server has it now, not as a watch last saw it."""
        return await self.read(VLLM_SERVICE, namespace=namespace, name=name)

    async def read(self, kind: Kind, *, namespace: str, name: str) -> Object:
        """Return one object as it is now. Raises NotFound."""
        return await self._request("GET", kind.path(namespace, name))

    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Page]:
        """Yield the objects of a kind page by page; `namespace` None is all. Raises Conflict when the list expired.

        `selector` is about labels, `fields` about fields. `metadata_only` leaves out spec and status: to sweep what a
        watch has lost.
        """
        query = {"limit": str(PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
        query |= {"fieldSelector": fields} if fields else {}
        accept = _METADATA_ONLY if metadata_only else JSON
        while True:
            found = await self._request("GET", kind.path(namespace), query=query, accept=accept, timeout=30)
            metadata = found.get("metadata") or {}
            # Items of a list carry no kind of their own; readers of single objects expect it.
            named = {"apiVersion": kind.api_version, "kind": kind.kind}
            objects = tuple(item | named for item in found.get("items") or [])
            yield Page(objects=objects, resource_version=str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            query = query | {"continue": metadata["continue"]}

    async def write_status(self, namespace: str, name: str, status: Object, *, resource_version: str) -> Object:
        """Replace the whole status, if the object is still the one that was read. Returns the new object.

        A field absent from `status` is absent afterwards. Raises Conflict when anyone wrote the object since.
        """
        body = {
            "apiVersion": VLLM_SERVICE.api_version,
            "kind": VLLM_SERVICE.kind,
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": resource_version},
            "status": status,
        }
        async with self._admitted("status", VLLM_SERVICE):
            return await self._request(
                "PUT", VLLM_SERVICE.path(namespace, name, subresource="status"), body=body, query=_as_operator()
            )

    async def apply(self, body: Object, *, epoch: int) -> Object:
        """Create or update a child by server-side apply and return it; `epoch` is stamped on it, not on its template.

        `body` names its VLLMService by label, and by controller reference unless it shall outlive it. Raises Refused
        when the live object belongs to somebody else, Conflict when it is going away or a later leader wrote it.
        """
        kind = kind_of(body)
        return await self._until_it_stands_still("apply", kind, lambda: self._applied(body, kind=kind, epoch=epoch))

    async def _applied(self, body: Object, *, kind: Kind, epoch: int) -> Object:
        metadata: Object = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        controller = controller_of(body)
        service_name: str = metadata["labels"][SERVICE]
        live = await self._live(kind, namespace=namespace, name=name)
        stamped = metadata | {"annotations": {**metadata.get("annotations", {}), LEASE_EPOCH: str(epoch)}}
        if live is not None:
            service_uid = controller["uid"] if controller is not None else None
            found = objection(live=live, service_name=service_name, service_uid=service_uid, epoch=epoch)
            if found is not None:
                raise found
            # Neither one that was deleted and re-created since the read nor one that a later leader has written since
            # is overwritten by force: this process may have slept between the two requests.
            stamped |= {field: live["metadata"][field] for field in ("uid", "resourceVersion")}
        return await self._request(
            "PATCH",
            kind.path(namespace, name),
            query=_as_operator() | {"force": "true" if live is not None else "false"},
            body=body | {"metadata": stamped},
            content_type=SERVER_SIDE_APPLY,
        )

    async def apply_adopted(self, body: Object, *, epoch: int) -> Object:
        """Write the given fields of an adopted Deployment by server-side apply; return it.

        `body` names uid and resourceVersion: raises Conflict when the Deployment was written since, and never creates
        one. Force takes the fields over from their former managers, which the caller must have checked.
        """
        metadata: Object = body["metadata"]
        stamped = metadata | {"annotations": {**metadata.get("annotations", {}), LEASE_EPOCH: str(epoch)}}
        async with self._admitted("apply", DEPLOYMENT):
            return await self._request(
                "PATCH",
                DEPLOYMENT.path(metadata["namespace"], metadata["name"]),
                query=_as_operator() | {"force": "true"},
                body=body | {"metadata": stamped},
                content_type=SERVER_SIDE_APPLY,
            )

    async def patch_child(
        self, live: Object, patch: Object, *, service_name: str, service_uid: str, epoch: int
    ) -> Object:
        """Write some fields of a child, where its whole body is not known; return it. Never creates one.

        Raises Refused when `live` has another owner, Conflict when it was written since it was read.
        """
        found = objection(live=live, service_name=service_name, service_uid=service_uid, epoch=epoch)
        if found is not None:
            raise found
        kind, metadata = kind_of(live), patch["metadata"]
        stamped = {
            "resourceVersion": live["metadata"]["resourceVersion"],
            "annotations": {**metadata["annotations"], LEASE_EPOCH: str(epoch)},
        }
        async with self._admitted("patch", kind):
            return await self._request(
                "PATCH",
                kind.path(live["metadata"]["namespace"], live["metadata"]["name"]),
                query=_as_operator(),
                body=patch | {"metadata": metadata | stamped},
                content_type=MERGE_PATCH,
            )

    async def scale(self, namespace: str, name: str, replicas: int, *, resource_version: str) -> None:
        """Set the replicas of a Deployment through its scale subresource, as autoscalers do.

        Raises Conflict when anyone wrote the Deployment since.
        """
        body = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        async with self._admitted("scale", DEPLOYMENT):
            await self._request(
                "PATCH",
                DEPLOYMENT.path(namespace, name, subresource="scale"),
                query=_as_operator(),
                body=body,
                content_type=MERGE_PATCH,
            )

    async def delete(
        self, kind: Kind, *, namespace: str, name: str, service_name: str, service_uid: str, epoch: int
    ) -> None:
        """Delete a child of this very VLLMService; one that is gone or going already is what was wanted.

        Raises Refused when the live object has another owner, Conflict when a later leader wrote it, or anybody each
        time between look and delete.
        """

        async def deleted() -> None:
            live = await self._live(kind, namespace=namespace, name=name)
            if live is None or live["metadata"].get("deletionTimestamp"):
                return
            found = objection(live=live, service_name=service_name, service_uid=service_uid, epoch=epoch)
            if found is not None:
                raise found
            body = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                # Of what was read: a leader that sleeps between look and delete deletes nothing when it wakes.
                "preconditions": {field: live["metadata"][field] for field in ("uid", "resourceVersion")},
            }
            with suppress(NotFound):
                await self._request("DELETE", kind.path(namespace, name), body=body)

        await self._until_it_stands_still("delete", kind, deleted)

    async def annotate_service(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> Object:
        """Set annotations of a VLLMService; None removes one. User commands are given this way."""
        async with self._admitted("annotate", VLLM_SERVICE):
            return await self._request(
                "PATCH",
                VLLM_SERVICE.path(namespace, name),
                query={"fieldManager": f"{OPERATOR}-cli"},
                body={"metadata": {"annotations": dict(annotations)}},
                content_type=MERGE_PATCH,
            )

    async def set_data(self, namespace: str, name: str, data: Mapping[str, str]) -> Object:
        """Set keys of a ConfigMap; its other keys stay. Raises NotFound where there is none."""
        async with self._admitted("patch", CONFIG_MAP):
            return await self._request(
                "PATCH",
                CONFIG_MAP.path(namespace, name),
                query={"fieldManager": f"{OPERATOR}-cli"},
                body={"data": dict(data)},
                content_type=MERGE_PATCH,
            )

    async def post_event(self, about: Object, event: Event, *, now: datetime) -> None:
        """Post an Event about an object once: a repeat of the same transition finds it there and is done."""
        body = event_body(event, about=about, instance=self._instance, now=now)
        async with self._admitted("event", EVENT):
            try:
                await self._request("POST", EVENT.path(body["metadata"]["namespace"]), body=body)
            except Conflict as error:
                if error.reason != "AlreadyExists":
                    raise
        where = f"{about['metadata']['namespace']}/{about['metadata']['name']}"
        logger.info("posted event", extra={"service": where, "reason": event.reason, "note": event.note})

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        head_bytes: int | None = None,
        tail_bytes: int | None = None,
    ) -> str:
        """Return the first `head_bytes` or the last `tail_bytes` of a container's log (exactly one is given).

        `previous` is the instance before the last restart. Raises NotFound when there is no such instance or log yet.
        """
        if (head_bytes is None) == (tail_bytes is None):
            raise ValueError("name either head_bytes or tail_bytes")
        query = {"container": container, "previous": "true" if previous else "false"}
        if head_bytes is not None:
            query["limitBytes"] = str(head_bytes)
        else:
            # The API can cut bytes only at the front, so a tail in bytes is a long tail in lines, cut here.
            query["tailLines"] = str(LOG_TAIL_LINES)
        try:
            raw = await self._connection.tail(
                POD.path(namespace, pod, subresource="log"),
                query=query,
                keep_bytes=head_bytes or tail_bytes or 0,
                read_bytes=LOG_READ_LIMIT,
            )
        except Refused as error:
            # 400 is how the API says "no previous instance" and "not started yet".
            if error.status == 400:
                raise NotFound(str(error), reason=error.reason, status=400) from error
            raise
        return raw.decode(errors="replace")

    async def _request(self, method: str, path: str, **how: Any) -> Object:
        """Send a request, again where it is refused for want of time. Raises ClusterError."""
        for _ in range(TRIES - 1):
            try:
                return await self._connection.request(method, path, **how)
            except Unavailable as error:
                pause = error.retry_after or 1.0
                if error.status != TOO_MANY_REQUESTS or pause > LONGEST_PAUSE:
                    raise
            writes = method != "GET"
            if writes:
                self._throttle.pause(pause)
            await self._sleep(pause)
            if writes:
                self._require_leadership(f"{method} {path}")
        return await self._connection.request(method, path, **how)

    async def _until_it_stands_still(self, verb: str, kind: Kind, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what a look and the write after it give; again after each pause, where it was written meanwhile.

        Mostly by its controller, whose status follows a write several times within a second.
        """
        for pause in (*CONFLICT_PAUSES, None):
            try:
                async with self._admitted(verb, kind):
                    return await attempt()
            except Conflict as conflict:
                # Without an HTTP status it was the look that objected.
                if pause is None or conflict.status is None:
                    raise
            await self._sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _live(self, kind: Kind, *, namespace: str, name: str) -> Object | None:
        try:
            return await self.read(kind, namespace=namespace, name=name)
        except NotFound:
            return None

    def _require_leadership(self, request: str) -> None:
        if not self._may_write():
            raise Unavailable(f"{request}: this process is no longer the leader", reason=NOT_LEADER)

    @asynccontextmanager
    async def _admitted(self, verb: str, kind: Kind) -> AsyncIterator[None]:
        if not self.writes:
            raise Refused(f"{verb} {kind.kind}: the operator is read-only (--read-only)", reason=READ_ONLY)
        async with self._throttle:
            self._require_leadership(f"{verb} {kind.kind}")
            try:
                yield
            except ClusterError as error:
                if isinstance(error, Unavailable) and error.retry_after:
                    self._throttle.pause(error.retry_after)
                self._observe(verb, kind.kind, type(error).__name__)
                raise
            self._observe(verb, kind.kind, "Done")


def _as_operator() -> dict[str, str]:
    return {"fieldManager": OPERATOR}
