"""Which engines form one service without a VLLMService: by labels and by the pod names of Kubernetes.

Must not: be used in the operator, which selects pods by its own labels.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.snapshot import EngineKey, FleetSnapshot

__all__ = ["Grouping", "ServiceName", "by_labels", "one_service", "workload_of"]

_REPLICA_SET: Final = re.compile(r"-[bcdf-hj-np-tv-xz2456789]{1,10}-[bcdf-hj-np-tv-xz2456789]{5}$")
"""Kubernetes' hashes leave out vowels and digits that look like them, so that they never spell a word."""
_STATEFUL_SET: Final = re.compile(r"-[0-9]+$")


@dataclass(frozen=True, slots=True, order=True)
class ServiceName:
    """Namespace (empty outside Kubernetes) and name."""

    namespace: str
    name: str


Grouping: TypeAlias = Callable[[FleetSnapshot], Mapping[ServiceName, frozenset[EngineKey]]]


def workload_of(pod: str) -> str:
    """Strip what a ReplicaSet or StatefulSet adds. Worked: `chat-7d4b9c6f5-x2x9z` and `chat-0` are both `chat`."""
    for suffix in (_REPLICA_SET, _STATEFUL_SET):
        name = suffix.sub("", pod)
        if name and name != pod:
            return name
    return pod


def by_labels(label: str | None) -> Grouping:
    """Group by the label `label` where given, else by the pod's workload, else by the model's name."""

    def group(snapshot: FleetSnapshot) -> Mapping[ServiceName, frozenset[EngineKey]]:
        return _grouped(snapshot, name=lambda key, labels: _name(key, labels, label=label))

    return group


def one_service(snapshot: FleetSnapshot) -> Mapping[ServiceName, frozenset[EngineKey]]:
    """Take all engines for one service that is called like its model."""
    found = [labels.get("model_name", "") for _, labels in _engines(snapshot)]
    name = ServiceName("", next(filter(None, found), "unknown"))
    return _grouped(snapshot, name=lambda key, labels: name)


def _name(key: EngineKey, labels: Mapping[str, str], *, label: str | None) -> ServiceName:
    if label is not None and (value := labels.get(label)):
        return ServiceName(key.namespace, value)
    # Without a `pod` label the key holds an address, which names a machine and not a service.
    pod, model = labels.get("pod", ""), labels.get("model_name", "")
    return ServiceName(key.namespace, workload_of(pod) or model or "unknown")


def _grouped(
    snapshot: FleetSnapshot, *, name: Callable[[EngineKey, Mapping[str, str]], ServiceName]
) -> Mapping[ServiceName, frozenset[EngineKey]]:
    groups: dict[ServiceName, set[EngineKey]] = {}
    for key, labels in _engines(snapshot):
        groups.setdefault(name(key, labels), set()).add(key)
    return {found: frozenset(keys) for found, keys in sorted(groups.items())}


def _engines(snapshot: FleetSnapshot) -> list[tuple[EngineKey, Mapping[str, str]]]:
    # The long window still shows engines that were deleted half an hour ago: they are not silent, they are gone.
    found = snapshot.engines.items()
    seen = [(key, each.labels) for key, each in found if Meaning.RUNNING in each.gauges or each.unreadable]
    return sorted(seen, key=lambda engine: engine[0])
