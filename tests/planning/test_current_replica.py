"""The replica of now, in the terms of the capacity model: from metrics, and against what the simulator then does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.builders import NOT_MEASURED, NOW, WINDOW, engine, latency, observation, targets
from tests.planning.situations import QWEN_32B, line, situation
from tests.planning.situations import served as with_figures
from tests.scaling.loads import BASE, LENGTH, SLOPE, batch_of, carrying, queue, served

from benchmarks.capacity_agreement import SCENES, case_at
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.observation.observation import FirstTokens, Observation, StepPoint
from vllm_autotuner.performance.capacity import Replica, capacity, load_at
from vllm_autotuner.performance.step_time import StepTime
from vllm_autotuner.planning.current_replica import (
    FEWEST_WINDOWS,
    UnknownReplica,
    current_replica,
    limits_of,
    output_tokens,
    rate_each,
    rate_now,
)
from vllm_autotuner.planning.forecast import current_setting, setting_with

TRUTH: Mapping[str, float] = {"knee": 6.54, "max-num-seqs 24": 3.69, "KV cache": 1.82, "prompts": 9.24}
"""Requests per second that one simulated replica serves within its objectives: found by bisection in runs of 15 minutes
by `benchmarks/capacity_agreement.py`."""
CLOSE = 0.15
"""What 15 minutes of load and one of its seeds may differ by, and the model with them."""


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
@pytest.mark.parametrize("name", TRUTH)
def test_one_load_tells_the_capacity_that_the_simulator_has(name: str, share: float) -> None:
    scene, truth = next(scene for scene in SCENES if scene.name == name), TRUTH[name]
    case = case_at(scene, truth * share)
    replica = current_replica(case)
    assert isinstance(replica, Replica)
    found = capacity(replica, limits=limits_of(case.targets))
    assert found.rate == pytest.approx(truth, rel=CLOSE)
    assert found.low * (1 - CLOSE) <= truth


BUSY = [60.0] * 2 + [126.0] * 18
"""Requests in the windows of one engine; that there were once fewer gives the step time a slope."""
STEADY = carrying([126.0] * 20)
"""Without a slope: the batch never moved."""


def case(
    seen: Observation, *, seats: int | None = None, degree: int | None = 1, learned: StepTime | None = None
) -> Case:
    knobs = EngineKnobs(max_num_seqs=seats, tensor_parallel_size=degree)
    return Case(
        observation=seen, targets=targets(ttft=2.0), knobs=knobs, learned={} if learned is None else {1: learned}
    )


def replica_of(seen: Observation, **given: Any) -> Replica:
    found = current_replica(case(seen, **given))
    assert isinstance(found, Replica)
    return found


def test_a_replica_is_what_was_measured() -> None:
    found = replica_of(carrying(BUSY, engines=2), seats=64)
    assert found.step.base == pytest.approx(BASE)
    assert found.step.per_sequence == pytest.approx(SLOPE)
    assert found.output == pytest.approx(LENGTH + 1)
    assert found.seats == 64
    assert found.held == pytest.approx(900, rel=0.01), "a sequence takes 0.1 % of the KV cache, of which 90 % are used"
    assert found.held_longer == pytest.approx(LENGTH / (LENGTH + 1)), "the first token comes with the prompt"
    assert found.crowding == pytest.approx(1.0)
    assert found.tail == pytest.approx(1.1, rel=0.02)
    assert found.rate(batch_of(126.0)) == pytest.approx(126 / WINDOW)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        pytest.param(observation(engine(generation_tokens=0.0)), "no requests with tokens", id="no tokens"),
        pytest.param(observation(engine(running=0.0)), "no requests with tokens", id="nothing runs"),
        pytest.param(replace(STEADY, itl=NOT_MEASURED), "inter-token latency", id="latencies are not exported"),
        pytest.param(STEADY, "request lengths", id="the batch never moved, and prompts are not known"),
    ],
)
def test_why_there_is_no_model(seen: Observation, why: str) -> None:
    found = current_replica(case(seen))
    assert isinstance(found, UnknownReplica)
    assert why in found.why


LEARNED = StepTime(base=0.011, per_sequence=0.0001, low=10.0, high=80.0, points=30, error=0.02)


def test_the_slope_of_earlier_goes_through_what_is_measured_now() -> None:
    step = replica_of(STEADY, learned=LEARNED).step
    assert step.per_sequence == pytest.approx(LEARNED.per_sequence)
    assert step.predict(batch_of(126.0)) == pytest.approx(BASE + SLOPE * batch_of(126.0))
    assert (step.low, step.high) == (LEARNED.low, LEARNED.high)


def test_a_steep_line_of_earlier_makes_no_step_shorter_than_nothing() -> None:
    steep = replace(LEARNED, base=0.0, per_sequence=1.02 * (BASE / batch_of(126.0) + SLOPE))
    step = replica_of(STEADY, learned=steep).step
    assert step.base == 0
    assert step.predict(batch_of(126.0)) == pytest.approx(BASE + SLOPE * batch_of(126.0))


def test_the_curve_of_a_mixture_of_earlier_goes_through_now() -> None:
    batch, now = batch_of(126.0), BASE + SLOPE * batch_of(126.0)
    all_read = (now - 0.003 - LEARNED.per_sequence * batch) / (1 - 0.9375**batch)
    mixture = replace(LEARNED, base=0.0035, reading=all_read, experts=Experts(128, 8))
    moved = replica_of(STEADY, learned=mixture).step
    assert moved.base == pytest.approx(0.003)
    assert (moved.reading, moved.per_sequence) == pytest.approx((all_read, LEARNED.per_sequence))
    # Without a base, and a little slow for today: all that the batch adds shrinks alike.
    through_zero = replica_of(STEADY, learned=replace(mixture, base=0.0, reading=1.5 * all_read)).step
    assert through_zero.base == 0
    assert 0 < through_zero.reading < 1.5 * all_read
    assert 0 < through_zero.per_sequence < LEARNED.per_sequence
    assert through_zero.predict(batch) == pytest.approx(now)


def test_a_line_that_today_contradicts_is_not_used() -> None:
    found = current_replica(case(STEADY, learned=replace(LEARNED, base=0.030)))
    assert isinstance(found, UnknownReplica)


def test_engines_in_general_tell_less_the_farther_from_now() -> None:
    """The batch never moved, and nothing was learned before: at twice the batch the interval is the model's own."""
    found = replica_of(replace(STEADY, recent_prompt_length=latency(500.0)))
    batch = batch_of(126.0)
    assert found.step.low == found.step.high == pytest.approx(batch)
    assert 0 < found.step.base < found.itl(batch)
    assert found.itl(batch) == pytest.approx(BASE + SLOPE * batch)
    near, far = (found.itl(each, surely=True) / found.itl(each) for each in (batch, 2 * batch))
    assert 1 < near < far


