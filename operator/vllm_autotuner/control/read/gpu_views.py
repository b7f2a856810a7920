"""The parts of nodes, pods and ResourceQuotas from which free GPUs are counted.

Apart from `views`, because these objects are not the operator's: only a few fields are kept, and any may be missing.
Must not: judge, or call the API.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_autotuner.api.annotations import whole_number
from vllm_autotuner.planning.placement import GpuNode, Taint, Toleration

__all__ = ["HeldDevices", "NodeView", "devices_left", "gpu_resource", "held_devices", "node_view", "products"]

Body = Mapping[str, Any]

PRODUCT_LABELS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
"""Where nodes say what their GPUs are: NVIDIA's and AMD's discovery, GKE, Karpenter on AWS."""
SHARED_GPU: Final = re.compile(r"\bMIG\b|\bSHARED\b", re.IGNORECASE)
"""In a product's label: a device is a part of the GPU, and has neither its memory nor its bandwidth."""
NODES_ON_DEMAND: Final = "karpenter.sh/nodepool"
"""The label of nodes that Karpenter made for pods that found no place: it makes more."""
_KUBERNETES: Final = "kubernetes.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node that has devices of some kind."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    schedulable: bool

    @property
    def product(self) -> str:
        """What its GPUs are; empty where no label says it, or a device is a part of one."""
        found = next((self.labels[label] for label in PRODUCT_LABELS if label in self.labels), "")
        return "" if SHARED_GPU.search(found) else found

    @property
    def on_demand(self) -> bool:
        """Whether more nodes like it come when pods wait."""
        return NODES_ON_DEMAND in self.labels

    def with_devices(self, resource: str) -> GpuNode:
        """Return it as the scheduler's arithmetic sees it for one resource."""
        return GpuNode(
            name=self.name,
            allocatable=self.allocatable.get(resource, 0),
            labels=self.labels,
            taints=self.taints,
            schedulable=self.schedulable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """A pod that holds devices of a node, or did until it ended."""

    namespace: str
    name: str
    node: str
    devices: Mapping[str, int]
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]


def node_view(body: Body) -> NodeView | None:
    """Read a node; None where it has no devices."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    allocatable = _devices(status.get("allocatable"))
    if not allocatable:
        return None
    ready: Body = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})
    taints = (
        Taint(key=each.get("key", ""), value=each.get("value") or "", effect=each.get("effect", ""))
        for each in spec.get("taints") or ()
    )
    return NodeView(
        name=metadata["name"],
        allocatable=allocatable,
        labels=metadata.get("labels") or {},
        taints=tuple(taints),
        schedulable=not spec.get("unschedulable") and ready.get("status") == "True",
    )


def held_devices(body: Body) -> HeldDevices | None:
    """Read a pod; None where it is on no node, has ended, or holds no devices."""
    spec = body.get("spec") or {}
    node = spec.get("nodeName") or ""
    if not node or (body.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    devices = _of_pod(spec)
    if not devices:
        return None
    return HeldDevices(
        namespace=body["metadata"]["namespace"],
        name=body["metadata"]["name"],
        node=node,
        devices=devices,
        selector=spec.get("nodeSelector") or {},
        tolerations=tuple(map(_toleration, spec.get("tolerations") or ())),
    )


def devices_left(body: Body) -> Mapping[str, int]:
    """Return how many devices of each resource a ResourceQuota still allows its namespace.

    One with scopes counts only some pods; which, is not looked into, so it forbids nothing here.
    """
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return {}
    prefix = "requests."
    hard = {name.removeprefix(prefix): text for name, text in (status.get("hard") or {}).items() if prefix in name}
    used = {name.removeprefix(prefix): text for name, text in (status.get("used") or {}).items()}
    limits = _devices(hard, also_none=True)
    taken = {name: whole_number(str(used.get(name) or 0)) for name in limits}
    return {name: limit - count for name, limit in limits.items() if (count := taken[name]) is not None}


def gpu_resource(devices: Mapping[str, int], *, asked_for: str | None) -> str | None:
    """Which of the resources that a pod holds is its GPUs: the one that the spec names, else the only one it can be."""
    if asked_for is not None:
        return asked_for if asked_for in devices else None
    found = [name for name in devices if "gpu" in name or "mig-" in name] or list(devices)
    return found[0] if len(found) == 1 else None


def _of_pod(spec: Body) -> dict[str, int]:
    """What the scheduler reserves: what runs side by side, or one start-up container that needs more than that."""
    starting = spec.get("initContainers") or ()
    beside = [each for each in starting if each.get("restartPolicy") == "Always"]
    total: dict[str, int] = {}
    for container in (*(spec.get("containers") or ()), *beside):
        for name, count in _of_container(container).items():
            total[name] = total.get(name, 0) + count
    for container in starting:
        for name, count in _of_container(container).items():
            total[name] = max(total.get(name, 0), count)
    return total


def _of_container(container: Body) -> dict[str, int]:
    resources = container.get("resources") or {}
    # Requests and limits of devices are equal; the API server fills in the one that is missing.
    return _devices((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _devices(amounts: Mapping[str, Any] | None, *, also_none: bool = False) -> dict[str, int]:
    """The extended resources among amounts, by the API's own rule; they are whole numbers."""
    found = {
        name: count
        for name, text in (amounts or {}).items()
        if "/" in name
        and not (name.startswith("hugepages-") or _KUBERNETES in name)
        and (count := whole_number(str(text))) is not None
    }
    return found if also_none else {name: count for name, count in found.items() if count > 0}


def _toleration(body: Mapping[str, Any]) -> Toleration:
    equal = (body.get("operator") or "Equal") == "Equal"
    # Operators that compare numbers are taken to tolerate: what is refused here, no scheduler would place.
    value = (body.get("value") or "") if equal else None
    return Toleration(key=body.get("key") or "", value=value, effect=body.get("effect") or "")


def products(nodes: Iterable[NodeView]) -> str:
    """What the GPUs of these nodes are; empty where they differ or one does not say."""
    found = {node.product for node in nodes}
    return found.pop() if len(found) == 1 else ""
