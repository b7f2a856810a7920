"""The scheduler's arithmetic over plain values."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.planning.placement import FreeGpus, GpuNode, Taint, Toleration, admitting, free_gpus_on

H100 = {"nvidia.com/gpu.product": "H100"}
NODES = (
    GpuNode(name="a", allocatable=8, labels=H100),
    GpuNode(name="b", allocatable=8, labels=H100, taints=(Taint(key="team", value="ml"),)),
    GpuNode(name="c", allocatable=4, labels=H100, schedulable=False),
    GpuNode(name="d", allocatable=4, labels={"nvidia.com/gpu.product": "A100"}),
    GpuNode(name="e", allocatable=2, labels=H100, taints=(Taint(key="spot", effect="PreferNoSchedule"),)),
)
HELD = {"a": 5, "b": 1, "gone": 8}


@pytest.mark.parametrize(
    ("tolerations", "free"),
    [
        pytest.param((), (3, 2), id="taints keep pods away, preferences do not"),
        pytest.param((Toleration(key="team", value="ml"),), (7, 3, 2), id="a tolerated taint"),
        pytest.param((Toleration(key="team", value="web"),), (3, 2), id="another value is another taint"),
        pytest.param((Toleration(key="team"),), (7, 3, 2), id="any value"),
        pytest.param((Toleration(),), (7, 3, 2), id="everything"),
        pytest.param((Toleration(key="team", effect="NoExecute"),), (3, 2), id="another effect"),
    ],
)
def test_what_is_free(tolerations: tuple[Toleration, ...], free: tuple[int, ...]) -> None:
    nodes = admitting(NODES, selector=H100, tolerations=tolerations)
    assert free_gpus_on(nodes, held=HELD).free == free


def test_a_pod_is_not_split_over_nodes() -> None:
    free_gpus = FreeGpus(free=(3, 3, 2), largest_node=8)
    assert [free_gpus.pods(devices) for devices in (0, 1, 2, 3, 4)] == [0, 8, 3, 2, 0]


def test_without_a_node_there_is_no_room() -> None:
    assert free_gpus_on((), held=HELD) == FreeGpus(free=(), largest_node=0)
    assert admitting(NODES, selector={"zone": "x"}) == ()


def test_a_node_that_lost_a_device_has_no_room_and_takes_none_from_others() -> None:
    nodes = (GpuNode(name="a", allocatable=1), GpuNode(name="b", allocatable=4))
    assert free_gpus_on(nodes, held={"a": 4}).free == (4, 0)


@pytest.mark.parametrize(
    ("free", "sizes", "fit"),
    [
        pytest.param((4, 2), (2, 4), True, id="the small one leaves the large node whole"),
        pytest.param((4, 1), (2, 2), True, id="both on one node"),
        pytest.param((3, 1), (2, 2), False, id="four are free, but not two by two"),
        pytest.param((1,), (1, 1), False, id="one device for two"),
    ],
)
def test_pods_side_by_side(free: tuple[int, ...], sizes: tuple[int, ...], *, fit: bool) -> None:
    assert FreeGpus(free=free, largest_node=8).holds(*sizes) is fit


def test_a_quota_counts_whatever_is_free() -> None:
    free_gpus = FreeGpus(free=(8,), largest_node=8, quota=3)
    assert (free_gpus.pods(1), free_gpus.pods(2), free_gpus.pods(4)) == (3, 1, 0)
    assert free_gpus.holds(2, 1)
    assert not free_gpus.holds(2, 2)
    assert FreeGpus(free=(8,), largest_node=8, quota=-1).pods(1) == 0


def test_the_present_pods_make_room_for_those_that_replace_them() -> None:
    nodes = (GpuNode(name="a", allocatable=4), GpuNode(name="b", allocatable=4), GpuNode(name="c", allocatable=4))
    free_gpus = free_gpus_on(nodes, held={"a": 4, "b": 4}, own={"a": 2, "b": 2})
    assert (free_gpus.free, free_gpus.vacated) == ((4, 0, 0), (4, 2, 2))
    assert not replace(free_gpus, devices=2).replaces(devices=4, replicas=2)
    assert replace(free_gpus, devices=2).replaces(devices=4, replicas=1)
    assert not replace(free_gpus, devices=2, quota=1).replaces(devices=4, replicas=1)
    assert free_gpus_on(nodes, held={}).replaces(devices=8, replicas=9), "nobody looked for the present ones"


@given(
    st.lists(st.integers(0, 16), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=8),
    st.integers(1, 8),
)
def test_more_pods_never_make_more_room(sizes: list[int], held: list[tuple[int, int]], devices: int) -> None:
    nodes = [GpuNode(name=str(index), allocatable=size) for index, size in enumerate(sizes)]
    taken: Counter[str] = Counter()
    free_gpu_lookup = [free_gpus_on(nodes, held=taken).pods(devices)]
    for node, count in held:
        taken[str(node)] += count
        free_gpu_lookup.append(free_gpus_on(nodes, held=taken).pods(devices))
    assert free_gpu_lookup == sorted(free_gpu_lookup, reverse=True)
    assert free_gpu_lookup[0] == sum(size // devices for size in sizes)