@pytest.mark.parametrize(
    ("recent", "of_the_long_window", "tokens"),
    [
        pytest.param(latency(300.0), latency(700.0), 300.0, id="of requests that have just finished"),
        pytest.param(None, latency(700.0), LENGTH, id="tokens made over requests finished"),
    ],
)
def test_where_the_output_length_comes_from(recent: Any, of_the_long_window: Any, tokens: float) -> None:
    seen = replace(carrying(BUSY), recent_output_length=recent or NOT_MEASURED, output_length=of_the_long_window)
    assert output_tokens(seen) == pytest.approx(tokens, rel=0.02)


def test_what_comes_is_what_is_served_and_what_the_queue_grows_by() -> None:
    assert rate_now(carrying(BUSY)) == pytest.approx(126 / WINDOW)
    assert rate_now(carrying(BUSY, waiting=queue(126.0))) == pytest.approx(2 * 126 / WINDOW)


def test_a_slot_is_held_for_the_prompt_too() -> None:
    """Half as many sequences again ran as the tokens account for."""
    seen = carrying(BUSY)
    more = replace(seen, steps=tuple(replace(each, running=1.5 * each.running) for each in seen.steps))
    assert replica_of(more).held_longer == pytest.approx(1.5 * LENGTH / (LENGTH + 1))


