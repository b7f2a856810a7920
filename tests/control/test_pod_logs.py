"""Logs that nobody sends cost a tick a bounded time, and no service its rollback."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.control.cluster_model import ApiServer
from tests.control.loop_bed import bed, queueing
from tests.control.test_canary import ask, until

from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.cluster.errors import NotFound, Unavailable
from vllm_autotuner.control.read import crash_causes, pod_logs
from vllm_autotuner.engine.startup_log import StartupFailure, parse_startup_failure

SERVICES = 12
LIMITS = {"LOG_READ_SECONDS": 0.05, "LOG_TICK_SECONDS": 0.2}
"""Seconds of real time, instead of 3 and 5."""
PATIENCE = 60.0
"""Seconds of real time after which a tick counts as one that waits for ever, however busy the machine is."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pods whose logs were asked for; no kubelet answers."""
    names: list[str] = []

    async def hangs(self: ApiServer, namespace: str, name: str, container: str, **cut: Any) -> str:
        names.append(name)
        await asyncio.Event().wait()
        raise AssertionError("never comes here")

    monkeypatch.setattr(ApiServer, "pod_log", hangs)
    for name, limit in LIMITS.items():
        monkeypatch.setattr(pod_logs, name, replace(getattr(pod_logs, name), limit=limit))
    return names


@pytest.mark.fault("T47")
async def test_twelve_services_on_a_zone_that_is_gone_do_not_make_a_tick_long(asked: list[str]) -> None:
    found = bed(*(f"chat-{number}" for number in range(SERVICES)), crashes=lambda seats: True)
    found.api.node = lambda pod: f"node-of-{pod.name}"
    async with asyncio.timeout(PATIENCE):
        await found.ticks(6)
    assert len(asked) == SERVICES, "every service was given its chance, and no silent node a second one"


@pytest.mark.fault("T47")
async def test_logs_that_do_not_come_do_not_delay_a_rollback(asked: list[str]) -> None:
    found = bed("chat", load=queueing)
    await until(found, ChangeState.ANALYZING, at_most=100)
    found.api.crashes = lambda seats: True
    ask(found, "rollback", "now")
    async with asyncio.timeout(PATIENCE):
        await found.tick()
    assert found.seats() == 64


async def test_a_log_is_read_once_for_each_end_of_a_container() -> None:
    found = bed(crashes=lambda seats: True)
    await found.ticks(10)
    assert found.api.requests["log"] == 1


@pytest.mark.parametrize("readable", [True, False], ids=["the log", "what the kubelet keeps of it"])
async def test_what_an_engine_said_at_its_end_is_parsed_once(monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    parsed: list[str] = []

    def counting(text: str) -> StartupFailure | None:
        parsed.append(text)
        return parse_startup_failure(text)

    monkeypatch.setattr(crash_causes, "parse_startup_failure", counting)
    found = bed("chat", "search", crashes=lambda seats: True)
    if not readable:
        monkeypatch.setattr(ApiServer, "pod_log", _no_log)
    await found.ticks(10)
    assert len(parsed) == 2, "once for each end of a container"
    causes = found.loop._services._causes
    found.api.pods.clear()
    found.api.crashes = lambda seats: False
    await found.ticks(6)
    assert not causes._known
    assert not causes._kept, "forgotten with the pods"


async def _no_log(self: ApiServer, namespace: str, name: str, container: str, **cut: Any) -> str:
    raise NotFound("no such log", reason="NotFound", status=404)


async def test_a_node_that_answers_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bed(crashes=lambda seats: True)
    real, silent = ApiServer.pod_log, [True]

    async def log(self: ApiServer, namespace: str, name: str, container: str, **cut: Any) -> str:
        if silent[0]:
            self.requests["log"] += 1
            raise Unavailable("kubelet does not answer", reason="NoAnswer")
        return await real(self, namespace, name, container, **cut)

    monkeypatch.setattr(ApiServer, "pod_log", log)
    await found.ticks(5)
    assert found.api.requests["log"] == 1
    silent[0] = False
    await found.ticks(int(timedelta(seconds=pod_logs.SILENT_FOR) / timedelta(seconds=15)))
    diagnosis = found.status().diagnosis
    assert diagnosis is not None
    assert "OutOfMemory" in diagnosis.message


async def test_a_log_that_the_api_server_had_no_time_for_is_asked_for_again_in_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What says 429 is not the node: a change that is verified waited two minutes for it."""
    found, real, refused = bed("chat", load=queueing), ApiServer.pod_log, list[str]()

    async def log(self: ApiServer, namespace: str, name: str, container: str, **cut: Any) -> str:
        if not refused:
            refused.append(name)
            raise Unavailable("too many requests", reason="TooManyRequests", status=429)
        return await real(self, namespace, name, container, **cut)

    monkeypatch.setattr(ApiServer, "pod_log", log)
    await until(found, ChangeState.VERIFYING, at_most=100)
    while not refused:
        await found.tick()
    await found.tick()
    change = found.change()
    assert change is not None
    assert change.state is ChangeState.WARMING_UP
