"""An API server that asks for patience (429): what it did not execute is asked of it again, a little later."""

from typing import Any, cast

import pytest
from tests.control.objects import service_object
from typing_extensions import override

from vllm_autotuner.cluster.adapter import CONFLICT_PAUSES, TRIES, Cluster
from vllm_autotuner.cluster.client import Connection
from vllm_autotuner.cluster.errors import NO_ANSWER, NOT_LEADER, Conflict, NotFound, Unavailable
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.workload.labels import SERVICE


def busy(retry_after: float | None) -> Unavailable:
    return Unavailable("too many requests", reason="TooManyRequests", status=429, retry_after=retry_after)


class Refusing:
    """An API server that refuses the first requests, and then executes them; its clock moves by sleeping."""

    def __init__(self, *errors: Unavailable) -> None:
        self.errors = [*errors]
        self.asked: list[str] = []
        self.slept: list[float] = []
        self.leads = True

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(method)
        if self.errors:
            raise self.errors.pop(0)
        return service_object(version="8")

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def cluster(self) -> Cluster:
        throttle = Throttle(ThrottleSettings(), monotonic=lambda: sum(self.slept), sleep=self.sleep)
        return Cluster(
            cast(Connection, self), throttle=throttle, instance="test", may_write=lambda: self.leads, sleep=self.sleep
        )


@pytest.mark.parametrize("asks_for", [None, 1.0])
async def test_what_was_refused_is_asked_again_after_the_pause(asks_for: float | None) -> None:
    api = Refusing(busy(asks_for), busy(asks_for))
    written = await api.cluster().write_status("prod", "chat", {}, resource_version="7")
    assert written["metadata"]["resourceVersion"] == "8"
    assert api.asked == ["PUT"] * 3
    assert api.slept == [1.0, 1.0]


async def test_what_is_refused_all_the_time_is_left_to_the_next_tick() -> None:
    api = Refusing(*[busy(1.0)] * 9)
    with pytest.raises(Unavailable):
        await api.cluster().read_service("prod", "chat")
    assert len(api.asked) == TRIES


@pytest.mark.parametrize("error", [busy(20.0), Unavailable("timed out", reason=NO_ANSWER)], ids=["20 s", "no answer"])
async def test_what_may_have_been_executed_or_is_to_wait_for_long_is_not(error: Unavailable) -> None:
    api = Refusing(error)
    with pytest.raises(Unavailable):
        await api.cluster().write_status("prod", "chat", {}, resource_version="7")
    assert api.asked == ["PUT"]
    assert api.slept == []


async def test_who_lost_the_lease_meanwhile_writes_nothing() -> None:
    api = Refusing(busy(1.0))

    async def sleep_and_lose(seconds: float) -> None:
        api.leads = False

    cluster = api.cluster()
    cluster._sleep = sleep_and_lose
    with pytest.raises(Unavailable) as caught:
        await cluster.write_status("prod", "chat", {}, resource_version="7")
    assert caught.value.reason == NOT_LEADER
    assert api.asked == ["PUT"]


class Contended(Refusing):
    """An API server where a controller writes the object between each look and the write after it."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    @override
    async def request(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        if method == "GET":
            raise NotFound("not there yet", reason="NotFound", status=404)
        answer = await super().request(method, path, **how)
        if len(self.asked) <= self.times:
            raise Conflict("the object has been modified", reason="Conflict", status=409)
        return answer


CHILD = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "prod", "labels": {SERVICE: "chat"}},
}


async def test_what_a_controller_writes_too_is_looked_at_again_after_longer_and_longer() -> None:
    api = Contended(times=len(CONFLICT_PAUSES))
    cluster, outcomes = api.cluster(), list[str]()
    cluster._observe = lambda verb, kind, outcome: outcomes.append(outcome)
    await cluster.apply(CHILD, epoch=1)
    assert api.slept == [*CONFLICT_PAUSES]
    assert outcomes == ["Conflict"] * len(CONFLICT_PAUSES) + ["Done"], "only one was written"


async def test_what_is_written_all_the_time_is_left_to_the_next_tick() -> None:
    api = Contended(times=99)
    with pytest.raises(Conflict):
        await api.cluster().apply(CHILD, epoch=1)
    assert len(api.asked) == len(CONFLICT_PAUSES) + 1
