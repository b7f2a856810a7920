import hashlib
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.simulation.arrivals import DAY, RateCurve, arrival_times, random_stream
from vllm_autotuner.simulation.conversations import Conversations
from vllm_autotuner.simulation.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
from vllm_autotuner.simulation.replay import Replay
from vllm_autotuner.simulation.traces import RecordedRequest, RequestTrace
from vllm_autotuner.simulation.traffic import Change, ClientRequest, ClosedLoop, Content, Mix, OpenLoop, Traffic

ROOT = Path(__file__).resolve().parents[2]
CHAT = Mix(prompt=LogNormal(p50=1000, p95=4000), output=LogNormal(p50=130, p95=450))
LONG = Mix(prompt=Uniform(8000, 16000), output=Fixed(500))


def taken(traffic: Traffic, *, until: float, answer_after: float = 0.5) -> list[ClientRequest]:
    """Every request up to a time; each is answered with all it asked for, after a moment."""
    requests: list[ClientRequest] = []
    answers: list[tuple[float, ClientRequest]] = []
    while True:
        due = answers[0][0] if answers else math.inf
        if min(traffic.peek(), due) > until:
            return requests
        if due <= traffic.peek():
            at, request = answers.pop(0)
            traffic.ended(request, at=at, output_tokens=request.output_tokens)
        else:
            requests.append(traffic.take())
            answers.append((requests[-1].at + answer_after, requests[-1]))


TRAFFICS: dict[str, Callable[[int], Traffic]] = {
    "open loop": lambda seed: OpenLoop(
        RateCurve.diurnal(3.0, peak_to_trough=4), Content(CHAT), burstiness=2.0, seed=seed
    ),
    "closed loop": lambda seed: ClosedLoop(30, Content(CHAT), think=2.0, seed=seed),
    "conversations": lambda seed: Conversations(
        RateCurve.constant(1.0), Content(CHAT), turns=Uniform(1, 6), think=5.0, seed=seed
    ),
    "replay": lambda seed: Replay(
        RequestTrace(
            [RecordedRequest(at=index * 0.7, prompt_tokens=index + 1, output_tokens=9) for index in range(50)]
        ),
        rate=1.6,
        repeat=True,
        seed=seed,
    ),
}


def digest(traffic: Traffic) -> str:
    return hashlib.sha256("\n".join(map(repr, taken(traffic, until=600.0))).encode()).hexdigest()


# --- reproducible -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRAFFICS)
def test_a_seed_gives_the_same_requests_to_the_byte_in_every_process(kind: str) -> None:
    code = f"from tests.simulation.test_traffic import *; print(digest(TRAFFICS[{kind!r}](5)))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == digest(TRAFFICS[kind](5)) != digest(TRAFFICS[kind](6))


def test_arrivals_do_not_change_with_lengths_nor_lengths_with_the_rate() -> None:
    chat = taken(OpenLoop(RateCurve.constant(5.0), Content(CHAT), seed=1), until=100.0)
    long = taken(OpenLoop(RateCurve.constant(5.0), Content(LONG), seed=1), until=100.0)
    fast = taken(OpenLoop(RateCurve.constant(50.0), Content(CHAT), burstiness=0.0, seed=1), until=100.0)
    assert [one.at for one in chat] == [one.at for one in long]
    assert [one.prompt_tokens for one in chat] == [one.prompt_tokens for one in fast[: len(chat)]]


def test_a_client_asks_the_same_whenever_its_answers_come() -> None:
    quick, slow = (
        taken(ClosedLoop(5, Content(CHAT), think=1.0, seed=2), until=200.0, answer_after=after) for after in (0.1, 20.0)
    )
    asked = {(one.client, one.turn): one.prompt_tokens for one in quick}
    assert len(slow) < len(quick)
    assert all(asked[one.client, one.turn] == one.prompt_tokens for one in slow)


# --- arrivals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    times = list(islice(arrival_times(RateCurve.constant(4.0), burstiness=burstiness, draws=random_stream(3)), 40_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # Four standard errors of the mean.
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=4 * max(burstiness, 0.001) / math.sqrt(len(gaps)))
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness, rel=0.08, abs=1e-6)


