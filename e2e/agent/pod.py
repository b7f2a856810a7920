"""One worker for one pod (one uid): network, volumes, init containers, containers, status, the end.

Apart from `pods`, which starts and feeds workers; whatever goes wrong in here ends here.
Must not: share anything changeable with another pod.
Two tasks: `_live` moves the pod forward and is cancelled by the deletion; `_publish` writes the status when it differs.
"""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from typing import Any, Final

from e2e.agent.api import ApiError, ConnectionFailed, until_answered
from e2e.agent.container import Container
from e2e.agent.context import NodeContext, PodContext
from e2e.agent.grace import GracePeriod
from e2e.agent.objects import Object, Unstartable, key_of, uid_of, utc_now
from e2e.agent.service_account import api_variables
from e2e.agent.status import PodView, Waiting, pod_status
from e2e.agent.volumes import Volumes, changes
from e2e.network import NetworkError

_RETRY_SECONDS: Final = 1.0
_REFRESH_SECONDS: Final = 2.0
_RENEW_SECONDS: Final = 60.0
"""For pods that only have a token, which lives for an hour."""
_SHUTDOWN_SECONDS: Final = 1.0
_DEFAULT_GRACE: Final = 30
FINISHED: Final = frozenset({"Succeeded", "Failed"})

logger = logging.getLogger(__name__)


