"""The last known state of the fleet: VLLMServices, their Deployments and their pods, by (namespace, name).

Synchronous and pure, so that a watch event costs microseconds and every order of events can be tested. It is fed by the
watches, by the answers to our own writes, and by a sweep, which may contradict each other in order: the object with the
higher resourceVersion wins, and a deletion stands against everything older than itself.
Must not: do I/O, decide, or be the only place that knows something (a restart starts empty).
Assumes that resourceVersions of one kind are comparable numbers, as Kubernetes guarantees since 1.35 and etcd always
gave; where they are not numbers, the order of arrival counts.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from vllm_autotuner.control.read.views import (
    Body,
    DeploymentView,
    PodView,
    ServiceEntry,
    TooLarge,
    deployment_view,
    pod_view,
    service_entry,
)
from vllm_autotuner.control.shard import WHOLE

logger = logging.getLogger(__name__)

REMEMBERED_DELETIONS: Final = 10_000
"""Deleted uids kept per kind, so that a late answer does not bring an object back. Enough for the largest burst."""


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str


class View(Protocol):
    """What every view has."""

    @property
    def namespace(self) -> str:
        """The object's namespace."""

    @property
    def name(self) -> str:
        """The object's name."""


V = TypeVar("V", bound=View)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(Generic[V]):
    uid: str
    resource_version: str
    view: V


class Shelf(Generic[V]):
    """The objects of one kind."""

    def __init__(self, read: Callable[[Body], V], *, has: Callable[[str], bool]) -> None:
        """`has`: whether objects of a namespace are kept; nothing is known of others."""
        self._read = read
        self._has = has
        self._kept: dict[Key, _Kept[V]] = {}
        self._deleted: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def see(self, body: Body, *, deleted: bool = False, unwritten: bool = False) -> bool:
        """Take note of an object, or of its end. Returns whether anything changed; older news change nothing.

        `unwritten`: what a read-only operator would have stored; it stands until there is a newer version.
        """
        metadata = body["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        if not self._has(key.namespace):
            return False
        uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
        known = self._kept.get(key)
        if deleted:
            return self._forget(key, uid=uid, resource_version=version)
        if uid in self._deleted and not _is_newer(version, self._deleted[uid]):
            return False
        same = known is not None and (uid, version) == (known.uid, known.resource_version)
        if known is not None and not _is_newer(version, known.resource_version) and not (unwritten and same):
            return False
        try:
            view = self._read(body)
        except TooLarge as error:
            # Its last view would stand for ever: as after a restart, it is not there until it is shorter.
            logger.warning(
                "object not read", extra={"kind": body.get("kind"), "key": "/".join(key), "error": str(error)}
            )
            return self._kept.pop(key, None) is not None
        except Exception:
            # One object that trips the reader must not stop the watch, or the start, of all others.
            logger.exception("failed to parse object", extra={"kind": body.get("kind"), "key": "/".join(key)})
            return False
        if known is not None and known.uid != uid:
            # Deleted and created again under the same name, and the deletion was never seen.
            self._bury(known.uid, known.resource_version)
        self._deleted.pop(uid, None)
        self._kept[key] = _Kept(uid=uid, resource_version=version, view=view)
        return True

    def evict(self, key: Key, *, uid: str) -> bool:
        """Forget this very object: the API said it does not exist. Returns whether it was known."""
        known = self._kept.get(key)
        return known is not None and self._forget(key, uid=uid, resource_version=known.resource_version)

    def sweep(self, *, namespace: str | None, alive: Iterable[str], as_of: str) -> list[Key]:
        """Forget what a full list of `namespace` (None: all) taken at resourceVersion `as_of` no longer has.

        Watches lose deletions when they have to start anew. Objects newer than the list are left alone. Returns what
        was forgotten.
        """
        present = frozenset(alive)
        vanished = [
            (key, kept)
            for key, kept in self._kept.items()
            if namespace in (None, key.namespace)
            and kept.uid not in present
            and not _is_newer(kept.resource_version, as_of)
        ]
        for key, kept in vanished:
            self._forget(key, uid=kept.uid, resource_version=as_of)
        return [key for key, _ in vanished]

    def get(self, key: Key) -> V | None:
        """Return what is known of one object."""
        known = self._kept.get(key)
        return known.view if known is not None else None

    def views(self) -> Mapping[Key, V]:
        """Return a copy of what is known now."""
        return MappingProxyType({key: kept.view for key, kept in self._kept.items()})

    def _forget(self, key: Key, *, uid: str, resource_version: str) -> bool:
        self._bury(uid, resource_version)
        known = self._kept.get(key)
        # The name may belong to a successor already: the end of the predecessor is then old news.
        if known is None or known.uid != uid:
            return False
        del self._kept[key]
        return True

    def _bury(self, uid: str, resource_version: str) -> None:
        # A version, not just the uid: an object that leaves our label selector arrives as deleted, and may come back.
        self._deleted.pop(uid, None)
        self._deleted[uid] = resource_version
        while len(self._deleted) > REMEMBERED_DELETIONS:
            del self._deleted[next(iter(self._deleted))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySnapshot:
    """The fleet at one moment. Nothing in it changes any more."""

    services: Mapping[Key, ServiceEntry]
    deployments: Mapping[Key, DeploymentView]
    pods: Mapping[Key, PodView]
    _deployments_of: Mapping[Key, tuple[DeploymentView, ...]] = field(repr=False)
    _pods_of: Mapping[Key, tuple[PodView, ...]] = field(repr=False)

    def deployments_of(self, service: Key) -> tuple[DeploymentView, ...]:
        """Return the Deployments labelled with this service, by name."""
        return self._deployments_of.get(service, ())

    def pods_of(self, service: Key) -> tuple[PodView, ...]:
        """Return the pods labelled with this service, by name."""
        return self._pods_of.get(service, ())


class Registry:
    """The three shelves, and snapshots of them."""

    def __init__(
        self, *, pod_permissions: frozenset[str] = frozenset(), has: Callable[[str], bool] = WHOLE.has
    ) -> None:
        """`pod_permissions`: what the installation allows in pod templates; `has`: whether a namespace is served."""
        read = partial(service_entry, pod_permissions=pod_permissions)
        self.services: Shelf[ServiceEntry] = Shelf(read, has=has)
        self.deployments: Shelf[DeploymentView] = Shelf(deployment_view, has=has)
        self.pods: Shelf[PodView] = Shelf(pod_view, has=has)
        self.synced = False
        """Whether the first full list of all three kinds is in. Before, absence means nothing."""

    def snapshot(self) -> RegistrySnapshot:
        """Return the fleet as it is known now."""
        deployments, pods = self.deployments.views(), self.pods.views()
        return RegistrySnapshot(
            services=self.services.views(),
            deployments=deployments,
            pods=pods,
            _deployments_of=_by_service(deployments.values()),
            _pods_of=_by_service(pods.values()),
        )


class _Child(View, Protocol):
    @property
    def service(self) -> str: ...


C = TypeVar("C", bound=_Child)


def _by_service(children: Iterable[C]) -> Mapping[Key, tuple[C, ...]]:
    found: defaultdict[Key, list[C]] = defaultdict(list)
    for child in children:
        found[Key(child.namespace, child.service)].append(child)
    return MappingProxyType({key: tuple(sorted(each, key=lambda child: child.name)) for key, each in found.items()})


def _is_newer(version: str, than: str) -> bool:
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than or not version