def test_first_tokens_of_a_window_without_steps_tell_nothing_of_its_tokens() -> None:
    """Requests so short that the gauge of running ones is 0 at each scrape: of that window only they are known."""
    seen = carrying(BUSY)
    last = max(one.time for one in seen.steps if one.time is not None)
    without = replace(seen, steps=tuple(one for one in seen.steps if one.time != last))
    assert last in seen.tokens_by_window(over=600)
    assert last not in without.tokens_by_window(over=600)


@pytest.mark.parametrize("tokens", [2, 3, 200])
def test_the_first_token_of_a_request_ends_no_step_of_its_batch(tokens: int) -> None:
    """Requests of two tokens make one step each: 60 in a window, of 10 ms, are 60 requests and 120 tokens."""
    steps = tuple(
        StepPoint(running=batch, itl=0.01, tokens=batch / 0.01 * WINDOW, time=NOW - WINDOW * back)
        for back, batch in enumerate((20.0, 30.0, 20.0, 30.0))
    )
    first = tuple(FirstTokens(mean=0.1, requests=one.tokens / (tokens - 1), time=one.time or 0.0) for one in steps)
    seen = replace(
        carrying(BUSY), steps=steps, first_tokens=first, recent_output_length=latency(float(tokens), count=100)
    )
    assert replica_of(seen).held_longer == pytest.approx((tokens - 1) / tokens)
    made = seen.tokens_by_window(over=600)
    assert made[NOW] == pytest.approx(20 / 0.01 * WINDOW * tokens / (tokens - 1))


def test_the_first_window_of_a_service_tells_nothing_of_how_long_slots_are_held() -> None:
    """Its engines came in the middle of it: all of the batch, and half of its tokens."""
    seen = carrying(BUSY)
    first = min(each.time for each in seen.steps if each.time is not None)
    steps = tuple(replace(each, tokens=each.tokens / 2) if each.time == first else each for each in seen.steps)
    assert replica_of(replace(seen, steps=steps)).held_longer == pytest.approx(LENGTH / (LENGTH + 1))


def test_first_tokens_are_those_that_were_measured_while_nothing_waits() -> None:
    first = replica_of(carrying(BUSY, ttft=latency(0.3, tail=0.5))).first
    assert first is not None
    assert first.seconds == pytest.approx(0.5, rel=0.02)
    assert first.rate == pytest.approx(126 / WINDOW)


@pytest.mark.parametrize(("prefill", "seconds"), [(0.1, 0.2), (None, None)])
def test_behind_a_queue_they_are_the_prompts_own(prefill: float | None, seconds: float | None) -> None:
    """9 s are the wait. A prompt takes 0.1 s, and p95 of the prompts is twice the mean."""
    seen = carrying(
        BUSY,
        waiting=9.0,
        ttft=latency(9.0),
        prefill_time=NOT_MEASURED if prefill is None else latency(prefill),
        recent_prompt_length=latency(1000.0),
        prompt_length=latency(1000.0, tail=2000.0),
    )
    first = replica_of(seen).first
    assert (first is None) if seconds is None else (first is not None and first.seconds == pytest.approx(0.2, rel=0.03))


@pytest.mark.parametrize(
    ("requests", "engines", "burstiness"),
    [
        pytest.param([100.0] * 20, 1, 1.0, id="an even load: that of independent requests at least"),
        pytest.param([100.0, 130.0] * 10, 1, 600 / 115, id="bursts: neighbours differ by 30"),
        pytest.param([100.0, 130.0] * 10, 2, 1 + (1200 / 115 - 1) / 2, id="shared by two, each sees half of it"),
        pytest.param([100.0 + 3 * window for window in range(20)], 1, 1.0, id="a slow rise is no burst"),
        pytest.param([20.0 + 60 * window for window in range(20)], 1, 1.0, id="nor is a fast one"),
        pytest.param([100.0, 300.0] * 2, 1, 1.0, id=f"fewer windows than {FEWEST_WINDOWS} tell nothing"),
    ],
)
def test_how_much_arrivals_vary(requests: Sequence[float], engines: int, burstiness: float) -> None:
    seen = replace(carrying(BUSY, engines=engines), first_tokens=served(requests) * engines)
    assert replica_of(seen).burstiness == pytest.approx(burstiness, rel=0.01)


