"""Finds nodes with free GPUs for replicas, as the Kubernetes scheduler would; over plain values.

Separate from feasibility, which uses one number of it, and from the cluster, so that tests need plain values only.
It counts what the scheduler counts: allocatable less requested, on nodes that are schedulable, selected and tolerated;
and what a ResourceQuota leaves.
Must not: know affinities or priorities. What it calls placeable, those may still refuse; what it refuses, no scheduler
places now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

__all__ = ["FreeGpus", "GpuNode", "Taint", "Toleration", "admitting", "free_gpus_on"]

_NONE_OWN: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """What a node asks pods to tolerate."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """What a pod tolerates; an empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    value: str | None = None
    """None: any value (operator Exists)."""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the taint does not keep the pod away."""
        return self.key in ("", taint.key) and self.value in (None, taint.value) and self.effect in ("", taint.effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """One node."""

    name: str
    allocatable: int
    """Devices of the resource in question."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True
    """Ready and not cordoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGpus:
    """What is free for the pods of one service."""

    free: tuple[int, ...]
    """Devices of each node that they may go to, largest first."""
    largest_node: int
    """Devices of the largest node when empty."""
    vacated: tuple[int, ...] | None = None
    """What would be free without the service's own pods. None: not determined."""
    devices: int = 1
    """Of one pod of the service as it runs now."""
    quota: int | None = None
    """Devices that the ResourceQuotas of the namespace still allow; None: no quota is about devices."""
    product: str = ""
    """Of the GPUs that the service runs on, as the nodes' label says; empty where it does not, or they differ."""

    def pods(self, devices: int) -> int:
        """Return how many pods of so many devices find a place: a pod cannot be split over nodes."""
        if devices < 1:
            return 0
        places = sum(free // devices for free in self.free)
        return places if self.quota is None else min(places, max(0, self.quota) // devices)

    def holds(self, *devices: int) -> bool:
        """Whether pods of these sizes find places side by side. Exact for two; for more it may miss a way."""
        left = list(self.free)
        for wanted in sorted(devices, reverse=True):
            fitting = [free for free in left if free >= wanted]
            if not fitting:
                return False
            # On the fullest node that takes it: a larger one stays whole for the next.
            left[left.index(min(fitting))] -= wanted
        return self.quota is None or sum(devices) <= self.quota

    def replaces(self, *, devices: int, replicas: int) -> bool:
        """Whether so many pods of another size can ever stand where the service's own stand now.

        One replica after the other needs more than this: where it says no, no order of them works.
        """
        if self.vacated is None:
            return True
        places = sum(free // devices for free in self.vacated)
        added = (devices - self.devices) * replicas
        return places >= replicas and (self.quota is None or added <= max(0, self.quota))


def admitting(
    nodes: Iterable[GpuNode], *, selector: Mapping[str, str], tolerations: Sequence[Toleration] = ()
) -> tuple[GpuNode, ...]:
    """Return the nodes that pods with this node selector and these tolerations may go to."""
    return tuple(node for node in nodes if node.schedulable and _admits(node, selector, tolerations))


def free_gpus_on(nodes: Sequence[GpuNode], *, held: Mapping[str, int], own: Mapping[str, int] = _NONE_OWN) -> FreeGpus:
    """Return the room on these nodes; `held`: devices that all pods hold by node, `own`: the service's part of them."""
    # A node can be overcommitted (a device was lost): it has no room, and takes none from others.
    free = [max(0, node.allocatable - held.get(node.name, 0)) for node in nodes]
    left = [max(0, node.allocatable - held.get(node.name, 0) + own.get(node.name, 0)) for node in nodes]
    return FreeGpus(
        free=tuple(sorted(free, reverse=True)),
        largest_node=max((node.allocatable for node in nodes), default=0),
        vacated=tuple(sorted(left, reverse=True)) if own else None,
    )


def _admits(node: GpuNode, selector: Mapping[str, str], tolerations: Sequence[Toleration]) -> bool:
    selected = all(node.labels.get(key) == value for key, value in selector.items())
    repelled = (
        taint
        for taint in node.taints
        if taint.effect != "PreferNoSchedule" and not any(each.covers(taint) for each in tolerations)
    )
    return selected and next(repelled, None) is None
