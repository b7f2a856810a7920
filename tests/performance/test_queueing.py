"""Waiting for a seat, against Erlang's formula as sums and against arrivals that are played."""

import math
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.performance.queueing import wait_for_slot


@pytest.mark.parametrize(("seats", "seconds"), [(36, 0.448), (30, 6.294), (28, math.inf), (64, 0.0)])
def test_the_worked_example(seats: int, seconds: float) -> None:
    assert wait_for_slot(28.0, slots=seats, held=5.0, quantile=0.95) == pytest.approx(seconds, abs=0.001)


@given(busy=st.floats(0.1, 40), spare=st.integers(1, 20), held=st.floats(0.1, 100), quantile=st.floats(0.5, 0.99))
def test_erlang_c_as_it_is_written_in_books(busy: float, spare: int, held: float, quantile: float) -> None:
    seats = math.floor(busy) + spare
    last = busy**seats / math.factorial(seats) * seats / (seats - busy)
    waiting = last / (sum(busy**k / math.factorial(k) for k in range(seats)) + last)
    found = wait_for_slot(busy, slots=seats, held=held, quantile=quantile)
    beyond = waiting * math.exp(-(seats - busy) * found / held)
    assert beyond == pytest.approx(1 - quantile, rel=1e-6) if found > 0 else waiting <= (1 - quantile) * (1 + 1e-9)


@given(busy=st.floats(0.0, 300), seats=st.integers(1, 2000), more=st.integers(1, 100), burstiness=st.floats(1.0, 30.0))
def test_with_more_slots_requests_never_wait_longer(busy: float, seats: int, more: int, burstiness: float) -> None:
    fewer, enough = (
        wait_for_slot(busy, slots=count, held=3.0, quantile=0.95, burstiness=burstiness)
        for count in (seats, seats + more)
    )
    assert 0 <= enough <= fewer


def played(*, slots: int, share: float, burstiness: float) -> float:
    """p95 of the waits of 200,000 requests in the order in which they come, each a second long in the mean.

    The gaps between them are gamma-distributed; over long windows the arrivals vary as much as these do.
    """
    random, free, clock, waits = Random(7), [0.0] * slots, 0.0, []
    for _ in range(200_000):
        clock += random.gammavariate(1 / burstiness, burstiness / (slots * share))
        first = heappop(free)
        waits.append(max(0.0, first - clock))
        heappush(free, max(first, clock) + random.expovariate(1.0))
    return sorted(waits)[round(0.95 * len(waits))]


@pytest.mark.parametrize(
    ("slots", "share", "burstiness"),
    [
        pytest.param(2, 0.75, 1.0, id="two slots, independent requests"),
        pytest.param(16, 0.7, 4.0, id="bursts"),
        pytest.param(16, 0.85, 16.0, id="large bursts"),
        pytest.param(64, 0.7, 16.0, id="large bursts and as large a reserve: without them nobody would wait"),
        pytest.param(64, 0.85, 4.0, id="bursts and many slots"),
    ],
)
def test_as_arrivals_that_are_played(slots: int, share: float, burstiness: float) -> None:
    foretold = wait_for_slot(share * slots, slots=slots, held=1.0, quantile=0.95, burstiness=burstiness)
    assert foretold == pytest.approx(played(slots=slots, share=share, burstiness=burstiness), rel=0.12)