@pytest.mark.parametrize(("preemptions", "longer"), [(0.0, 0.5), (9.0, 1.0)])
def test_a_token_of_a_preempted_sequence_was_not_made_in_a_slot_all_the_time(preemptions: float, longer: float) -> None:
    """By a third too much was foretold of a thrashing engine: 4.31 requests/s of five slots that finish 3.20."""
    seen = carrying(BUSY)
    slow = tuple(replace(point, itl=2 * point.itl) for point in seen.steps)
    preempted = tuple(replace(one, preemptions=preemptions) for one in seen.engines)
    found = replica_of(replace(seen, steps=slow, engines=preempted))
    assert found.held_longer == pytest.approx(longer, rel=0.05)


@pytest.mark.parametrize(
    ("share", "tail"),
    [
        pytest.param(0.04, 1.1, id="as many as p95 leaves out"),
        pytest.param(0.06, 1.0, id="more: the tail is their wait for the KV cache"),
    ],
)
def test_what_preempted_sequences_wait_is_no_tail_of_a_batch_that_the_cache_holds(share: float, tail: float) -> None:
    seen = carrying(BUSY)
    preempting = tuple(replace(one, preemptions=share * (one.finished or 0.0)) for one in seen.engines)
    assert all(one.preemptions for one in preempting)
    assert replica_of(replace(seen, engines=preempting)).tail == pytest.approx(tail, rel=0.02)


def test_a_long_prompt_takes_its_time_however_many_replicas_there_are() -> None:
    """p95 of the prompts is four times the mean of 0.3 s; a fifth of the time is spent on prompts."""
    seen = carrying(
        BUSY,
        ttft=latency(1.5),
        prefill_time=latency(0.3),
        recent_prompt_length=latency(1000.0),
        prompt_length=latency(1000.0, tail=4000.0),
    )
    busy = tuple(replace(one, prefill_seconds=0.2 * one.sampled) for one in seen.engines)
    now = replica_of(replace(seen, engines=busy))
    assert now.first is not None
    assert now.first.alone == pytest.approx(0.3 * 4 * 0.8, rel=0.03)
    limits = limits_of(targets(ttft=2.0))
    assert load_at(now, now.first.rate / 100, limits=limits).ttft >= 0.9


@pytest.mark.parametrize(
    ("given", "waiting", "kv", "seats"),
    [
        pytest.param(None, 9.0, 0.3, 32, id="all that run while requests wait"),
        pytest.param(48, 9.0, 0.3, 48, id="as given"),
        pytest.param(None, 0.0, 0.3, None, id="nothing waits"),
        pytest.param(None, 9.0, 0.97, None, id="the KV cache is the limit"),
    ],
)
def test_slots_that_are_not_known_are_those_that_run_while_requests_wait(
    given: int | None, waiting: float, kv: float, seats: int | None
) -> None:
    """No limit at all let every request be served, and so neither slots nor replicas were worth anything."""
    seen = replace(carrying(BUSY), engines=(engine(running=32.0, waiting=waiting, kv=kv, generation_tokens=9000.0),))
    assert replica_of(seen, seats=given).seats == seats


@pytest.mark.parametrize(("queue_time", "seconds"), [(2.9, 0.2), (0.1, 3.0)])
def test_a_wait_that_few_scrapes_show_is_no_time_of_prompts(queue_time: float, seconds: float) -> None:
    """A prompt takes 0.1 s, and p95 of the prompts is twice the mean."""
    seen = carrying(
        BUSY,
        ttft=latency(3.0),
        queue_time=latency(queue_time),
        prefill_time=latency(0.1),
        recent_prompt_length=latency(1000.0),
        prompt_length=latency(1000.0, tail=2000.0),
    )
    first = replica_of(seen).first
    assert first is not None
    assert first.seconds == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(("ttft", "burstiness"), [(0.2, 600 / 115), (16.0, 1.0)])
