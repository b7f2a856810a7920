"""kopf, and only what we want of it: login and watches that keep the registry equal to the cluster.

Event handlers only, with no I/O and no decision in them: kopf's other handlers write finalizers and annotations onto
users' objects, its index needs minutes to start with a few thousand objects, and an event handler that fails is never
called again for the same event.
Own registry and settings objects instead of kopf's global ones, so that nothing happens on import and tests can run
several operators in one process.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from vllm_autotuner.cluster.client import Credentials
from vllm_autotuner.cluster.kinds import DEPLOYMENT, POD, VLLM_SERVICE, Kind
from vllm_autotuner.control.listing import SELECTORS
from vllm_autotuner.control.registry import Registry, Shelf

logger = logging.getLogger(__name__)

_BACKOFFS: Final = (1, 2, 3, 5, 8, 13, 21, 34, 60)
"""Seconds between retries of a watch that the API server refuses: 2.5 minutes, as long as a control plane's upgrade.
Then the process ends and the kubelet's back-off takes over. A server that is not there at all is retried for ever."""

_EXIT_WITHIN: Final = 25
"""Seconds; below the 30 s that the kubelet waits before it kills. kopf's default is 10 minutes."""


def build_registry(
    registry: Registry,
    *,
    credentials: Callable[[], Awaitable[Credentials]],
    cleanup: Callable[[], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """Return the kopf registry whose handlers keep `registry` current.

    `credentials` is asked at the start and whenever the API no longer accepts the last answer; `cleanup` is awaited
    when kopf has stopped watching and before it waits for stray tasks.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(settings: kopf.OperatorSettings, **_: object) -> kopf.ConnectionInfo:
        found = await credentials()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_file,
            insecure=not found.verify,
            scheme=found.scheme,
            token=found.token,
            certificate_path=found.certificate_file,
            private_key_path=found.key_file,
            proxy_url=found.proxy,
            trust_env=settings.networking.trust_env,
        )

    @kopf.on.cleanup(registry=handlers)
    async def stop_everything_else(**_: object) -> None:
        await cleanup()

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
    settings.watching.chunk_size = 500  # 10,000 objects: peak memory 265 -> 196 MB, 135 with the next line.
    settings.queueing.idle_timeout = 0.5  # Each object's worker lingers this long; its limit would throttle events.
    settings.watching.reconnect_backoff = 1.0  # The default of 0.1 s hammers a struggling API server.
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[*_group_version(kind), kind.plural] = selector
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = _BACKOFFS
    settings.networking.trust_env = True  # As our own connection: one proxy policy for both.
    settings.process.ultimate_exiting_timeout = _EXIT_WITHIN
    # No handler of ours uses these; should one ever do, it must not write kopf's default names onto users' objects.
    prefix = "kopf.vllm-autotuner.dev"
    settings.persistence.finalizer = "vllm-autotuner.dev/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix, v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix, key="last", v1=False)
    return settings


def _remember(handlers: kopf.OperatorRegistry, kind: Kind, shelf: Shelf[Any]) -> None:
    @kopf.on.event(*_group_version(kind), kind.plural, registry=handlers, id=f"remember-{kind.plural}")
    async def remember(event: kopf.RawEvent, **_: object) -> None:
        """Keep the registry equal to the watch stream; the fleet loop decides."""
        shelf.see(event["object"], deleted=event["type"] == "DELETED")


def _group_version(kind: Kind) -> tuple[str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version
