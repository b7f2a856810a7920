import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.virtual import config

from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.ledger import Ended, Fate
from vllm_autotuner.simulation.lengths import Fixed, Uniform
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.simulated_pod import PodState, VirtualPod
from vllm_autotuner.simulation.traffic import ClosedLoop, Content, Mix, OpenLoop, Traffic
from vllm_autotuner.simulation.virtual import ClientPatience, VirtualFleet

CONTENT = Content(Mix(prompt=Uniform(20, 300), output=Uniform(5, 80)))


def open_loop(rate: float = 8.0, *, seed: int = 1, content: Content = CONTENT) -> OpenLoop:
    return OpenLoop(RateCurve.constant(rate), content, seed=seed)


def fleet(traffic: Traffic | None = None, *, pods: int = 1, startup: float = 0.0, **given: Any) -> VirtualFleet:
    """A service of small engines under a light open loop, but for what is named."""
    made = VirtualFleet(traffic or open_loop(), **given)
    for _ in range(pods):
        made.start_pod(config(max_num_seqs=8, num_gpu_blocks=160), startup=startup)
    return made


def rows(of: VirtualFleet) -> Sequence[str]:
    """The ledger as text, to the last bit."""
    return [repr(row) for row in of.ledger]


def fates(of: VirtualFleet) -> Counter[Fate]:
    return Counter(row.fate for row in of.ledger)


def states(of: VirtualFleet) -> list[PodState]:
    return [pod.state for pod in of.pods]


TRAFFICS: Sequence[Callable[[], Traffic]] = (open_loop, lambda: ClosedLoop(20, CONTENT, think=0.5, seed=3))


@pytest.mark.parametrize("traffic", TRAFFICS, ids=["open loop", "closed loop"])
@settings(max_examples=15, deadline=None)
@given(
    story=st.lists(
        st.tuples(
            st.floats(0.1, 15.0),
            st.sampled_from(["start", "terminate", "drain", "crash", "wedge", "wait"]),
            st.integers(0, 5),
        ),
        max_size=8,
    ),
    timeout=st.sampled_from([2.0, 20.0, math.inf]),
    retries=st.integers(0, 2),
    routing=st.sampled_from(list(Routing)),
)
def test_every_request_ends_exactly_once_whatever_happens_to_pods(
    traffic: Callable[[], Traffic], story: list[tuple[float, str, int]], timeout: float, retries: int, routing: Routing
) -> None:
    tried = fleet(
        traffic(), pods=2, startup=1.0, routing=routing, patience=ClientPatience(timeout=timeout, retries=retries)
    )
    for pause, what, which in story:
        tried.advance(tried.now + pause)
        pod: VirtualPod | None = tried.pods[which % len(tried.pods)] if tried.pods else None
        match what, pod:
            case "start", _:
                tried.start_pod(config(max_num_seqs=8, num_gpu_blocks=160), startup=2.0)
            case "terminate", VirtualPod():
                tried.terminate(pod)
            case "drain", VirtualPod():
                tried.terminate(pod, grace=3.0)
            case "crash", VirtualPod():
                tried.crash(pod)
            case "wedge", VirtualPod():
                tried.wedge(pod)
            case _:
                pass
    tried.advance(tried.now + 10.0)
    ended = [row.number for row in tried.ledger]
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(range(tried.arrived))
    under_way = sum(len(pod.under_way) for pod in tried.pods)
    assert under_way <= tried.in_flight == tried.arrived - len(ended)
    times = [row.ended for row in tried.ledger]
    assert times == sorted(times)
    # What engines hold is what the fleet believes to be under way.
    for pod in tried.pods:
        held = 0 if pod.engine is None else len([*pod.engine.running, *pod.engine.waiting])
        assert held == len(pod.under_way)


@pytest.mark.parametrize("traffic", TRAFFICS, ids=["open loop", "closed loop"])
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.floats(0.0, 40.0), max_size=12))
def test_how_time_is_sliced_makes_no_difference(traffic: Callable[[], Traffic], cuts: list[float]) -> None:
    whole, sliced = (fleet(traffic(), pods=2, startup=0.5) for _ in range(2))
    whole.advance(40.0)
    for cut in sorted(cuts):
        sliced.advance(cut)
    sliced.advance(40.0)
    assert len(whole.ledger) > 50
    assert rows(whole) == rows(sliced)