def test_counts_of_a_poisson_process_vary_as_much_as_their_mean() -> None:
    times = islice(arrival_times(RateCurve.constant(10.0), draws=random_stream(4)), 50_000)
    counts: dict[int, int] = {}
    for at in times:
        counts[int(at)] = counts.get(int(at), 0) + 1
    per_second = [counts.get(second, 0) for second in range(max(counts))]
    assert statistics.variance(per_second) / statistics.fmean(per_second) == pytest.approx(1.0, abs=0.08)


def test_a_day_has_its_peak_its_trough_and_its_mean() -> None:
    day = RateCurve.diurnal(2.0, peak_to_trough=4.0, peak_at=DAY / 2)
    assert (day.rate(0.0), day.rate(DAY / 2), day.rate(DAY)) == pytest.approx((0.8, 3.2, 0.8))
    times = list(islice(arrival_times(day, burstiness=0.0, draws=random_stream(1)), 400_000))
    first_day = [at for at in times if at < DAY]
    second_day = [at - DAY for at in times if DAY <= at < 2 * DAY]
    assert len(first_day) == pytest.approx(2.0 * DAY, abs=1)
    assert len(second_day) == pytest.approx(2.0 * DAY, abs=1)
    noon = sum(abs(at - DAY / 2) < 1800 for at in first_day)
    assert noon / 3600 == pytest.approx(3.2, rel=0.01)


def test_nothing_comes_while_the_rate_is_zero() -> None:
    curve = RateCurve.steps([(0.0, 5.0), (10.0, 0.0), (20.0, 5.0)])
    times = list(islice(arrival_times(curve, draws=random_stream(1)), 200))
    assert not [at for at in times if 10.0 < at < 20.0]
    assert len([at for at in times if at <= 10.0]) == pytest.approx(50, abs=25)


def test_a_rate_that_ends_at_zero_ends_the_stream() -> None:
    curve = RateCurve.steps([(0.0, 5.0), (10.0, 0.0)])
    assert 0 < len(list(arrival_times(curve, draws=random_stream(1)))) < 100
    assert OpenLoop(RateCurve.constant(0.0), Content(CHAT)).peek() == math.inf


