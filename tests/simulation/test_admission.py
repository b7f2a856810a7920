"""Who is admitted when, and what the gauges say of those who are not."""

import pytest
from tests.simulation.virtual import config, play

from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request, SchedulingPolicy, Sequence, State
from vllm_autotuner.simulation.step_duration import StepTimes, step_law


def request(
    at: float = 0.0, *, prompt: int = 100, output: int = 10, priority: int = 0, grammar_seconds: float = 0.0
) -> Request:
    return Request(
        arrival=at, prompt_tokens=prompt, max_tokens=output, priority=priority, grammar_seconds=grammar_seconds
    )


def submit(engine: SimulatedEngine, asked: Request) -> Sequence:
    engine.advance(asked.arrival)
    return engine.submit(asked)


def test_a_request_whose_grammar_is_compiled_is_deferred_and_delays_no_other() -> None:
    engine = SimulatedEngine(config())
    structured = submit(engine, request(0.0, grammar_seconds=2.0))
    plain = submit(engine, request(0.1, output=500))
    engine.advance(1.0)
    assert (structured.state, plain.state) == (State.WAITING, State.DECODING)
    assert (engine.metrics.running, engine.metrics.waiting, engine.metrics.deferred) == (1, 1, 1)
    page = render(engine.metrics, engine.config, created=0.0)
    reasons = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith("vllm:num_requests_waiting_by")]
    assert reasons == ["0.0", "1.0"], "capacity, deferred"
    assert 'vllm:num_requests_waiting{engine="0",model_name="simulated"} 1.0' in page
    engine.advance(2.1)
    assert structured.first_scheduled is not None
    assert 2.0 <= structured.first_scheduled < 2.0 + 0.011, "with the first step that begins after it is ready"
    assert (engine.metrics.waiting, engine.metrics.deferred) == (0, 0)


def test_an_engine_with_nothing_but_a_grammar_to_compile_waits_for_it_or_for_somebody_else() -> None:
    engine = SimulatedEngine(config())
    structured = submit(engine, request(1.0, grammar_seconds=5.0))
    assert (engine.metrics.running, engine.metrics.waiting, engine.metrics.deferred) == (0, 1, 1)
    assert engine.next_step_end == 6.0
    plain = submit(engine, request(3.0))
    assert plain.first_scheduled == 3.0
    engine.advance(100.0)
    assert structured.first_scheduled == 6.0
    assert engine.metrics.iteration_tokens.count == 20, "the wait is no step"


def test_who_was_deferred_comes_before_others_once_it_is_ready() -> None:
    engine = SimulatedEngine(config(max_num_seqs=1))
    submit(engine, request(0.0, output=100))
    waits_longer = submit(engine, request(0.1))
    structured = submit(engine, request(0.2, grammar_seconds=0.5))
    engine.advance(1.0)
    assert [*engine.waiting] == [structured, waits_longer]
    assert (engine.metrics.waiting, engine.metrics.deferred) == (2, 1), "still counted as deferred, as in vLLM"
    engine.advance(100.0)
    assert structured.first_scheduled is not None
    assert waits_longer.first_scheduled is not None
    assert structured.first_scheduled < waits_longer.first_scheduled


def test_the_lower_number_goes_first_by_priority() -> None:
    engine = SimulatedEngine(config(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY))
    submit(engine, request(0.0))
    order = [
        submit(engine, request(0.01 + index / 1000, priority=priority)) for index, priority in enumerate([5, 1, 5, 0])
    ]
    engine.advance(100.0)
    assert sorted(order, key=lambda sequence: sequence.first_scheduled or 0.0) == [
        order[3], order[1], order[0], order[2],
    ]  # fmt: skip


def test_the_highest_number_is_preempted_first_by_priority() -> None:
    # 9 usable blocks of 16: both prompts take 4; when both grow, one must go.
    pool = {"num_gpu_blocks": 10, "max_model_len": 144}
    engine = SimulatedEngine(config(**pool, scheduling_policy=SchedulingPolicy.PRIORITY))
    unimportant = submit(engine, request(0.0, prompt=60, output=60, priority=9))
    important = submit(engine, request(0.0, prompt=60, output=60, priority=1))
    engine.advance(100.0)
    assert (unimportant.preemptions, important.preemptions) == (1, 0)


def test_who_waits_for_blocks_gets_them_in_the_step_after_somebody_less_important_was_preempted() -> None:
    # 9 usable blocks: the two hold 4 each, one is free, and the third needs 2. At 64 tokens each wants a fifth.
    pool = {"num_gpu_blocks": 10, "max_model_len": 144}
    engine = SimulatedEngine(config(**pool, scheduling_policy=SchedulingPolicy.PRIORITY))
    submit(engine, request(0.0, prompt=60, output=80, priority=0))
    unimportant = submit(engine, request(0.0, prompt=60, output=80, priority=9))
    third = submit(engine, request(0.03, prompt=30, output=5, priority=5))
    engine.advance(100.0)
    assert unimportant.preemptions == 1
    assert third.first_scheduled is not None
    assert third.first_scheduled - unimportant.last_token == pytest.approx(0.0101, abs=0.0001), "one step later"


