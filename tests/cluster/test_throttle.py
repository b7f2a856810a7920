"""The pace of writes, in virtual time."""

import asyncio

import pytest
from tests.cluster.virtual_time import Clock

from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings


def throttle(clock: Clock, *, per_second: float = 20, burst: int = 40, concurrent: int = 16) -> Throttle:
    settings = ThrottleSettings(per_second=per_second, burst=burst, concurrent=concurrent)
    return Throttle(settings, monotonic=clock.monotonic, sleep=clock.sleep)


async def write(gate: Throttle, times: int = 1) -> None:
    for _ in range(times):
        async with gate:
            pass


async def test_a_burst_passes_at_once_and_the_rest_at_the_sustained_rate() -> None:
    clock = Clock()
    gate = throttle(clock)
    await write(gate, 40)
    assert clock.now == 1000.0
    await write(gate, 100)
    assert clock.now == pytest.approx(1000.0 + 100 / 20)


async def test_quiet_time_refills_the_bucket_but_not_beyond_the_burst() -> None:
    clock = Clock()
    gate = throttle(clock)
    await write(gate, 40)
    clock.now += 3600
    await write(gate, 40)
    assert clock.now == 4600.0
    await write(gate)
    assert clock.now > 4600.0


async def test_retry_after_closes_the_gate_for_all() -> None:
    clock = Clock()
    gate = throttle(clock)
    gate.pause(7.0)
    gate.pause(2.0)
    await write(gate)
    assert clock.now == pytest.approx(1007.0)


async def test_no_more_than_the_agreed_number_are_under_way() -> None:
    gate = throttle(Clock(), concurrent=3, burst=100)
    under_way = highest = 0

    async def one() -> None:
        nonlocal under_way, highest
        async with gate:
            under_way += 1
            highest = max(highest, under_way)
            await asyncio.sleep(0)
            under_way -= 1

    await asyncio.gather(*(one() for _ in range(20)))
    assert highest == 3


async def test_a_cancelled_waiter_gives_its_slot_back() -> None:
    clock = Clock()
    gate = throttle(clock, concurrent=1)
    released = asyncio.Event()

    async def hold() -> None:
        async with gate:
            await released.wait()

    holder = asyncio.create_task(hold())
    waiter = asyncio.create_task(write(gate))
    await asyncio.sleep(0)
    waiter.cancel()
    released.set()
    await asyncio.gather(holder, waiter, return_exceptions=True)
    await write(gate)