@given(
    rates=st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.0, 50.0)), min_size=1, max_size=6),
    last=st.floats(0.1, 50.0),
    repeats=st.booleans(),
    expected=st.floats(0.0, 5000.0),
)
def test_the_time_of_so_many_requests_is_when_the_curve_has_summed_up_to_them(
    rates: list[tuple[float, float]], last: float, repeats: bool, expected: float
) -> None:
    knots, at = [(0.0, rates[0][1])], 0.0
    for seconds, rate in rates:
        at += seconds
        knots.append((at, rate))
    knots += [(at, last), (at + 10.0, last)]
    curve = RateCurve(tuple(knots), period=at + 10.0 if repeats else None)
    time = curve.time_of(expected)
    # Summed up again in small pieces: the middle of each is exact on a straight line.
    edges = sorted({*(knot for knot, _ in knots if knot < time), time})
    if repeats:
        period = at + 10.0
        edges = sorted({min(turn * period + knot, time) for turn in range(int(time / period) + 1) for knot, _ in knots})
        edges = sorted({*edges, time})
    area = sum(curve.rate((low + high) / 2) * (high - low) for low, high in pairwise(edges))
    assert area == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: RateCurve.constant(-1.0), id="a negative rate"),
        pytest.param(lambda: RateCurve.constant(math.nan), id="a rate that is no number"),
        pytest.param(lambda: RateCurve(()), id="no knots"),
        pytest.param(lambda: RateCurve(((1.0, 1.0),)), id="no beginning"),
        pytest.param(lambda: RateCurve(((0.0, 1.0), (5.0, 1.0), (4.0, 1.0))), id="time that goes back"),
        pytest.param(lambda: RateCurve(((0.0, 1.0), (5.0, 1.0)), period=4.0), id="a period that ends too early"),
        pytest.param(lambda: RateCurve(((0.0, 1.0),), period=0.0), id="a period without length"),
        pytest.param(lambda: RateCurve.diurnal(1.0, peak_to_trough=0.5), id="a peak below the trough"),
        pytest.param(lambda: arrival_times(RateCurve.constant(1.0), burstiness=-1, draws=random_stream(1)), id="cv"),
        pytest.param(lambda: Uniform(5, 4), id="an empty range"),
        pytest.param(lambda: Fixed(0), id="no tokens"),
        pytest.param(lambda: LogNormal(p50=100, p95=50), id="a p95 below the median"),
        pytest.param(lambda: Empirical([]), id="no lengths"),
        pytest.param(lambda: Empirical([3, 0]), id="a length of zero"),
        pytest.param(lambda: Mix(prompt=Fixed(1), output=Fixed(1), runaway_share=0.1), id="runaways without an end"),
        pytest.param(lambda: Mix(prompt=Fixed(1), output=Fixed(1), runaway_share=2, max_tokens=9), id="two of one"),
        pytest.param(lambda: ClosedLoop(-1, Content(CHAT)), id="negative clients"),
        pytest.param(lambda: ClosedLoop(1, Content(CHAT), think=-1.0), id="negative thinking"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w{3}"):
        make()


# --- lengths and content ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "mean", "p95"),
    [
        pytest.param(Fixed(7), 7, 7, id="fixed"),
        pytest.param(Uniform(100, 300), 200, 290, id="uniform"),
        # sigma = ln(4) / 1.645 = 0.843; mean = 1000 * exp(sigma**2 / 2) = 1426.
        pytest.param(LogNormal(p50=1000, p95=4000), 1426, 4000, id="lognormal"),
        pytest.param(Empirical([1, 1, 2, 10]), 3.5, 10, id="empirical"),
    ],
)
def test_lengths_have_their_moments(lengths: Lengths, mean: float, p95: float) -> None:
    draws = random_stream(8)
    drawn = sorted(lengths.at(draws.random()) for _ in range(40_000))
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.03)
    assert drawn[int(0.95 * len(drawn))] == pytest.approx(p95, rel=0.03)


@given(
    lengths=st.sampled_from([Fixed(3), Uniform(1, 9), LogNormal(p50=1, p95=1e6, longest=5000), Empirical([4, 2, 7])]),
    quantiles=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
)
def test_lengths_grow_with_the_quantile_and_are_at_least_one(lengths: Lengths, quantiles: tuple[float, float]) -> None:
    low, high = sorted(quantiles)
    assert 1 <= lengths.at(low) <= lengths.at(high) <= 5000


def test_the_mix_changes_when_it_should_and_others_stay_the_same() -> None:
    def streamed(*changes: Change) -> Sequence[ClientRequest]:
        return taken(OpenLoop(RateCurve.constant(20.0), Content(CHAT, changes), seed=1), until=300.0)

    sudden, slow, never = streamed(Change(at=100.0, mix=LONG)), streamed(Change(at=100, mix=LONG, over=100)), streamed()
    assert {one.prompt_tokens >= 8000 for one in sudden if one.at >= 100.0} == {True}
    assert [one for one in sudden if one.at < 100.0] == [one for one in never if one.at < 100.0]
    between = [one.output_tokens == 500 and one.prompt_tokens >= 8000 for one in slow if 140 <= one.at < 160]
    assert sum(between) / len(between) == pytest.approx(0.5, abs=0.1)
    assert {one.prompt_tokens >= 8000 for one in slow if one.at >= 200.0} == {True}


def test_runaway_outputs_end_where_the_client_cuts_them() -> None:
    mix = Mix(prompt=Fixed(10), output=Uniform(10, 100), max_tokens=2000, runaway_share=0.05)
    requests = taken(OpenLoop(RateCurve.constant(50.0), Content(mix), seed=1), until=200.0)
    runaway = [one for one in requests if one.output_tokens == 2000]
    assert len(runaway) / len(requests) == pytest.approx(0.05, abs=0.01)
    assert {one.max_tokens for one in requests} == {2000}


