"""A step is planned while the one before runs: prompts are scheduled one step before they are computed."""

import random

import pytest
from tests.simulation.virtual import config

from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.configuration import Profile, configure
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request, Sequence


def engine_of(**changes: object) -> SimulatedEngine:
    return SimulatedEngine(config(async_scheduling=True, **changes))


def submit(engine: SimulatedEngine, at: float, *, prompt: int = 100, output: int = 10) -> Sequence:
    engine.advance(at)
    return engine.submit(Request(arrival=at, prompt_tokens=prompt, max_tokens=output))


FIRST = 0.0121
"""When the first prompt of 100 tokens is computed: 10 ms + 0.1 ms + 100 * 0.02 ms."""
SECOND = FIRST + 0.0101 + 100 * 0.05e-6
"""When its second token is there."""


def test_a_prompt_that_came_within_a_step_is_scheduled_at_its_end_and_computed_after_the_next() -> None:
    engine = engine_of()
    submit(engine, 0.0)
    late = submit(engine, 0.005, output=1)
    engine.advance(FIRST)
    assert late.first_scheduled == pytest.approx(FIRST)
    assert (engine.metrics.running, engine.pool.used) == (1, 14), "the gauge is older than the plan; 2 * 7 blocks"
    assert engine.next_step_end == pytest.approx(SECOND), "the step that begins now does not know it"
    engine.advance(SECOND)
    assert (engine.metrics.running, late.first_token) == (2, None)
    third = SECOND + 0.0102 + 101 * 0.05e-6 + 100 * 0.02e-3
    (outcome,) = engine.advance(third + 1e-9)
    assert outcome.sequence is late
    assert outcome.first_token == pytest.approx(third)
    assert engine.metrics.request_queue_time.total == pytest.approx(FIRST - 0.005)
    assert engine.metrics.request_prefill_time.total == pytest.approx(third - FIRST), "22.3 ms, of which it waits 10.1"


def test_an_engine_with_nothing_to_compute_begins_at_once() -> None:
    engine = engine_of()
    submit(engine, 0.0, output=1)
    late = submit(engine, 0.005, output=1)
    assert engine.next_step_end == pytest.approx(FIRST)
    engine.advance(FIRST)
    assert engine.next_step_end == pytest.approx(2 * FIRST)
    engine.advance(1.0)
    assert late.first_token == pytest.approx(2 * FIRST)


def test_chunks_of_a_prompt_follow_each_other_without_a_gap() -> None:
    engine = engine_of(max_num_batched_tokens=64)
    prompt = submit(engine, 0.0, prompt=150, output=1)
    engine.advance(1.0)
    assert prompt.first_token == pytest.approx(3 * 0.0101 + 150 * 0.02e-3)


def test_a_seat_that_is_freed_stays_empty_for_one_step() -> None:
    """As on the H200 of the recording h200-cap: 16 seats, 256 tokens each, 15.94 tokens per step; 16 * 256 / 257."""
    engine, draw = engine_of(max_num_seqs=16), random.Random(1)
    for _ in range(700):
        submit(engine, 0.0, prompt=16, output=draw.randint(128, 384))
    counted = []
    for at in (10.0, 100.0):
        engine.advance(at)
        counted.append((engine.metrics.generation_tokens, engine.metrics.iteration_tokens.count))
    (tokens, steps), (tokens_later, steps_later) = counted
    assert (tokens_later - tokens) / (steps_later - steps) == pytest.approx(16 * 256 / 257, rel=0.001)


def test_the_work_of_an_aborted_prompt_that_was_planned_is_done_all_the_same() -> None:
    engine = engine_of()
    first = submit(engine, 0.0)
    late = submit(engine, 0.005)
    engine.advance(FIRST)
    engine.abort(first)
    engine.abort(late)
    engine.advance(SECOND)
    assert engine.next_step_end == pytest.approx(SECOND + 0.0121)
    assert engine.advance(1.0) == []
    assert (engine.next_step_end, engine.pool.used) == (None, 0)


@pytest.mark.parametrize(
    ("args", "on"), [([], False), (["--async-scheduling"], True), (["--no-async-scheduling"], False)]
)
def test_is_off_until_the_flag_says_otherwise(args: list[str], on: bool) -> None:
    assert configure(parse_flags(args), profile=Profile()).async_scheduling is on
