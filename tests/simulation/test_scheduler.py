"""The engine core in virtual time: queues, seats, blocks, preemption, and what the metrics then say."""

import pytest
from tests.simulation.virtual import closed_loop, config, play, poisson, toy_law

from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.metrics import Histogram
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import FinishReason, Request, RequestRefused, State, goodput
from vllm_autotuner.simulation.step_duration import StepTimes, step_law


def request(at: float = 0.0, *, prompt: int = 100, output: int = 10, eos_after: int | None = None) -> Request:
    return Request(arrival=at, prompt_tokens=prompt, max_tokens=output, eos_after=eos_after)


def mean(histogram: Histogram) -> float:
    return histogram.total / histogram.count


def test_one_request_alone_takes_its_prefill_and_its_steps() -> None:
    engine = SimulatedEngine(config())
    (outcome,), _ = play(engine, [request(5.0, prompt=100, output=10)])
    prefill = 0.010 + 0.0001 + 100 * 0.00002
    decode = sum(0.010 + 0.0001 + held * 0.05e-6 for held in range(100, 109))
    assert outcome.ttft == pytest.approx(prefill)
    assert outcome.finished - outcome.first_token == pytest.approx(decode)
    assert outcome.output_tokens == 10
    assert engine.pool.used == 0


def test_an_idle_engine_starts_its_step_when_a_request_arrives() -> None:
    engine = SimulatedEngine(config())
    assert engine.next_step_end is None
    engine.advance(1000.0)
    engine.submit(request(1000.0))
    assert engine.next_step_end == pytest.approx(1000.0121)


def test_a_request_that_arrives_within_a_step_waits_for_its_end() -> None:
    engine = SimulatedEngine(config())
    engine.submit(request(0.0))
    end = engine.next_step_end
    assert end is not None
    late = engine.submit(request(end / 2))
    assert late.state is State.WAITING
    engine.advance(end)
    assert late.first_scheduled == end


def test_max_num_seqs_caps_the_batch_while_kv_stays_low() -> None:
    # The limit of the seats-saturation recording: 4 seats, 5.4 requests/s served, KV at most 1.6 %, no preemption.
    engine = SimulatedEngine(config(max_num_seqs=4, num_gpu_blocks=1024, block_size=128, law=toy_law()))
    _, samples = play(engine, poisson(rate=8, seconds=60, prompt=(100, 200), output=(300, 400)), until=60)
    running = [running for at, running, _, _ in samples if at > 10]
    assert max(running) == 4
    assert running.count(4) / len(running) > 0.8, "a seat is free for the step after an end"
    assert samples[-1][2] > 20, "the queue grows"
    assert max(usage for *_, usage in samples) < 0.02
    assert engine.metrics.preemptions == 0


def test_an_exhausted_pool_preempts_and_its_gauge_dips_although_a_queue_stands() -> None:
    # The kv-saturation recording, 76 to 188 s: 40 blocks of 128, 7.1 requests/s, prompts 250-350, outputs 350-450.
    # There: usage mean 0.91, at 1.0 in 22 % and >= 0.9 in 69 % of the samples, 5-12 of 64 seats taken, 0.9 preemptions
    # per finished request, all of TTFT is queue time. Shapes, not figures, are what this model promises.
    engine = SimulatedEngine(config(num_gpu_blocks=40, block_size=128, law=toy_law()))
    outcomes, samples = play(engine, poisson(rate=7.1, seconds=110, prompt=(250, 350), output=(350, 450)), until=110)
    usage = [usage for at, _, waiting, usage in samples if at > 20 and waiting]
    assert len(usage) > 30
    assert max(usage) == 1.0
    assert 0.85 < sum(usage) / len(usage) < 0.97
    assert 0.5 < sum(value >= 0.9 for value in usage) / len(usage) < 0.95, "full, but not always near 1"
    assert {round(value * 39, 6) % 1 for value in usage} == {0.0}, "one block of 40 is reserved"
    assert max(running for _, running, _, _ in samples) < 20
    assert 0.6 < engine.metrics.preemptions / len(outcomes) < 1.2
    late = [outcome for outcome in outcomes if outcome.finished > 60]
    assert min(outcome.first_scheduled - outcome.sequence.request.arrival for outcome in late) > 1.0
    assert mean(engine.metrics.request_prefill_time) < 0.1