def test_a_pod_serves_once_it_has_started_and_not_before() -> None:
    tried = fleet(startup=10.0)
    tried.advance(9.99)
    assert fates(tried) == {Fate.UNAVAILABLE: tried.arrived}
    assert states(tried) == [PodState.STARTING]
    tried.advance(20.0)
    assert states(tried) == [PodState.READY]
    assert fates(tried)[Fate.ANSWERED] > 0


def test_a_terminated_pod_breaks_off_what_it_has_and_a_draining_one_finishes_it() -> None:
    cut, drained = fleet(), fleet()
    for tried in (cut, drained):
        tried.advance(10.0)
    under_way = len(cut.pods[0].under_way)
    assert under_way > 0
    cut.terminate(cut.pods[0])
    drained.terminate(drained.pods[0], grace=30.0)
    assert fates(cut)[Fate.BROKEN] == under_way
    assert states(drained) == [PodState.DRAINING]
    drained.advance(40.0)
    assert Fate.BROKEN not in fates(drained)
    assert not drained.pods
    # Its GPU is free when the last answer is out, not when the time of grace is over.
    assert 10.0 < drained.gpu_seconds() < 15.0
    assert cut.gpu_seconds() == 10.0


def test_grace_ends() -> None:
    tried = fleet(open_loop(content=Content(Mix(prompt=Fixed(10), output=Fixed(1500)))))
    tried.advance(5.0)
    under_way = len(tried.pods[0].under_way)
    tried.terminate(tried.pods[0], grace=2.0)
    tried.advance(7.0)
    assert not tried.pods
    assert fates(tried)[Fate.BROKEN] == under_way


def test_a_crash_comes_back_after_a_back_off_that_doubles() -> None:
    tried = VirtualFleet(open_loop(0.0))
    pod = tried.start_pod(config(), startup=5.0, faults=Faults(crash_after=3.0))
    seen: dict[tuple[int, PodState], float] = {}
    for tick in range(1, 1000):
        tried.advance(tick / 10)
        seen.setdefault((pod.restarts, pod.state), tried.now)
    # Ready at 5, dead at 8, again after 10 + 5, dead 3 s later, again after 20 + 5.
    assert [round(at, 1) for at in seen.values()] == [0.1, 5.0, 8.0, 23.0, 26.0, 51.0, 54.0, 99.0]


def test_an_engine_that_fails_requests_counts_them_and_ends_them_at_once() -> None:
    tried = VirtualFleet(open_loop(5.0))
    pod = tried.start_pod(config(), faults=Faults(fail_share=0.3))
    tried.advance(200.0)
    failed = sum(one.fate is Fate.FAILED for one in tried.ledger)
    assert failed == pytest.approx(0.3 * tried.arrived, rel=0.2)
    assert all(one.ended == one.arrival for one in tried.ledger if one.fate is Fate.FAILED)
    assert pod.engine is not None
    assert pod.engine.metrics.finished["error"] == failed
    again = VirtualFleet(open_loop(5.0), patience=ClientPatience(retries=20))
    again.start_pod(config(), faults=Faults(fail_share=0.3))
    again.advance(200.0)
    assert sum(one.fate is Fate.FAILED for one in again.ledger) == 0


def test_it_is_known_when_a_pod_served() -> None:
    tried = VirtualFleet(open_loop(0.0))
    pod = tried.start_pod(config(), startup=5.0)
    tried.advance(10.0)
    tried.crash(pod)
    tried.advance(40.0)
    tried.terminate(pod)
    starting, ready, gone = PodState.STARTING, PodState.READY, PodState.GONE
    assert pod.entered == [(0.0, starting), (5.0, ready), (10.0, starting), (25.0, ready), (40.0, gone)]


