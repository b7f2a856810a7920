"""The queue of the fleet: which service begins, and that none waits for ever."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.guardrails.concurrency import (
    CHANGES_AT_ONCE,
    EXTRA_GPUS,
    Asking,
    Running,
    Share,
    next_to_begin,
    parse_share,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def asks(key: str, *, minutes: float = 0, gpus: int = 1) -> Asking:
    """A service that has waited for so many minutes."""
    return Asking(key=key, since=NOW - timedelta(minutes=minutes), gpus=gpus)


@pytest.mark.parametrize(
    ("asking", "running", "changes", "gpus", "begin"),
    [
        pytest.param([], [], 1, 1, [], id="nobody asks"),
        pytest.param([asks("a")], [], 1, 1, ["a"], id="one asks and nothing runs"),
        pytest.param([asks("a")], [1], 1, 9, [], id="as many run as may"),
        pytest.param([asks("a"), asks("b", minutes=5)], [], 1, 9, ["b"], id="the longest waiting first"),
        pytest.param([asks("a"), asks("b", minutes=5), asks("c", minutes=9)], [1], 3, 9, ["c", "b"], id="two places"),
        pytest.param([asks("big", gpus=8)], [], 2, 1, ["big"], id="one change always runs, whatever it needs"),
        pytest.param([asks("big", gpus=8)], [1], 2, 8, [], id="too many GPUs beside what runs"),
        pytest.param(
            [asks("big", minutes=5, gpus=8), asks("small")], [1], 9, 8, [], id="nobody overtakes who waits for GPUs"
        ),
        pytest.param([asks("a", gpus=2), asks("b", minutes=1, gpus=2)], [2], 9, 6, ["b", "a"], id="they fit together"),
    ],
)
def test_who_begins(asking: list[Asking], running: list[int], changes: int, gpus: int, begin: list[str]) -> None:
    found = next_to_begin(asking, running=[Running(gpus=each) for each in running], changes=changes, gpus=gpus)
    assert [each.key for each in found] == begin


@pytest.mark.parametrize(
    ("share", "whole", "found"),
    [
        (CHANGES_AT_ONCE, 0, 1),
        (CHANGES_AT_ONCE, 19, 1),
        (CHANGES_AT_ONCE, 40, 2),
        (EXTRA_GPUS, 200, 20),
        (Share(number=3), 1, 3),
        (Share(percent=100), 7, 7),
    ],
)
def test_a_share_is_one_at_least(share: Share, whole: int, found: int) -> None:
    assert share.of(whole) == found


@pytest.mark.parametrize("text", ["3", "5%", "100%"])
def test_a_share_reads_as_it_is_written(text: str) -> None:
    assert parse_share(text).text == text


@pytest.mark.parametrize("text", ["", "0", "-1", "0%", "101%", "5 percent", "half", "٣", "1.5"])
def test_a_share_that_means_nothing_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="a number of at least 1, or a percentage"):
        parse_share(text)


PARKED = Running(gpus=2, parked=True)


@pytest.mark.parametrize(
    ("running", "changes", "gpus", "begin"),
    [
        pytest.param([PARKED], 1, 1, ["b"], id="one that a person paused keeps no turn"),
        pytest.param([PARKED, PARKED], 1, 1, ["b"], id="nor do two"),
        pytest.param([PARKED, Running()], 1, 99, [], id="another one runs"),
        pytest.param([PARKED], 2, 4, ["b", "a"], id="room for two beside its GPUs"),
        pytest.param([PARKED], 2, 3, ["b"], id="its GPUs are in use"),
    ],
)
def test_a_change_that_a_person_paused_keeps_its_gpus_and_no_turn(
    running: list[Running], changes: int, gpus: int, begin: list[str]
) -> None:
    found = next_to_begin([asks("a"), asks("b", minutes=5)], running=running, changes=changes, gpus=gpus)
    assert [each.key for each in found] == begin


QUEUES = st.lists(
    st.builds(asks, st.uuids().map(str), minutes=st.integers(0, 3), gpus=st.integers(1, 8)),
    max_size=12,
    unique_by=lambda each: each.key,
)


@given(
    asking=QUEUES, running=st.lists(st.integers(1, 8), max_size=4), changes=st.integers(1, 5), gpus=st.integers(1, 24)
)
def test_the_limits_hold_and_the_order_of_asking_is_all_that_counts(
    asking: list[Asking], running: list[int], changes: int, gpus: int
) -> None:
    under_way = [Running(gpus=each) for each in running]
    begin = next_to_begin(asking, running=under_way, changes=changes, gpus=gpus)
    assert len(begin) + len(running) <= max(changes, len(running))
    used = sum(running) + sum(each.gpus for each in begin)
    assert not begin or used <= gpus or (not running and len(begin) == 1)
    others = [each for each in asking if each not in begin]
    assert all(first.since <= other.since for first in begin for other in others), "somebody was overtaken"
    assert begin == next_to_begin(asking[::-1], running=under_way, changes=changes, gpus=gpus), "the order of the list"
    if asking and not running:
        assert begin, "nothing runs, and yet nobody begins"


@pytest.mark.fault("T42")
@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    lengths=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    changes=st.integers(1, 3),
    limit=st.integers(1, 16),
)
def test_while_one_waits_every_other_begins_at_most_once(
    gpus: list[int], lengths: list[int], changes: int, limit: int
) -> None:
    """All ask again as soon as their change is over, as a service does whose changes always fail."""
    asked = dict.fromkeys(range(len(gpus)), 0)
    ends: dict[int, int] = {}
    begun: list[tuple[int, int]] = []
    for tick in range(len(gpus) * 20):
        for each in [one for one, end in ends.items() if end <= tick]:
            del ends[each]
            asked[each] = tick
        asking = [
            Asking(key=str(one), since=NOW + timedelta(seconds=since), gpus=gpus[one])
            for one, since in asked.items()
            if one not in ends
        ]
        running = [Running(gpus=gpus[one]) for one in ends]
        for found in next_to_begin(asking, running=running, changes=changes, gpus=limit):
            one = int(found.key)
            meanwhile = [other for other, when in begun if when >= asked[one]]
            assert len(meanwhile) == len(set(meanwhile)), (one, begun)
            ends[one] = tick + lengths[one]
            begun.append((one, tick))
    assert {one for one, _ in begun} == set(asked)


def order_of(queue: list[Asking], *, failing: set[str]) -> list[str]:
    """Who begins after whom where each change takes 5 min, and those of `failing` namespaces fail."""
    now, order, failed = NOW, list[str](), dict[str, datetime]()
    while queue:
        (begins,) = next_to_begin(queue, running=[], changes=1, gpus=9, failed=failed)
        queue.remove(begins)
        order.append(begins.key)
        now += timedelta(minutes=5)
        if begins.namespace in failing:
            failed[begins.namespace] = now
    return order


def tenant(name: str, *, services: int, minutes: float) -> list[Asking]:
    """Services of one namespace that have all waited for so many minutes."""
    return [replace(asks(f"{name}-{number}", minutes=minutes), namespace=name) for number in range(services)]


@pytest.mark.fault("T42")
def test_a_tenant_with_many_failing_services_holds_another_up_for_one_turn() -> None:
    """The other tenant waits for 5 min; by the time of asking alone it would be for 20 turns of 5 min."""
    queue = [*tenant("noisy", services=20, minutes=2), *tenant("calm", services=1, minutes=1)]
    assert order_of(queue, failing={"noisy"}).index("calm-0") == 1


def test_two_tenants_whose_changes_fail_take_turns() -> None:
    queue = [*tenant("noisy", services=20, minutes=2), *tenant("odd", services=3, minutes=1)]
    order = [key.partition("-")[0] for key in order_of(queue, failing={"noisy", "odd"})]
    assert order[:6] == ["noisy", "odd"] * 3


def test_in_a_single_namespace_failures_leave_the_order_as_it_is() -> None:
    queue = [replace(asks(str(number), minutes=number), namespace="all") for number in range(5)]
    assert order_of(queue, failing={"all"}) == ["4", "3", "2", "1", "0"]