def test_who_came_within_the_step_that_just_ended_is_not_in_the_waiting_gauge() -> None:
    """vLLM takes new requests in between two steps, and counts its queue at the end of one."""
    engine = SimulatedEngine(config(max_num_seqs=2))
    engine.submit(request(output=50))
    end = engine.next_step_end
    assert end is not None
    engine.submit(request(end / 2, output=50))
    engine.submit(request(end / 2, output=50))
    engine.advance(end)
    assert engine.metrics.waiting == 0, "no scheduler has seen them"
    following = engine.next_step_end
    assert following is not None
    engine.advance(following)
    assert (engine.metrics.running, engine.metrics.waiting) == (2, 1), "one was admitted, for the other is no seat"


def test_a_light_load_never_shows_a_queue() -> None:
    engine = SimulatedEngine(config())
    _, samples = play(engine, poisson(rate=8, seconds=60, prompt=(50, 200), output=(50, 150)), scrape_every=0.05)
    assert len(samples) > 1000
    assert max(waiting for _, _, waiting, _ in samples) == 0


def test_preempted_work_is_in_no_token_counter() -> None:
    engine = SimulatedEngine(config(num_gpu_blocks=40, block_size=128, law=toy_law()))
    outcomes, _ = play(engine, poisson(rate=7, seconds=30, prompt=(250, 350), output=(350, 450)))
    metrics = engine.metrics
    assert metrics.preemptions > 10
    assert metrics.prompt_tokens == sum(outcome.sequence.request.prompt_tokens for outcome in outcomes)
    assert metrics.generation_tokens == sum(outcome.output_tokens for outcome in outcomes)
    assert metrics.iteration_tokens.total == metrics.prompt_tokens + metrics.generation_tokens
    assert metrics.time_to_first_token.count == len(outcomes)
    assert metrics.inter_token_latency.count == metrics.generation_tokens - len(outcomes)
    assert metrics.request_num_preemptions.total == metrics.preemptions


def test_the_latest_request_is_preempted_and_resumes_first() -> None:
    # 9 usable blocks of 16: both prompts take 4, so the ninth goes to the first that grows; then the second must go.
    engine = SimulatedEngine(config(num_gpu_blocks=10, max_model_len=144))
    first = engine.submit(request(prompt=60, output=60))
    second = engine.submit(request(prompt=60, output=60))
    third = engine.submit(request(prompt=60, output=60))
    while not second.preemptions:
        due = engine.next_step_end
        assert due is not None
        engine.advance(due)
    assert first.preemptions == 0
    assert list(engine.waiting) == [second, third]
    assert engine.generated(second) > 1, "what was generated is kept, only its KV is computed again"


@pytest.mark.parametrize(
    ("caching", "found"),
    [
        # The second leaves 4 full blocks (64 tokens). Until the first ends at 119 tokens it takes 4 more blocks: one
        # that was never used, then three of the second's, from the end.
        pytest.param(True, 16, id="the first of its four blocks is still there"),
        pytest.param(False, 0, id="without prefix caching all is computed again"),
    ],
)
def test_a_preempted_sequence_finds_its_blocks_that_were_not_taken(caching: bool, found: int) -> None:
    law = step_law(StepTimes(base_ms=10, per_sequence_ms=0, per_ktoken_ms=0), tensor_parallel_size=1, kv_heads=8)
    engine = SimulatedEngine(config(num_gpu_blocks=10, max_model_len=144, enable_prefix_caching=caching, law=law))
    engine.submit(request(prompt=60, output=60))
    second = engine.submit(request(prompt=60, output=60))
    at = 0.0
    while not (second.preemptions and second.state is State.PREFILLING):
        due = engine.next_step_end
        assert due is not None
        at = due
        engine.advance(at)
    due = engine.next_step_end
    assert due is not None
    recomputed = 60 + engine.generated(second) - found
    assert due - at == pytest.approx(0.010 + recomputed * 0.026e-3)
    assert engine.metrics.recomputed_tokens == recomputed
    assert engine.metrics.prefix_hits == 0, "vLLM does not count these as hits"


