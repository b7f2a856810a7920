"""The kopf handlers and settings: login, and watches that keep the registry equal to the cluster.

Event handlers only, with no I/O and no decision in them: kopf's other handlers write finalizers and annotations onto
users' objects, its index needs minutes to start with a few thousand objects, and a failed event handler is never called
again for the same event.
Own registry and settings objects instead of kopf's global ones, so that an import has no effect and tests can run
several operators in one process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import kopf
from typing_extensions import override

from vllm_autotuner.cluster.adapter import PAGE_SIZE
from vllm_autotuner.cluster.client import CREDENTIALS_AGE, Connection
from vllm_autotuner.cluster.kinds import DEPLOYMENT, POD, VLLM_SERVICE, Kind
from vllm_autotuner.control.read.listing import SELECTORS
from vllm_autotuner.control.read.registry import Registry, Shelf

logger = logging.getLogger(__name__)

_BACKOFFS: Final = (1, 2, 3, 5, 8, 13, 21, 34, 60)
"""Seconds between retries of a watch that the API server refuses: 2.5 minutes, as long as a control plane's upgrade.
Then the process ends and the kubelet's back-off takes over. A server that is not there at all is retried for ever."""

_LOGIN_PAUSE: Final = 5.0
_LOGIN_PATIENCE: Final = CREDENTIALS_AGE + _LOGIN_PAUSE
"""Seconds that a login waits for credentials other than those that were refused. Then the process ends."""

_WATCHER: Final = "watcher for "
"""How kopf names the tasks of its watches."""

_WATCHERS_END_WITHIN: Final = 5.0

_EXIT_WITHIN: Final = 25
"""Seconds; below the 30 s that the kubelet waits before it kills. kopf's default is 10 minutes."""


class Login:
    """Gives kopf a session: at the start, and again when the API answers 401 although credentials are always fresh."""

    def __init__(self, connection: Connection, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._connection = connection
        self._sleep = sleep
        self._used: str | None = ""  # Equal to no header; None is that of a client certificate.

    async def __call__(self) -> kopf.AiohttpSession | None:
        """Return a session with credentials that were not refused yet, None when none turn up: kopf then gives up."""
        header = await self._connection.authorization()
        patience = _LOGIN_PATIENCE
        while header == self._used and patience > 0:
            # The same credentials would be refused in an endless loop; a rotated file is noticed within a minute.
            patience -= _LOGIN_PAUSE
            await self._sleep(_LOGIN_PAUSE)
            header = await self._connection.authorization()
        if header == self._used:
            return None
        self._used = header
        return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=self._connection.session())


class NoDiff(kopf.DiffBaseStorage):
    """Remembers nothing of an object. kopf's own copies each object several times, for handlers that we do not have:
    two fifths of what an event of a watch costs."""

    @override
    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    @override
    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    @override
    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


def build_registry(
    registry: Registry, *, connection: Connection, cleanup: Callable[[], Awaitable[None]]
) -> kopf.OperatorRegistry:
    """Return the kopf registry whose handlers keep `registry` current.

    kopf asks the API as `connection` does. `cleanup` is awaited when kopf has stopped watching and before it waits for
    stray tasks.
    """
    handlers = kopf.OperatorRegistry()
    log_in = Login(connection)

    @kopf.on.login(registry=handlers)
    async def login(**_: object) -> kopf.AiohttpSession | None:
        return await log_in()

    @kopf.on.cleanup(registry=handlers)
    async def stop_everything_else(**_: object) -> None:
        await cleanup()
        await _stop_watchers()

    _remember(handlers, VLLM_SERVICE, registry.services)
    _remember(handlers, DEPLOYMENT, registry.deployments)
    _remember(handlers, POD, registry.pods)
    return handlers


def build_settings() -> kopf.OperatorSettings:
    """Return settings with which kopf watches, and neither writes nor coordinates nor reports."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # Election is ours; peering pauses all replicas of equal priority.
    settings.posting.enabled = False  # Events are ours: exactly once, about transitions.
    settings.scanning.disabled = True  # Fixed kinds: no permission to watch CRDs and namespaces is needed.
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = 0.5  # Each object's worker lingers this long; its limit would throttle events.
    settings.watching.reconnect_backoff = 1.0  # The default of 0.1 s hammers a struggling API server.
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[*_group_version(kind), kind.plural] = selector
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = _BACKOFFS
    settings.process.ultimate_exiting_timeout = _EXIT_WITHIN
    # No handler of ours uses these; should one ever do, it must not write kopf's default names onto users' objects.
    prefix = "kopf.vllm-autotuner.dev"
    settings.persistence.finalizer = "vllm-autotuner.dev/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix, v1=False)
    settings.persistence.diffbase_storage = NoDiff()
    return settings


async def _stop_watchers() -> None:
    # When one watch dies, kopf 1.45 leaves the others running and closes their session under them: they then wait for
    # new credentials for ever, deaf to cancellation, until kopf's own SIGKILL. While the session is open they still
    # listen. After a normal stop there are none left.
    watchers = [task for task in asyncio.all_tasks() if task.get_name().startswith(_WATCHER)]
    for task in watchers:
        task.cancel()
    if watchers:
        await asyncio.wait(watchers, timeout=_WATCHERS_END_WITHIN)


def _remember(handlers: kopf.OperatorRegistry, kind: Kind, shelf: Shelf[Any]) -> None:
    @kopf.on.event(*_group_version(kind), kind.plural, registry=handlers, id=f"remember-{kind.plural}")
    async def remember(event: kopf.RawEvent, **_: object) -> None:
        """Keep the registry equal to the watch stream; the fleet loop decides."""
        shelf.see(event["object"], deleted=event["type"] == "DELETED")


def _group_version(kind: Kind) -> tuple[str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version
