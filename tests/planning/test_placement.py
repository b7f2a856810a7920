"""The scheduler's arithmetic over plain values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.planning.placement import GpuNode, GpuPod, Room, Taint, Toleration, room_for

H100 = {"nvidia.com/gpu.product": "H100"}
NODES = (
    GpuNode(name="a", allocatable=8, labels=H100),
    GpuNode(name="b", allocatable=8, labels=H100, taints=(Taint(key="team", value="ml"),)),
    GpuNode(name="c", allocatable=4, labels=H100, schedulable=False),
    GpuNode(name="d", allocatable=4, labels={"nvidia.com/gpu.product": "A100"}),
    GpuNode(name="e", allocatable=2, labels=H100, taints=(Taint(key="spot", effect="PreferNoSchedule"),)),
)
PODS = (GpuPod(node="a", devices=5), GpuPod(node="b", devices=1), GpuPod(node="gone", devices=8))


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
    assert room_for(NODES, PODS, selector=H100, tolerations=tolerations).free == free


def test_a_pod_is_not_split_over_nodes() -> None:
    room = Room(free=(3, 3, 2), largest_node=8)
    assert [room.pods(devices) for devices in (0, 1, 2, 3, 4)] == [0, 8, 3, 2, 0]


def test_without_a_node_there_is_no_room() -> None:
    assert room_for((), PODS, selector={}) == Room(free=(), largest_node=0)
    assert room_for(NODES, (), selector={"zone": "x"}).pods(1) == 0


def test_a_node_that_lost_a_device_has_no_room_and_takes_none_from_others() -> None:
    nodes = (GpuNode(name="a", allocatable=1), GpuNode(name="b", allocatable=4))
    assert room_for(nodes, (GpuPod(node="a", devices=4),), selector={}).free == (4, 0)


@given(
    st.lists(st.integers(0, 16), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=8),
    st.integers(1, 8),
)
def test_more_pods_never_make_more_room(sizes: list[int], held: list[tuple[int, int]], devices: int) -> None:
    nodes = [GpuNode(name=str(index), allocatable=size) for index, size in enumerate(sizes)]
    pods = [GpuPod(node=str(node), devices=count) for node, count in held]
    rooms = [room_for(nodes, pods[:count], selector={}).pods(devices) for count in range(len(pods) + 1)]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] == sum(size // devices for size in sizes)
