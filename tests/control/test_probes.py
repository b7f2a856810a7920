"""The three pages, over real HTTP on a free port, and their end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from tests.cluster.virtual_time import Clock
from tests.patience import PATIENCE

from vllm_autotuner.control.run.liveness import Heartbeat, LoopLag, sample_loop_lag
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics
from vllm_autotuner.control.run.probes import Probes, serve, split_address


@dataclass
class Served:
    """The probes of an operator that a test moves about."""

    clock: Clock
    heartbeat: Heartbeat
    lag: LoopLag
    url: str
    stop: asyncio.Event
    task: asyncio.Task[None]
    ready: bool = False
    leads: bool = False

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status, await response.text()


@pytest.fixture
async def served(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Served]:
    caplog.set_level(logging.INFO)
    clock, stop = Clock(), asyncio.Event()
    heartbeat, lag = Heartbeat(clock.monotonic), LoopLag(clock.monotonic)
    box: list[Served] = []
    probes = Probes(
        heartbeat=heartbeat,
        heartbeat_limit=60,
        lag=lag,
        ready=lambda: box[0].ready,
        metrics=OperatorMetrics(),
        is_leader=lambda: box[0].leads,
    )
    task = asyncio.create_task(serve(probes, listen_address="127.0.0.1:0", stop=stop))
    async with asyncio.timeout(PATIENCE):
        while not (found := [record for record in caplog.records if hasattr(record, "addresses")]):
            await asyncio.sleep(0.01)
    url = f"http://{found[0].addresses[0]}"
    box.append(Served(clock=clock, heartbeat=heartbeat, lag=lag, url=url, stop=stop, task=task))
    yield box[0]
    stop.set()
    await task


async def test_health_is_the_age_of_the_last_beat(served: Served) -> None:
    assert (await served.get("/healthz"))[0] == 200
    served.clock.now += 60
    assert (await served.get("/healthz"))[0] == 200
    served.clock.now += 0.1
    status, text = await served.get("/healthz")
    assert status == 503
    assert "60.1 s ago (limit 60 s)" in text
    served.heartbeat.beat()
    assert (await served.get("/healthz"))[0] == 200


async def test_ready_is_about_knowing_the_fleet_not_about_leading(served: Served) -> None:
    assert (await served.get("/readyz"))[0] == 503
    served.ready = True
    assert (await served.get("/readyz"))[0] == 200


async def test_a_blocked_event_loop_is_not_ready_for_a_minute_and_shows_in_the_metrics(served: Served) -> None:
    served.ready = True
    served.lag.note(0.3)
    assert (await served.get("/readyz"))[0] == 200
    served.lag.note(5.5)
    status, text = await served.get("/readyz")
    assert (status, "blocked for 5.5 s" in text) == (503, True)
    assert "vllm_autotuner_loop_lag_seconds 5.5" in (await served.get("/metrics"))[1]
    served.clock.now += 61
    assert (await served.get("/readyz"))[0] == 200
    assert "vllm_autotuner_loop_lag_seconds 0.0" in (await served.get("/metrics"))[1]


async def test_the_metrics_tell_at_the_scrape_who_leads(served: Served) -> None:
    assert "vllm_autotuner_leader 0.0" in (await served.get("/metrics"))[1]
    served.leads = True
    status, text = await served.get("/metrics")
    assert status == 200
    assert "vllm_autotuner_leader 1.0" in text
    assert "python_info" not in text, "a registry of our own"


async def test_a_client_that_holds_its_connection_does_not_hold_up_the_end(served: Served) -> None:
    async with aiohttp.ClientSession() as session, session.get(served.url + "/readyz") as response:
        await response.read()
        served.stop.set()
        async with asyncio.timeout(30):  # aiohttp by itself would give it a minute
            await served.task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0.0.0.0:8080", ("0.0.0.0", 8080), id="all IPv4 addresses"),
        pytest.param(":8080", ("", 8080), id="all addresses"),
        pytest.param("[::1]:8080", ("::1", 8080), id="an IPv6 address"),
        pytest.param("localhost:0", ("localhost", 0), id="any free port"),
    ],
)
def test_addresses_are_split(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["8080", "", "host:", "host:http", "host:70000"])
def test_what_is_no_address_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="use host:port"):
        split_address(text)


async def test_a_blocked_event_loop_shows_as_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stop = Clock(), asyncio.Event()
    lags: list[float] = []

    def report(lag: float) -> None:
        lags.append(lag)
        stop.set()

    class Blocked:
        """A timer that comes three seconds late."""

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        async def __aenter__(self) -> None:
            clock.now += self._seconds + 3
            raise TimeoutError

        async def __aexit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(asyncio, "timeout", Blocked)
    await sample_loop_lag(stop, monotonic=clock.monotonic, report=report)
    assert lags == [pytest.approx(3)]