class PodWorker:
    """Runs one pod until its object is gone."""

    def __init__(self, pod: Object, *, node: NodeContext) -> None:
        self.uid = uid_of(pod)
        self._node = node
        folder = node.folder / "pods" / self.uid
        namespace = pod["metadata"]["namespace"]
        volumes = Volumes(folder / "volumes", api=node.api, read=lambda source: node.read(namespace, source))
        self._context = PodContext(node=node, pod=pod, folder=folder, volumes=volumes, changed=self._mark)
        self._dirty = asyncio.Event()
        self._deletion = asyncio.Event()
        self._gone = False
        self._ended = False
        self._silent = False
        # Of a pod that had finished before this process node started, only the deletion is ours.
        self._finished_before = pod.get("status", {}).get("phase") in FINISHED
        self._started_at = utc_now()
        self._tasks: dict[Container, asyncio.Task[None]] = {}
        policy = pod["spec"].get("restartPolicy", "Always")
        self.init = [
            Container(
                spec,
                context=self._context,
                policy="Always" if _is_sidecar(spec) else "Never" if policy == "Never" else "OnFailure",
                sidecar=_is_sidecar(spec),
            )
            for spec in pod["spec"].get("initContainers") or []
        ]
        self.main = [Container(spec, context=self._context, policy=policy) for spec in pod["spec"]["containers"]]
        for container in self.main if self.init else []:
            container.state = Waiting(reason="PodInitializing")
        self._adopt_history()
        self.update(pod)

    @property
    def pod(self) -> Object:
        """Return the API object as last seen."""
        return self._context.pod

    @property
    def containers(self) -> Sequence[Container]:
        """Return all containers, init containers first."""
        return [*self.init, *self.main]

    def update(self, pod: Object) -> None:
        """Take a newer version of the object."""
        self._context.pod = pod
        self._mark()
        if "deletionTimestamp" in pod["metadata"]:
            seconds = pod["metadata"].get("deletionGracePeriodSeconds", _DEFAULT_GRACE)
            if self._deletion.is_set():
                self._stop(self._tasks, GracePeriod(seconds))
            self._deletion.set()

    def object_gone(self) -> None:
        """The object does not exist any more: a forced deletion, or our own."""
        self._gone = True
        self._stop(self._tasks, GracePeriod(0))
        self._deletion.set()

    async def run(self) -> None:
        """Run the pod until its object is gone. Raises only what is a defect of ours."""
        publishing = asyncio.create_task(self._publish())
        living = asyncio.create_task(self._live())
        deletion = asyncio.create_task(self._deletion.wait())
        try:
            await asyncio.wait({living, deletion}, return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                await living  # raises what broke it
            await deletion
            living.cancel()
            seconds = self.pod["metadata"].get("deletionGracePeriodSeconds", _DEFAULT_GRACE)
            await self._end(GracePeriod(0 if self._gone else seconds))
            publishing.cancel()
            if not self._gone:
                await self._delete_object()
        finally:
            await _cancelled(publishing, living, deletion)
            await self._release()

    async def shut_down(self) -> None:
        """End the containers because the node ends; the object stays as it is, as after a power cut."""
        self._silent = True
        await self._end(GracePeriod(_SHUTDOWN_SECONDS))

    async def _live(self) -> None:
        if self._finished_before or self._deletion.is_set():
            return
        await self._prepare()
        refreshing = asyncio.create_task(self._refresh_volumes())
        try:
            if await self._initialize():
                for container in self.main:
                    self._start(container)
                await asyncio.wait({self._tasks[container] for container in self.main})
            await self._end(GracePeriod(self.pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE)))
        finally:
            await _cancelled(refreshing)

    async def _prepare(self) -> None:
        """Get an address and the volumes; whatever is missing may come later."""
        while True:
            reason = "FailedMount"
            try:
                if self._context.network is None:
                    reason = "FailedCreatePodSandBox"
                    host = self.pod["spec"].get("hostNetwork", False)
                    self._context.network = await self._node.network.add_pod(self.uid, host=host)
                    self._mark()
                    reason = "FailedMount"
                await self._context.volumes.write(self._context.facts)
                self._context.variables = api_variables(self._context)
                return
            except (NetworkError, Unstartable, ApiError, OSError, *ConnectionFailed) as error:
                logger.info("%s of %s: %r", reason, key_of(self.pod), error)
                self._context.emit(kind="Warning", reason=reason, message=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _refresh_volumes(self) -> None:
        """Follow changed ConfigMaps and Secrets, and renew tokens; a failure leaves the former content."""
        every = _REFRESH_SECONDS if changes(self.pod) else _RENEW_SECONDS
        while True:
            await asyncio.sleep(every)
            try:
                await self._context.volumes.write(self._context.facts)
            except (Unstartable, ApiError, OSError, *ConnectionFailed) as error:
                logger.info("volumes of %s are not refreshed: %r", key_of(self.pod), error)

    async def _initialize(self) -> bool:
        """Run the init containers in order. False when one failed for good."""
        for container in self.init:
            self._start(container)
            task = self._tasks[container]
            if container.view.sidecar:
                started = asyncio.create_task(container.started.wait())
                await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
                started.cancel()
            else:
                await asyncio.wait({task})
                if not container.view.succeeded:
                    return False
        return True

    async def _end(self, grace: GracePeriod) -> None:
        """Stop what still runs: sidecars after the containers that they serve."""
        sidecars = {container for container in self.init if container.view.sidecar}
        for group in (self._tasks.keys() - sidecars, self._tasks.keys() & sidecars):
            self._stop(group, grace)
            if tasks := [self._tasks[container] for container in group]:
                await asyncio.wait(tasks)
        self._ended = bool(self._tasks)
        self._mark()

    def _start(self, container: Container) -> None:
        self._tasks[container] = asyncio.create_task(container.run())

    def _stop(
        self, containers: "Sequence[Container] | set[Container] | dict[Container, Any]", grace: GracePeriod
    ) -> None:
        for container in containers:
            container.stop(grace)

    def _mark(self) -> None:
        self._dirty.set()

    async def _publish(self) -> None:
        written: Object | None = None
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            status = self._status()
            if self._finished_before or self._silent or status == written:
                continue
            if await self._write(status):
                written = status
            elif self._gone:
                return
            else:
                await asyncio.sleep(_RETRY_SECONDS)
                self._mark()

    async def _write(self, status: Object) -> bool:
        try:
            await self._node.api.patch(f"{self._path}/status", {"metadata": {"uid": self.uid}, "status": status})
        except (ApiError, *ConnectionFailed) as error:
            # 404 and the uid's 409: the watch is about to say so, too.
            logger.info("status of %s is not written: %r", key_of(self.pod), error)
            return False
        return True

    def _status(self) -> Object:
        view = PodView(
            restart_policy=self.pod["spec"].get("restartPolicy", "Always"),
            init=[container.view for container in self.init],
            main=[container.view for container in self.main],
            pod_ip=self._context.ip,
            host_ip=self._node.network.node_ip,
            started_at=self._started_at,
            ended=self._ended,
        )
        return pod_status(
            view,
            former=self.pod.get("status", {}).get("conditions") or [],
            gates=[gate["conditionType"] for gate in self.pod["spec"].get("readinessGates") or []],
            now=utc_now(),
        )

    async def _delete_object(self) -> None:
        """Write the last status, then remove the object: only now may its name and its GPUs be used again."""
        if self._tasks:
            await until_answered(
                lambda: self._node.api.patch(
                    f"{self._path}/status", {"metadata": {"uid": self.uid}, "status": self._status()}
                ),
                fine=(404, 409, 422),
            )
        await until_answered(
            lambda: self._node.api.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}),
            fine=(404, 409),
        )

    async def _release(self) -> None:
        """Give back what the pod had. The containers have ended, or die with their cancelled tasks."""
        await _cancelled(*self._tasks.values())
        try:
            await self._node.network.remove_pod(self.uid)
        except NetworkError as error:
            logger.warning("network of %s is left: %s", key_of(self.pod), error)
        self._node.events.forget(self.pod)
        # In a thread: a volume may hold gigabytes.
        await asyncio.to_thread(shutil.rmtree, self._context.folder, ignore_errors=True)

    def _adopt_history(self) -> None:
        status = self.pod.get("status", {})
        former = {
            each["name"]: each
            for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        }
        for container in self.containers:
            if container.name in former:
                container.adopt_history(former[container.name])

    @property
    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _is_sidecar(spec: Object) -> bool:
    return bool(spec.get("restartPolicy") == "Always")


async def _cancelled(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
