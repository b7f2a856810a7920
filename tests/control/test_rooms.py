"""What is free for a service, from the objects of a cluster to the scheduler's arithmetic."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.control.desk import START
from tests.control.objects import gpu_pod, node_object, service_object
from tests.patience import PATIENCE

from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.budgets import READ_TICK_SECONDS
from vllm_autotuner.cluster.adapter import Cluster, Page
from vllm_autotuner.cluster.bounded_json import OBJECT_TOO_LARGE
from vllm_autotuner.cluster.errors import Refused, Unavailable
from vllm_autotuner.cluster.kinds import POD, Kind
from vllm_autotuner.control.read import free_gpus
from vllm_autotuner.control.read.free_gpus import LOOK_EVERY, ON_NODES, FreeGpuLookup
from vllm_autotuner.control.read.gpu_views import devices_left, gpu_resource, held_devices, node_view
from vllm_autotuner.planning.placement import FreeGpus

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


class Devices:
    """A cluster of which only these lists are asked."""

    def __init__(self, *, nodes: list[Any], pods: list[Any], quotas: list[Any] | None = None) -> None:
        self.answers: dict[str, list[Any] | Exception] = {"Node": nodes, "Pod": pods, "ResourceQuota": quotas or []}
        self.asked: list[tuple[str, str]] = []
        self.clock, self.takes = 0.0, 0.0
        """Seconds: the time, and how long a page takes."""
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1

    async def pages(self, kind: Kind, *, fields: str = "") -> AsyncIterator[Page]:
        self.asked.append((kind.kind, fields))
        answer = self.answers[kind.kind]
        if isinstance(answer, Exception):
            raise answer
        for each in answer or [None]:
            self.clock += self.takes
            yield Page(objects=() if each is None else (each,), resource_version="1")


def service(**spec: Any) -> VLLMService:
    found = parse_service(service_object(**spec))
    assert isinstance(found, VLLMService)
    return found


def free_gpu_lookup(cluster: Devices, *, enabled: bool = True) -> FreeGpuLookup:
    return FreeGpuLookup(cast(Cluster, cluster), enabled=enabled, monotonic=lambda: cluster.clock, beat=cluster.beat)


def quota(left: str = "3", *, used: str = "1", **spec: Any) -> dict[str, Any]:
    name = "requests.nvidia.com/gpu"
    status = {"hard": {name: left, "pods": "10"}, "used": {name: used, "pods": "2"}}
    return {"kind": "ResourceQuota", "metadata": {"namespace": "prod", "name": "q"}, "spec": spec, "status": status}


async def found(cluster: Devices, *pods: str, **spec: Any) -> FreeGpus | None:
    looked = free_gpu_lookup(cluster)
    await looked.look(START)
    return looked.of(service(**spec), pods or ("chat-0",), now=START)


async def test_free_gpus_are_those_that_no_pod_holds() -> None:
    cluster = Devices(
        nodes=[node_object("a", labels=H100), node_object("b", devices=4), {"metadata": {"name": "cpu-only"}}],
        pods=[gpu_pod("chat-0", devices=2), gpu_pod("other", devices=3), gpu_pod("waits", node="", devices=8)],
        quotas=[quota("9"), quota("4", used="1")],
    )
    assert await found(cluster) == FreeGpus(
        free=(4, 3), largest_node=8, vacated=(5, 4), devices=2, quota=3, product="NVIDIA-H100-80GB-HBM3"
    )
    assert cluster.asked == [("Node", ""), ("Pod", ON_NODES), ("ResourceQuota", "")]


async def test_what_a_pod_that_is_too_large_holds_is_not_known_and_costs_nobody() -> None:
    large = {"metadata": {"namespace": "prod", "name": "large"}, "spec": OBJECT_TOO_LARGE}
    cluster = Devices(nodes=[node_object("a")], pods=[large, gpu_pod("chat-0", devices=2)])
    seen = await found(cluster)
    assert seen is not None
    assert seen.free == (6,)


async def test_only_nodes_that_the_pods_may_go_to_count() -> None:
    tainted = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    cluster = Devices(
        nodes=[
            node_object("a", labels=H100, taints=tainted),
            node_object("b", labels={"nvidia.com/gpu.product": "A10"}),
            node_object("c", labels=H100, unschedulable=True),
            node_object("d", labels=H100, ready="Unknown"),
        ],
        pods=[gpu_pod(nodeSelector=H100, tolerations=[{"key": "team", "operator": "Exists"}])],
    )
    free_gpus = await found(cluster)
    assert free_gpus is not None
    assert (free_gpus.free, free_gpus.largest_node) == ((7,), 8)


async def test_what_cannot_be_told_is_not_known() -> None:
    node, pod = node_object(labels=H100), gpu_pod()
    nothing_known = {
        "its pods are not seen": Devices(nodes=[node], pods=[gpu_pod("other")]),
        "no node has devices": Devices(nodes=[], pods=[pod]),
        "its pods hold none": Devices(nodes=[node], pods=[gpu_pod(containers=[{"name": "vllm"}])]),
        "two kinds of devices": Devices(
            nodes=[node],
            pods=[gpu_pod(containers=[{"resources": {"limits": {"x.io/gpu": "1", "x.io/gpu-memory": "20"}}}])],
        ),
        "nodes come on demand": Devices(nodes=[node_object(labels={"karpenter.sh/nodepool": "gpus"})], pods=[pod]),
    }
    for why, cluster in nothing_known.items():
        assert await found(cluster) is None, why


async def test_the_resource_is_the_one_that_the_spec_names() -> None:
    both = {"nvidia.com/gpu": "2", "rdma/hca": "1"}
    cluster = Devices(
        nodes=[node_object(devices=8)], pods=[gpu_pod(containers=[{"name": "vllm", "resources": {"limits": both}}])]
    )
    named = await found(cluster, accelerator={"resourceName": "nvidia.com/gpu"})
    assert named is not None
    assert (named.free, named.devices) == ((6,), 2)
    assert await found(cluster) == named, "the only one that is a GPU"
    assert await found(cluster, accelerator={"resourceName": "amd.com/gpu"}) is None


@pytest.mark.parametrize(
    "error",
    [Refused("nodes: forbidden", reason="Forbidden", status=403), Unavailable("no answer", reason="NoAnswer")],
    ids=str,
)
async def test_what_cannot_be_read_is_not_known_until_it_can(error: Exception) -> None:
    cluster = Devices(nodes=[node_object()], pods=[gpu_pod()])
    looked = free_gpu_lookup(cluster)
    await looked.look(START)
    nodes, cluster.answers["Node"] = cluster.answers["Node"], error
    later = START + LOOK_EVERY
    await looked.look(later)
    assert looked.of(service(), ["chat-0"], now=later) is None
    cluster.answers["Node"] = nodes
    await looked.look(later + LOOK_EVERY)
    assert looked.of(service(), ["chat-0"], now=later + LOOK_EVERY) is not None


async def test_an_old_answer_is_none() -> None:
    looked = free_gpu_lookup(Devices(nodes=[node_object()], pods=[gpu_pod()]))
    assert looked.is_due(START)
    await looked.look(START)
    soon = START + LOOK_EVERY - timedelta(seconds=1)
    assert not looked.is_due(soon)
    assert looked.of(service(), ["chat-0"], now=soon) is not None
    assert looked.is_due(START + LOOK_EVERY)
    assert looked.of(service(), ["chat-0"], now=START + LOOK_EVERY) is None


async def test_a_slow_list_goes_on_in_the_next_tick() -> None:
    pods = [gpu_pod("chat-0", devices=2), *(gpu_pod(f"other-{number}") for number in range(4))]
    cluster = Devices(nodes=[node_object("a")], pods=pods, quotas=[quota("9")])
    cluster.takes = 2.0
    looked, ticks = free_gpu_lookup(cluster), 0
    while looked.of(service(), ["chat-0"], now=START) is None:
        ticks += 1
        looked.begin_tick()
        began = cluster.clock
        while looked.is_due(START):  # each service that may need GPUs asks
            await looked.look(START)
        assert cluster.clock - began <= READ_TICK_SECONDS.limit + cluster.takes
    assert ticks == 3
    assert cluster.beats >= 7
    assert [kind for kind, _ in cluster.asked] == ["Node", "Pod", "ResourceQuota"]


async def test_a_page_that_does_not_come_holds_up_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may take half a minute for a page, two ticks; all decisions that follow would wait for it."""
    monkeypatch.setattr(free_gpus, "READ_TICK_SECONDS", replace(READ_TICK_SECONDS, limit=cast(Any, 0.05)))
    cluster, comes = Devices(nodes=[node_object("a")], pods=[gpu_pod("chat-0", devices=2)]), asyncio.Event()
    pages = cluster.pages

    async def slow_pages(kind: Kind, *, fields: str = "") -> AsyncIterator[Page]:
        if kind == POD:
            await comes.wait()
        async for page in pages(kind, fields=fields):
            yield page

    monkeypatch.setattr(cluster, "pages", slow_pages)
    looked = free_gpu_lookup(cluster)
    for _ in range(2):
        looked.begin_tick()
        async with asyncio.timeout(PATIENCE):
            await looked.look(START)
        assert not looked.is_due(START), "out of time"
    comes.set()
    looked.begin_tick()
    await looked.look(START)
    assert looked.of(service(), ["chat-0"], now=START) is not None
    assert [kind for kind, _ in cluster.asked] == ["Node", "Pod", "ResourceQuota"]


