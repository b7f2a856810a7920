"""The election in virtual time: two contenders on one Lease, and everything that happens to the holder."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.cluster.virtual_time import Clock

from vllm_autotuner.cluster.errors import ClusterError, Conflict, NotFound, Unavailable
from vllm_autotuner.cluster.lease import Election, LeaseSettings

SETTINGS = LeaseSettings()


class LeaseApi:
    """One Lease with the API server's optimistic concurrency, and faults on demand."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.writes = 0

    async def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        if method == "GET":
            if self.stored is None:
                raise NotFound("no lease", reason="NotFound", status=404)
            return dict(self.stored)
        assert body is not None
        exists = self.stored is not None
        if not exists and method == "PUT":
            raise NotFound("no lease", reason="NotFound", status=404)
        if exists and (method == "POST" or body["metadata"].get("resourceVersion") != str(self.version)):
            raise Conflict("stale", reason="Conflict", status=409)
        self.version += 1
        self.writes += 1
        self.stored = dict(body) | {"metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return dict(self.stored)


class Faulty:
    """A contender's own way to the API: may fail before the request, or lose the answer after it took effect."""

    def __init__(self, api: LeaseApi) -> None:
        self.api = api
        self.down: ClusterError | None = None
        self.loses_answers = False

    async def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        if self.down is not None:
            raise self.down
        answer = await self.api.request(method, path, body=body, timeout=timeout)
        if self.loses_answers and method != "GET":
            raise Unavailable("timed out", reason="NoAnswer")
        return answer


OUTAGE = Unavailable("no route", reason="NoAnswer")


class Contender:
    """One process: its clock, its connection, its election."""

    def __init__(self, name: str, api: LeaseApi, *, skew: float = 0.0) -> None:
        self.clock = Clock(skew=skew)
        self.way = Faulty(api)
        self.election = Election(
            self.way,
            namespace="ops",
            name="vllm-autotuner",
            identity=name,
            settings=SETTINGS,
            monotonic=self.clock.monotonic,
            wall=self.clock.wall,
        )

    @property
    def leads(self) -> bool:
        return self.election.is_leader


async def pass_time(seconds: float, *contenders: Contender, alive: tuple[Contender, ...] | None = None) -> None:
    """Let time pass in steps of the retry period; at no moment may two lead."""
    running = contenders if alive is None else alive
    steps = round(seconds / 0.5)
    for step in range(steps):
        for contender in contenders:
            contender.clock.now += 0.5
        if step % 4 == 0:
            for contender in running:
                await contender.election.step()
                assert sum(each.leads for each in contenders) <= 1, "two leaders at once"
        assert sum(each.leads for each in contenders) <= 1, "two leaders at once"


@pytest.fixture
def api() -> LeaseApi:
    return LeaseApi()


async def test_the_first_contender_leads_and_stays_leader(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await first.election.step()
    await pass_time(120, first, second)
    assert first.leads
    assert not second.leads
    assert first.election.leading.is_set()
    assert not second.election.leading.is_set()
    assert api.stored is not None
    assert api.stored["spec"]["holderIdentity"] == "a"
    assert api.stored["spec"]["leaseDurationSeconds"] == 15


@pytest.mark.fault("T09", "T33")
@pytest.mark.parametrize("skew", [-86400.0, -5.0, 5.0, 86400.0], ids=lambda skew: f"its clock is {skew:+.0f} s off")
async def test_a_crashed_holder_is_replaced_after_the_lease_whatever_the_clocks_say(api: LeaseApi, skew: float) -> None:
    first, second = Contender("a", api), Contender("b", api, skew=skew)
    await pass_time(10, first, second)
    epoch = first.election.epoch
    await pass_time(13, first, second, alive=(second,))
    assert not second.leads, "took over before the lease was over"
    await pass_time(6, first, second, alive=(second,))
    assert second.leads
    assert not first.leads
    assert second.election.epoch > epoch


@pytest.mark.parametrize("busy", [0, 3], ids=["each is answered", "every third gets 429"])
@pytest.mark.parametrize("takes", [0.0, 2.0, 2.2, 3.0], ids=lambda takes: f"after {takes} s")
async def test_slow_answers_do_not_cost_a_leader_a_moment(
    api: LeaseApi, monkeypatch: pytest.MonkeyPatch, takes: float, busy: int
) -> None:
    """A write in such a moment is refused, and a tick that begins in it forgets all that this leader has learnt."""
    first = Contender("a", api)
    await first.election.step()
    answer, asked = first.way.request, 0

    def wait(seconds: float) -> None:
        until = first.clock.now + seconds
        while first.clock.now < until:
            first.clock.now = min(until, first.clock.now + 0.1)
            assert first.leads

    async def slow(method: str, path: str, **how: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        wait(takes)
        if busy and asked % busy == 0:
            raise Unavailable("too many requests", reason="TooManyRequests", status=429)
        return await answer(method, path, **how)

    monkeypatch.setattr(first.way, "request", slow)
    until = first.clock.now + 300
    while first.clock.now < until:
        wait(first.election._pause())
        await first.election.step()
    assert asked <= 300 / SETTINGS.retry_period + 1


@pytest.mark.fault("T09")
async def test_a_holder_cut_off_from_the_api_stops_before_another_can_take_over(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    first.way.down = OUTAGE
    await pass_time(8, first, second)
    assert first.leads, "one failed renewal is no reason to stop"
    await pass_time(3, first, second)
    assert not first.leads
    assert not first.election.leading.is_set()
    assert not second.leads, "took over while the lease ran"
    await pass_time(8, first, second)
    assert second.leads
    first.way.down = None
    await pass_time(20, first, second)
    assert second.leads
    assert not first.leads


async def test_a_blocked_event_loop_does_not_keep_a_leader(api: LeaseApi) -> None:
    first = Contender("a", api)
    await first.election.step()
    first.clock.now += SETTINGS.renew_deadline - 0.01
    assert first.leads
    first.clock.now += 0.02
    assert not first.leads, "no step ran, and still the property must tell the truth"


async def test_time_counts_from_before_the_request(api: LeaseApi) -> None:
    first = Contender("a", api)
    slow = first.way.request

    async def answers_after_three_seconds(*args: Any, **kwargs: Any) -> dict[str, Any]:
        first.clock.now += 1.5
        return await slow(*args, **kwargs)

    first.way.request = answers_after_three_seconds  # type: ignore[method-assign]
    asked_at = first.clock.now
    await first.election.step()
    first.clock.now = asked_at + SETTINGS.renew_deadline - 0.01
    assert first.leads
    first.clock.now = asked_at + SETTINGS.renew_deadline + 0.01
    assert not first.leads


async def test_a_renewal_whose_answer_was_lost_does_not_cost_the_leadership(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    epoch = first.election.epoch
    first.way.loses_answers = True
    await pass_time(4, first, second)
    first.way.loses_answers = False
    await pass_time(20, first, second)
    assert first.leads
    assert first.election.epoch == epoch


async def test_a_released_lease_is_taken_at_the_next_attempt(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    epoch = first.election.epoch
    await first.election.release()
    assert not first.leads
    assert api.stored is not None
    assert api.stored["spec"]["holderIdentity"] == ""
    await second.election.step()
    assert second.leads
    assert second.election.epoch > epoch


async def test_a_leader_that_lost_the_lease_does_not_release_its_successors(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    await pass_time(30, first, second, alive=(second,))
    writes = api.writes
    await first.election.release()
    assert api.writes == writes
    assert second.leads


async def test_release_during_an_outage_is_silent_and_final(api: LeaseApi) -> None:
    first = Contender("a", api)
    await first.election.step()
    first.way.down = OUTAGE
    await first.election.release()
    assert not first.leads


async def test_a_deleted_lease_is_created_again_with_a_later_epoch(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    epoch = first.election.epoch
    api.stored = None
    second.clock.now += 120
    await second.election.step()
    await first.election.step()
    assert second.election.epoch > epoch
    assert second.leads
    assert not first.leads


async def test_a_lease_deleted_soon_after_a_handover_is_created_with_a_later_epoch(api: LeaseApi) -> None:
    """Children that the former leader stamped must not look like those of a later one."""
    first, second = Contender("a", api), Contender("b", api)
    await pass_time(10, first, second)
    await first.election.release()
    await pass_time(5, second)
    assert second.leads
    epoch = second.election.epoch
    api.stored = None
    first.clock.now += 15
    await first.election.step()
    assert first.leads
    assert first.election.epoch > epoch


async def test_who_starts_slowly_has_waited_for_a_dead_holder_meanwhile(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await first.election.step()
    await second.election.look()
    await pass_time(14, first, second, alive=())
    await second.election.step()
    assert not second.leads, "took over before the lease was over"
    await pass_time(1, first, second, alive=())
    await second.election.step()
    assert second.leads


async def test_a_holder_that_lives_is_not_replaced_by_who_starts_slowly(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    await first.election.step()
    await second.election.look()
    await pass_time(20, first, second, alive=(first,))
    await second.election.step()
    assert first.leads
    assert not second.leads


async def test_a_look_that_fails_is_none(api: LeaseApi) -> None:
    contender = Contender("a", api)
    contender.way.down = OUTAGE
    await contender.election.look()
    contender.way.down = None
    await contender.election.step()
    assert contender.leads


async def test_the_holders_own_lease_duration_counts(api: LeaseApi) -> None:
    second = Contender("b", api)
    api.stored = {
        "metadata": {"name": "vllm-autotuner", "resourceVersion": "0"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 60, "renewTime": "x", "leaseTransitions": 4},
    }
    await pass_time(55, second)
    assert not second.leads
    await pass_time(10, second)
    assert second.leads
    assert second.election.epoch > 4


async def test_of_two_leases_the_one_that_was_taken_later_has_the_later_epoch(api: LeaseApi) -> None:
    """A namespace that moves from one shard to another must not be written by its former leader any more."""
    other = LeaseApi()
    other.stored = {
        "metadata": {"name": "vllm-autotuner-1", "resourceVersion": "0"},
        "spec": {"holderIdentity": "", "leaseTransitions": 4},
    }
    first, second = Contender("a", api), Contender("b", other)
    await pass_time(2, first)
    second.clock.now = first.clock.now + 8
    await second.election.step()
    assert first.leads
    assert second.leads
    assert second.election.epoch > first.election.epoch


@pytest.mark.fault("T09")
async def test_of_two_that_write_at_once_one_wins(api: LeaseApi) -> None:
    first, second = Contender("a", api), Contender("b", api)
    seen = await first.election._api.request("POST", "", body={"metadata": {}, "spec": {"holderIdentity": ""}})
    await first.election.step()
    stale = second.way.request

    async def reads_the_past(method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        return seen if method == "GET" else await stale(method, path, **kwargs)

    second.way.request = reads_the_past  # type: ignore[method-assign]
    await second.election.step()
    assert first.leads
    assert not second.leads


@pytest.mark.parametrize(
    ("lease", "renew", "retry", "request_timeout"),
    [
        pytest.param(10, 10, 2, 4, id="a leader that may outlive its lease"),
        pytest.param(15, 5, 2, 4, id="a deadline that one slow answer exceeds"),
        pytest.param(15, 10, 0, 0, id="no pause at all"),
    ],
)
def test_unsafe_times_are_refused(lease: float, renew: float, retry: float, request_timeout: float) -> None:
    with pytest.raises(ValueError, match="renew_deadline"):
        LeaseSettings(lease_duration=lease, renew_deadline=renew, retry_period=retry, request_timeout=request_timeout)