def test_nothing_is_admitted_without_room_for_its_whole_prompt() -> None:
    engine = SimulatedEngine(config(num_gpu_blocks=11, max_model_len=160, max_num_batched_tokens=64))
    engine.submit(request(prompt=100, output=2))
    second = engine.submit(request(prompt=100, output=2))
    engine.advance(0.03)
    assert second.state is State.WAITING


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    engine = SimulatedEngine(config(max_num_batched_tokens=256))
    engine.submit(request(prompt=100, output=200))
    engine.advance(0.05)
    before = engine.generated(next(iter(engine.running)))
    long = engine.submit(request(0.05, prompt=1200, output=2))
    engine.advance(0.10)
    decoding, prefilling = engine.running
    assert prefilling is long
    assert 256 <= prefilling.computed < 1200
    assert engine.generated(decoding) > before


@pytest.mark.parametrize(
    ("prompt", "output", "parameter"),
    [
        pytest.param(2048, 1, "input_tokens", id="the prompt fills the context"),
        pytest.param(2000, 49, "max_tokens", id="prompt and output together exceed it"),
        pytest.param(0, 1, "max_tokens", id="an empty prompt"),
        pytest.param(1, 0, "max_tokens", id="no output"),
    ],
)
def test_refuses_what_can_never_run(prompt: int, output: int, parameter: str) -> None:
    engine = SimulatedEngine(config())
    with pytest.raises(RequestRefused) as refused:
        engine.submit(request(prompt=prompt, output=output))
    assert refused.value.parameter == parameter
    assert (engine.next_step_end, list(engine.waiting)) == (None, [])


def test_the_longest_possible_request_runs() -> None:
    engine = SimulatedEngine(config(num_gpu_blocks=129))
    (outcome,), _ = play(engine, [request(prompt=1048, output=1000)])
    assert outcome.output_tokens == 1000


def test_steps_grow_with_batch_and_with_context() -> None:
    def itl(*, clients: int, prompt: int) -> float:
        engine = SimulatedEngine(config())
        closed_loop(engine, clients=clients, prompt=prompt, output=200, seconds=60)
        return mean(engine.metrics.inter_token_latency)

    assert itl(clients=2, prompt=100) < itl(clients=16, prompt=100) < itl(clients=64, prompt=100)
    assert itl(clients=16, prompt=100) < itl(clients=16, prompt=1500)


@pytest.mark.parametrize(("prompt", "output"), [(1024, 1024), (1024, 128), (4096, 512)])
@pytest.mark.parametrize("clients", [4, 16, 32])
def test_agrees_with_the_measured_law_in_steady_state(prompt: int, output: int, clients: int) -> None:
    # t(b) = a + cb*b + ck*b*(ISL + OSL/2)/1000 + p*b*ISL/OSL with the fit of Qwen3-32B on two H100 (TP 2).
    times = StepTimes(base_ms=13.96, per_sequence_ms=0.057, per_ktoken_ms=0.0542, prefill_per_token_ms=0.049)
    law = step_law(times, tensor_parallel_size=1, kv_heads=8)
    engine = SimulatedEngine(config(law=law, num_gpu_blocks=20_000, max_model_len=8192, max_num_batched_tokens=8192))
    closed_loop(engine, clients=clients, prompt=prompt, output=output, seconds=300, spread=20)
    expected = (
        13.96 + 0.057 * clients + 0.0542 * clients * (prompt + output / 2) / 1000 + 0.049 * clients * prompt / output
    )
    assert mean(engine.metrics.inter_token_latency) * 1000 == pytest.approx(expected, rel=0.05)


def test_a_full_engine_serves_slots_over_step_time() -> None:
    engine = SimulatedEngine(config(max_num_seqs=8))
    closed_loop(engine, clients=24, prompt=50, output=100, seconds=60)
    rate = engine.metrics.generation_tokens / 60
    assert rate == pytest.approx(8 / mean(engine.metrics.inter_token_latency), rel=0.03)