# --- loops and conversations ------------------------------------------------------------------------------------------


def test_a_closed_loop_thinks_between_answer_and_question() -> None:
    requests = taken(ClosedLoop(20, Content(CHAT), think=4.0, seed=1), until=2000.0, answer_after=1.0)
    # Each client asks once in 1 s of answer and 4 s of thinking.
    assert len(requests) == pytest.approx(20 * 2000 / 5.0, rel=0.04)


def test_a_failed_client_pauses_even_without_thinking() -> None:
    loop = ClosedLoop(1, Content(CHAT), think=0.0)
    request = loop.take()
    loop.ended(request, at=request.at, output_tokens=None)
    assert loop.peek() == request.at + 1.0


def test_each_turn_holds_the_whole_conversation_before_it() -> None:
    content = Content(Mix(prompt=Uniform(50, 100), output=Uniform(10, 20), shared_tokens=500))
    traffic = Conversations(RateCurve.constant(2.0), content, turns=Uniform(3, 3), think=1.0, seed=4)
    requests = taken(traffic, until=300.0)
    by_turn = {(one.client, one.turn): one for one in requests}
    assert {one.turn for one in requests} == {0, 1, 2}
    for (client, turn), one in by_turn.items():
        assert one.shared_tokens == 500
        if turn == 0:
            assert one.history_tokens == 0
            assert 550 <= one.prompt_tokens <= 600
            continue
        before = by_turn[client, turn - 1]
        assert one.history_tokens == before.prompt_tokens + before.output_tokens
        assert 50 <= one.prompt_tokens - one.history_tokens <= 100
        assert one.at > before.at + 0.5


def test_a_conversation_ends_before_it_is_too_long_and_when_it_gets_no_answer() -> None:
    content = Content(Mix(prompt=Fixed(100), output=Fixed(50)))
    traffic = Conversations(RateCurve.constant(1.0), content, turns=Fixed(1000), think=0.1, longest=1000, seed=4)
    requests = taken(traffic, until=100.0)
    assert max(one.prompt_tokens + one.max_tokens for one in requests) in range(851, 1001)
    first = Conversations(RateCurve.constant(1.0), content, turns=Fixed(9), think=0.0, seed=4)
    request = first.take()
    starts = first.peek()
    first.ended(request, at=request.at, output_tokens=None)
    assert first.peek() == starts


# --- replay -----------------------------------------------------------------------------------------------------------

TRACE = RequestTrace(
    [RecordedRequest(at=3.0 + index, prompt_tokens=index + 1, output_tokens=5) for index in range(101)]
)


def test_a_replay_is_the_recording_from_its_first_request_on() -> None:
    played = taken(Replay(TRACE), until=1e9)
    assert [(one.at, one.prompt_tokens) for one in played] == [(float(index), index + 1) for index in range(101)]


def test_speed_and_rate_are_two_things() -> None:
    fast = taken(Replay(TRACE, speed=4.0), until=1e9)
    assert (len(fast), fast[-1].at) == (101, 25.0)
    few = taken(Replay(TRACE, rate=0.5, seed=2), until=1e9)
    assert len(few) == pytest.approx(50, abs=20)
    assert all(one.at == one.prompt_tokens - 1 for one in few)
    many = taken(Replay(TRACE, rate=3.0), until=1e9)
    assert len(many) == 303
    assert [one.at for one in many] == sorted(one.at for one in many)
    assert 0.0 <= many[0].at <= many[-1].at <= 100.0
    assert len({one.at for one in many}) > 290


def test_a_replay_may_begin_again() -> None:
    played = taken(Replay(TRACE, repeat=True), until=250.0)
    assert [one.at for one in played] == [float(second) for second in range(251)]


@pytest.mark.parametrize("wrong", [{"speed": 0.0}, {"rate": -1.0}, {"rate": 1e-9}, {"max_tokens": 0}])
def test_an_impossible_replay_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"replay|max_tokens"):
        Replay(TRACE, **wrong)  # type: ignore[arg-type]