async def test_while_a_slow_list_is_read_the_last_answer_holds() -> None:
    pods = [gpu_pod("chat-0", devices=2), *(gpu_pod(f"other-{number}") for number in range(4))]
    cluster = Devices(nodes=[node_object("a")], pods=pods)
    looked = free_gpu_lookup(cluster)
    await looked.look(START)
    cluster.takes, later = 4.0, START + LOOK_EVERY
    looked.begin_tick()
    assert looked.is_due(later)
    await looked.look(later)
    assert not looked.is_due(later), "out of time"
    assert looked.of(service(), ["chat-0"], now=later) is not None
    looked.begin_tick()
    looked.begin_tick()
    assert looked.of(service(), ["chat-0"], now=later) is None, "nobody goes on with it"


async def test_a_list_that_no_tick_went_on_with_is_begun_anew() -> None:
    cluster = Devices(nodes=[node_object("a")], pods=[gpu_pod("chat-0"), gpu_pod("other")])
    cluster.takes = 4.0
    looked = free_gpu_lookup(cluster)
    await looked.look(START)
    looked.begin_tick()
    looked.begin_tick()
    await looked.look(START)
    assert [kind for kind, _ in cluster.asked] == ["Node", "Pod", "Node", "Pod"]


async def test_an_answer_of_before_the_clock_was_set_back_is_old() -> None:
    looked = free_gpu_lookup(Devices(nodes=[node_object()], pods=[gpu_pod()]))
    await looked.look(START)
    assert looked.is_due(START - timedelta(days=1))


