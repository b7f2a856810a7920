"""All pods of the node: one worker each, fed from list and watch.

Apart from `pod`: here is which pods there are, there is what becomes of one.
Must not: let one broken pod stop the others or the watch.
"""

import asyncio
import logging
from typing import Final

from e2e.agent.context import NodeContext
from e2e.agent.objects import Object, key_of, uid_of
from e2e.agent.pod import PodWorker

_RETRY_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class Pods:
    """Follows the pods that are scheduled to this node (a `Follower`)."""

    def __init__(self, *, node: NodeContext) -> None:
        self._node = node
        self._known: set[str] = set()
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def replace(self, items: list[Object]) -> None:
        """See `Follower`."""
        for uid in self._known - {uid_of(item) for item in items}:
            self._forget(uid)
        for item in items:
            self.apply("MODIFIED", item)

    def apply(self, kind: str, item: Object) -> None:
        """See `Follower`."""
        uid = uid_of(item)
        if kind == "DELETED":
            self._forget(uid)
            return
        self._known.add(uid)
        if worker := self._workers.get(uid):
            worker.update(item)
            return
        try:
            self._workers[uid] = PodWorker(item, node=self._node)
        except Exception:  # an object that we misread must not end the watch of all others
            logger.exception("pod %s cannot be read", key_of(item))
            return
        self._tasks[uid] = asyncio.create_task(self._run(uid))

    def workers(self) -> list[PodWorker]:
        """Return the workers of all pods, also of those that are ending."""
        return list(self._workers.values())

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the pod of that name; while one ends and its successor starts, the successor."""
        found = [worker for worker in self._workers.values() if key_of(worker.pod) == f"{namespace}/{name}"]
        return max(found, key=lambda worker: worker.pod["metadata"]["creationTimestamp"], default=None)

    async def shut_down(self) -> None:
        """End all containers and forget the pods; their objects stay as they are."""
        await asyncio.gather(*(worker.shut_down() for worker in self._workers.values()), return_exceptions=True)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget(self, uid: str) -> None:
        self._known.discard(uid)
        if worker := self._workers.get(uid):
            worker.object_gone()
            if self._tasks[uid].done():
                self._drop(uid)

    async def _run(self, uid: str) -> None:
        while True:
            try:
                await self._workers[uid].run()
                break
            except Exception:  # a defect of ours: this pod starts anew, the others do not notice
                logger.exception("worker of %s", key_of(self._workers[uid].pod))
            await asyncio.sleep(_RETRY_SECONDS)
            if uid not in self._known:
                break
            self._workers[uid] = PodWorker(self._workers[uid].pod, node=self._node)
        if uid not in self._known:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._tasks.pop(uid, None)
