"""Where replicas would find GPUs: the scheduler's arithmetic over plain values.

Apart from feasibility, which asks one number of it; apart from the cluster, so that it is a table in a test.
It counts what the scheduler counts: allocatable less requested, on nodes that are schedulable, selected and tolerated.
Must not: know affinities, quotas or priorities. What it calls placeable, those may still refuse; what it refuses,
no scheduler places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["GpuNode", "GpuPod", "Room", "Taint", "Toleration", "room_for"]


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
class GpuPod:
    """One pod that holds devices: bound, and not ended."""

    node: str
    devices: int


@dataclass(frozen=True, slots=True)
class Room:
    """Free devices of each node that this service's pods may go to, largest first; and the largest node when empty."""

    free: tuple[int, ...]
    largest_node: int

    def pods(self, devices: int) -> int:
        """Return how many pods of so many devices find a place: a pod cannot be split over nodes."""
        return 0 if devices < 1 else sum(free // devices for free in self.free)


def room_for(
    nodes: Sequence[GpuNode],
    pods: Sequence[GpuPod],
    *,
    selector: Mapping[str, str],
    tolerations: Sequence[Toleration] = (),
) -> Room:
    """Return the room for pods with this node selector and these tolerations."""
    open_to_us = [node for node in nodes if node.schedulable and _admits(node, selector, tolerations)]
    held: dict[str, int] = {}
    for pod in pods:
        held[pod.node] = held.get(pod.node, 0) + max(0, pod.devices)
    # A node can be overcommitted (a device was lost): it has no room, and takes none from others.
    free = sorted((max(0, node.allocatable - held.get(node.name, 0)) for node in open_to_us), reverse=True)
    return Room(free=tuple(free), largest_node=max((node.allocatable for node in open_to_us), default=0))


def _admits(node: GpuNode, selector: Mapping[str, str], tolerations: Sequence[Toleration]) -> bool:
    selected = all(node.labels.get(key) == value for key, value in selector.items())
    repelled = (
        taint
        for taint in node.taints
        if taint.effect != "PreferNoSchedule" and not any(each.covers(taint) for each in tolerations)
    )
    return selected and next(repelled, None) is None