def test_without_chunks_a_prompt_waits_for_the_budget_of_all_of_it() -> None:
    law = step_law(StepTimes(base_ms=10, per_sequence_ms=0, per_ktoken_ms=0), tensor_parallel_size=1, kv_heads=8)

    def first_tokens(chunked: bool) -> list[float]:
        engine = SimulatedEngine(
            config(max_model_len=1000, max_num_batched_tokens=1000, enable_chunked_prefill=chunked, law=law)
        )
        prompts = [request(0.0, prompt=500, output=9), request(0.001, prompt=600), request(0.001, prompt=600)]
        outcomes, _ = play(engine, prompts)
        return [outcome.first_token for outcome in outcomes]

    # A step takes 10 ms and 0.026 ms per prompt token. The first prompt is alone until 23 ms; the next step has room
    # for its next token and 999 of the prompts: 600 and 399 in chunks, else 600 and 600.
    chunks = [0.023, 0.023 + 0.010 + 999 * 0.026e-3, 0.023 + 2 * 0.010 + 1200 * 0.026e-3]
    assert first_tokens(chunked=True) == pytest.approx(chunks)
    assert first_tokens(chunked=False) == pytest.approx([0.023, 0.023 + 0.0256, 0.023 + 2 * 0.0256])


def test_a_cold_cache_holds_nothing_until_each_prefix_was_seen_once() -> None:
    engine = SimulatedEngine(config(prefix_hit_ratio=0.5, cold_requests=2))
    cached = [submit(engine, request(at, prompt=640)).cached_tokens for at in (0.0, 1.0, 2.0, 3.0)]
    assert cached == [0, 0, 320, 320]


def test_a_shared_beginning_is_held_once_and_not_computed_where_it_is_found() -> None:
    # 40 blocks of 16 hold the shared 320 tokens once (20 blocks) and 2 blocks of each of ten sequences.
    engine = SimulatedEngine(config(num_gpu_blocks=41, max_model_len=640))
    talks = [
        engine.submit(Request(arrival=0.0, prompt_tokens=340, max_tokens=8, cached_tokens=320, shared_tokens=320))
        for _ in range(10)
    ]
    engine.advance(0.03)
    assert len(list(engine.running)) == 10
    assert (engine.pool.used, engine.pool.shared) == (20 + 10 * 2, 20)
    assert {engine.blocks_of(talk) for talk in talks} == {2}
    engine.advance(100.0)
    assert (engine.pool.used, engine.pool.shared, engine.metrics.preemptions) == (0, 0, 0)
    assert engine.metrics.prompt_tokens - engine.metrics.cached_prompt_tokens == 10 * 20


def test_a_step_that_only_computes_a_part_of_a_prompt_has_no_output_to_count() -> None:
    engine = SimulatedEngine(config(max_num_batched_tokens=100))
    play(engine, [request(prompt=1000, output=5)])
    assert engine.metrics.iteration_tokens.count == 5
    assert engine.metrics.iteration_tokens.total == 1005


def test_what_was_generated_before_an_abort_stays_counted() -> None:
    engine = SimulatedEngine(config())
    sequence = submit(engine, request(output=1000))
    engine.advance(1.0)
    before = engine.metrics.generation_tokens
    engine.abort(sequence)
    engine.advance(2.0)
    assert engine.generated(sequence) == engine.metrics.generation_tokens == before > 10
    assert engine.next_step_end is None


def test_no_gauge_shows_who_came_during_the_step() -> None:
    # vLLM takes new requests out of its mailbox between steps: its gauges never count who waits only for a step's end.
    engine = SimulatedEngine(config())
    for index in range(200):
        submit(engine, request(0.2 * index + 0.003 * (index % 7), output=100))
        engine.advance(engine.next_step_end or 0.0)
        assert engine.metrics.waiting == 0
    assert engine.metrics.running > 3


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_a_request_without_a_slot_is_shown_by_the_next_step(policy: SchedulingPolicy) -> None:
    engine = SimulatedEngine(config(max_num_seqs=1, scheduling_policy=policy))
    submit(engine, request(0.0, output=1000))
    engine.advance(1.0)
    step_end = engine.next_step_end
    assert step_end is not None
    submit(engine, request(1.001, output=10))
    engine.advance(step_end)
    assert engine.metrics.waiting == 0
    engine.advance(step_end + 0.02)
    assert engine.metrics.waiting == 1