def test_goodput_peaks_between_too_few_and_too_many_slots() -> None:
    # 64 clients, outputs of 150: with 4 seats they queue for (60 / 4) * 1.6 s, with 64 a step takes 10 + 64 * 0.1 ms
    # and the KV reads; 24 seats keep the step near 12.5 ms and the queue near 40 / 24 * 1.9 s.
    def good(max_num_seqs: int) -> float:
        engine = SimulatedEngine(config(max_num_seqs=max_num_seqs))
        outcomes = closed_loop(engine, clients=64, prompt=100, output=150, seconds=60)
        return goodput(outcomes, ttft=5.0, tpot=0.0145, seconds=60)

    assert good(24) > 8
    assert good(4) < 1
    assert good(64) < 1


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        engine = SimulatedEngine(config(jitter=0.1), seed=seed)
        outcomes, _ = play(engine, poisson(rate=5, seconds=20, prompt=(50, 500), output=(5, 50), seed=3))
        return [outcome.finished for outcome in outcomes]

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize(
    ("output", "eos_after", "tokens", "reason"),
    [
        pytest.param(50, None, 50, FinishReason.LENGTH, id="ignore_eos runs to max_tokens"),
        pytest.param(50, 20, 20, FinishReason.STOP, id="the sequence ends by itself"),
        pytest.param(50, 90, 50, FinishReason.LENGTH, id="max_tokens comes first"),
        pytest.param(1, None, 1, FinishReason.LENGTH, id="a single token needs no decode step"),
    ],
)
def test_ends_by_length_or_by_itself(output: int, eos_after: int | None, tokens: int, reason: FinishReason) -> None:
    engine = SimulatedEngine(config())
    (outcome,), _ = play(engine, [request(output=output, eos_after=eos_after)])
    assert (outcome.output_tokens, outcome.reason) == (tokens, reason)
    assert engine.metrics.finished[reason] == 1


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_an_aborted_request_gives_everything_back(steps: int) -> None:
    engine = SimulatedEngine(config(max_num_seqs=2, max_num_batched_tokens=64))
    sequences = [engine.submit(request(prompt=60)) for _ in range(3)]
    for _ in range(steps):
        due = engine.next_step_end
        assert due is not None
        engine.advance(due)
    for sequence in sequences:
        engine.abort(sequence)
        engine.abort(sequence)
    assert (list(engine.running), list(engine.waiting), engine.pool.used) == ([], [], 0)
    assert engine.metrics.finished["abort"] == 3
    engine.advance(10)
    assert (engine.metrics.running, engine.metrics.kv_usage) == (0, 0.0)


def test_prefix_hits_spare_prefill_and_are_counted() -> None:
    engine = SimulatedEngine(config(prefix_hit_ratio=0.5))
    cold = SimulatedEngine(config())
    (warm_outcome,), _ = play(engine, [request(prompt=1000)])
    (cold_outcome,), _ = play(cold, [request(prompt=1000)])
    assert (engine.metrics.prefix_queries, engine.metrics.prefix_hits) == (1000, 496)
    assert cold_outcome.ttft - warm_outcome.ttft == pytest.approx(496 * 0.00002)


def test_a_wedged_engine_freezes_its_gauges_and_finishes_nothing() -> None:
    engine = SimulatedEngine(config(), faults=Faults(wedge_after=1.0))
    engine.submit(request(output=1000))
    engine.advance(1.0)
    frozen = (engine.metrics.running, engine.metrics.generation_tokens)
    engine.submit(request(1.5))
    assert engine.advance(100.0) == []
    assert (engine.metrics.running, engine.metrics.generation_tokens) == frozen == (1, frozen[1])
    assert (engine.metrics.waiting, len(list(engine.waiting))) == (0, 1), "the queue that stands is not seen"
    assert engine.next_step_end is None


def test_too_many_slots_degrade_only_where_told() -> None:
    def itl(max_num_seqs: int) -> float:
        engine = SimulatedEngine(config(max_num_seqs=max_num_seqs), faults=Faults(degrade_above_seqs=64))
        play(engine, [request(output=100)])
        return mean(engine.metrics.inter_token_latency)

    assert itl(65) == pytest.approx(2 * itl(64))


def test_a_slow_degradation_grows_with_time() -> None:
    engine = SimulatedEngine(config(), faults=Faults(slowdown_per_hour=1.0))
    early, late = play(engine, [request(0.0), request(3600.0)])[0]
    assert late.tpot == pytest.approx(2 * early.tpot, rel=0.01)


def test_arrivals_out_of_order_are_an_error() -> None:
    engine = SimulatedEngine(config())
    engine.submit(request(0.0))
    with pytest.raises(ValueError, match="advance"):
        engine.submit(request(5.0))