def test_first_tokens_that_waited_for_a_slot_tell_nothing_of_arrivals(ttft: float, burstiness: float) -> None:
    """Half a window and more: they come when slots become free. Preemptions make bursts of them that never came."""
    late = tuple(replace(one, mean=ttft) for one in served([100.0, 130.0] * 10))
    seen = replace(carrying(BUSY), first_tokens=late)
    assert replica_of(seen).burstiness == pytest.approx(burstiness, rel=0.01)


@pytest.mark.parametrize(("base", "known"), [(0.0001, True), (0.02, False)])
def test_a_line_that_passes_through_zero_has_the_empty_step_of_engines_in_general(base: float, known: bool) -> None:
    steps = line(190.0, 400.0, 700.0, 1024.0, base=base, per_sequence=0.00005)
    engines = (engine(running=1024.0, generation_tokens=200_000.0, finished=900.0),)
    seen = replace(STEADY, engines=engines, steps=steps, recent_prompt_length=latency(300.0))
    found = replica_of(seen)
    assert found.step.low == pytest.approx(190.0)
    assert (found.empty > 2 * found.step.base) is known
    assert (found.empty == 0.0) is not known


def test_a_mixture_that_reads_few_experts_for_few_sequences_needs_no_floor() -> None:
    curve = StepTime(
        base=0.003, per_sequence=0.0001, experts=Experts(128, 8), reading=0.014, low=32, high=96, points=4, error=0
    )
    steps = tuple(
        StepPoint(running=batch, itl=curve.predict(batch), tokens=1000.0, experts=curve.experts)
        for batch in (16.0, 24.0, 48.0, 96.0)
    )
    found = replica_of(replace(STEADY, steps=steps, recent_prompt_length=latency(300.0)))
    assert found.step.experts == curve.experts
    assert found.empty == 0.0
    assert found.itl(4.0) < 0.7 * found.itl(16.0)


def test_the_floor_of_such_a_line_is_carried_over_to_another_degree() -> None:
    """On twice the GPUs a token of a single sequence was foretold in 0.6 ms that took 34."""
    steps = line(190.0, 400.0, 700.0, 1024.0, base=0.0001, per_sequence=0.00005)
    engines = (engine(running=1024.0, generation_tokens=200_000.0, finished=900.0),)
    seen = replace(
        with_figures(replace(STEADY, engines=engines), steps=steps),
        recent_prompt_length=latency(300.0),
        recent_output_length=latency(200.0),
    )
    given = situation(seen, primary=DiagnosisClass.HEALTHY, platform=QWEN_32B)
    now = current_setting(given)
    there = setting_with(now, Knob.TENSOR_PARALLEL_SIZE, 2, situation=given)
    assert isinstance(now.replica, Replica)
    assert isinstance(there.replica, Replica)
    assert 0.4 * now.replica.empty < there.replica.empty < now.replica.empty


@pytest.mark.parametrize(
    ("default", "seats"),
    [
        pytest.param(256, 256, id="the default holds"),
        pytest.param(8, None, id="more run than the default allows: something else sets it"),
        pytest.param(None, None, id="nor is the GPU known"),
    ],
)
def test_where_the_flag_is_left_out_the_engine_has_its_default(default: int | None, seats: int | None) -> None:
    found = current_replica(case(carrying(BUSY)), default_slots=default)
    assert isinstance(found, Replica)
    assert found.seats == seats
    given = current_replica(case(carrying(BUSY), seats=64), default_slots=default)
    assert isinstance(given, Replica)
    assert given.seats == 64


def test_ready_pods_that_are_silent_have_their_share_of_the_load() -> None:
    whole = carrying([126.0] * 20, engines=10)
    seven = replace(carrying([126.0] * 20, engines=7), expected=10)
    assert rate_now(whole) == pytest.approx(rate_now(seven))
    assert rate_each(whole) == pytest.approx(rate_each(seven)), "what is told of each is the same"
    assert rate_now(replace(whole, expected=9)) == rate_now(whole), "one more answers than was expected yet"