def test_who_may_not_look_is_never_due() -> None:
    assert not free_gpu_lookup(Devices(nodes=[], pods=[]), enabled=False).is_due(START)


def test_a_pod_holds_what_runs_side_by_side_or_the_one_start_that_needs_more() -> None:
    def needs(count: int, **rest: Any) -> dict[str, Any]:
        return {"resources": {"limits": {"nvidia.com/gpu": str(count)}}} | rest

    body = gpu_pod(
        containers=[needs(2), {"name": "sidecar"}], initContainers=[needs(1, restartPolicy="Always"), needs(1)]
    )
    held = held_devices(body)
    assert held is not None
    assert held.devices == {"nvidia.com/gpu": 3}
    body["spec"]["initContainers"].append(needs(4))
    again = held_devices(body)
    assert again is not None
    assert again.devices == {"nvidia.com/gpu": 4}
    assert held_devices(body | {"status": {"phase": "Succeeded"}}) is None


@pytest.mark.parametrize(
    ("label", "product"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", ""),
        ("Tesla-T4-SHARED", ""),
    ],
)
def test_a_part_of_a_gpu_is_no_gpu_of_that_name(label: str, product: str) -> None:
    node = node_view(node_object(labels={"nvidia.com/gpu.product": label}))
    assert node is not None
    assert node.product == product


def test_amounts_that_are_no_counts_are_not_devices() -> None:
    body = node_object()
    body["status"]["allocatable"] |= {"hugepages-1Gi": "2", "attachable.kubernetes.io/x": "3", "example.com/y": "1k"}
    node = node_view(body)
    assert node is not None
    assert node.allocatable == {"nvidia.com/gpu": 8}


def test_a_quota_for_some_pods_only_forbids_nothing_here() -> None:
    assert devices_left(quota("4", used="5")) == {"nvidia.com/gpu": -1}
    assert devices_left(quota("4", scopes=["BestEffort"])) == {}
    assert devices_left(quota("0", used="0")) == {"nvidia.com/gpu": 0}


def test_which_resource_is_the_gpus() -> None:
    assert gpu_resource({"nvidia.com/mig-1g.10gb": 1, "rdma/hca": 1}, asked_for=None) == "nvidia.com/mig-1g.10gb"
    assert gpu_resource({"habana.ai/gaudi": 8}, asked_for=None) == "habana.ai/gaudi"
    assert gpu_resource({"a.io/x": 1, "b.io/y": 1}, asked_for=None) is None