def test_a_wedged_pod_keeps_its_requests_until_clients_give_up() -> None:
    tried = fleet(patience=ClientPatience(timeout=5.0))
    tried.advance(10.0)
    tried.wedge(tried.pods[0])
    before = len(tried.ledger)
    tried.advance(14.9)
    assert states(tried) == [PodState.READY]
    late = list(tried.ledger)[before:]
    assert {row.fate for row in late} <= {Fate.TIMED_OUT}
    tried.advance(30.0)
    assert fates(tried)[Fate.TIMED_OUT] > 50


def test_retries_move_to_another_pod_and_count_as_one_request() -> None:
    once, again = (fleet(pods=2, patience=ClientPatience(retries=retries)) for retries in (0, 2))
    for tried in (once, again):
        tried.advance(10.0)
        tried.crash(tried.pods[0])
        tried.advance(60.0)
    assert fates(once)[Fate.BROKEN] > 0
    assert Fate.BROKEN not in fates(again)
    retried = [row for row in again.ledger if row.attempts > 1]
    assert len(retried) == fates(once)[Fate.BROKEN]
    # The client has waited since its first attempt.
    assert all(row.ttft >= 1.0 for row in retried)


def test_what_can_never_run_is_refused() -> None:
    tried = fleet(open_loop(content=Content(Mix(prompt=Fixed(2000), output=Fixed(100)))))
    tried.advance(5.0)
    assert fates(tried) == {Fate.REFUSED: tried.arrived}
    assert tried.arrived > 0


@pytest.mark.parametrize("routing", [Routing.LEAST_OUTSTANDING, Routing.ROUND_ROBIN])
def test_pods_share_the_load(routing: Routing) -> None:
    tried = fleet(pods=3, routing=routing)
    tried.advance(100.0)
    shares = Counter(row.pod for row in tried.ledger)
    assert min(shares.values()) > 0.8 * max(shares.values())


def test_the_closed_loop_never_has_more_under_way_than_clients() -> None:
    tried = fleet(ClosedLoop(20, CONTENT, think=0.0, seed=1), pods=2)
    most = 0
    for tick in range(200):
        tried.advance(tick / 10)
        most = max(most, tried.in_flight)
    assert most == 20
    assert len(tried.ledger) > 200


def test_a_stretch_counts_what_ended_in_it() -> None:
    tried = fleet(pods=2)
    tried.advance(10.0)
    tried.crash(tried.pods[0])
    tried.advance(30.0)
    every: list[Ended] = list(tried.ledger)
    inside = [row for row in every if 5.0 < row.ended <= 20.0]
    stretch = tried.ledger.between(5.0, 20.0)
    assert len(stretch) == len(inside)
    assert stretch.count(Fate.BROKEN) == sum(row.fate is Fate.BROKEN for row in inside) > 0
    good = sum(row.ttft <= 0.3 and row.tpot <= 0.015 for row in inside)
    assert stretch.goodput(ttft=0.3, tpot=0.015) == good / 15.0
    assert stretch.attainment(ttft=0.3, tpot=0.015) == good / len(inside)
    assert tried.ledger.between(40.0, 50.0).attainment(ttft=1, tpot=1) is None


def test_a_scrape_says_what_the_page_says() -> None:
    tried = fleet()
    tried.advance(30.0)
    (pod,) = tried.pods
    assert pod.engine is not None
    page = render(pod.engine.metrics, pod.config, created=0.0)
    lines = {(one.name, one.labels): one.value for one in read_samples(page.splitlines())}
    found = {(name, tuple(pair for pair in labels if pair[0] != "pod")): value for name, labels, value in scraped(pod)}
    assert len(found) > 150
    assert {key: lines.get(key) for key in found} == found
    assert all(list(labels) == sorted(labels) for _, labels, _ in scraped(pod))


def test_a_pod_that_does_not_serve_cannot_be_scraped() -> None:
    tried = fleet(startup=10.0)
    tried.advance(5.0)
    assert not list(scraped(tried.pods[0]))


def test_time_does_not_go_back() -> None:
    tried = fleet()
    tried.advance(5.0)
    with pytest.raises(ValueError, match="cannot go back"):
        tried.advance(4.0)
