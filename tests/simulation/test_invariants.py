"""What holds whatever is asked of the engine, and that both clocks drive the same one."""

import asyncio
import selectors
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.stories import Story, engine_of, live, stories
from tests.simulation.virtual import config
from typing_extensions import override

from vllm_autotuner.simulation.driver import EngineDriver, Generation
from vllm_autotuner.simulation.metrics import EngineMetrics, Histogram
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request, SchedulingPolicy, State

GAUGES = {"running", "waiting", "deferred", "kv_usage"}


def counters(metrics: EngineMetrics) -> list[float]:
    """Every counter and every bucket."""
    values: list[float] = []
    for name, value in vars(metrics).items():
        if isinstance(value, Histogram):
            values += [*value.counts, value.total]
        elif isinstance(value, dict):
            values += value.values()
        elif name not in GAUGES and not name.startswith("_"):
            values.append(value)
    return values


@settings(max_examples=100)
@given(story=stories(), looks=st.integers(1, 8))
def test_blocks_slots_and_counters_keep_their_bounds_at_every_moment(story: Story, looks: int) -> None:
    engine = engine_of(story)
    before = counters(engine.metrics)

    def look() -> None:
        nonlocal before
        running, waiting, metrics = list(engine.running), list(engine.waiting), engine.metrics
        own = sum(engine.blocks_of(sequence) for sequence in running)
        assert engine.pool.used == own + engine.pool.shared <= engine.pool.usable
        assert engine.pool.shared >= max((sequence.shared_blocks for sequence in running), default=0)
        assert engine.pool.shared == 0 or any(sequence.shared_blocks for sequence in running)
        assert len(running) <= engine.config.max_num_seqs
        assert {sequence.state for sequence in running} <= {State.PREFILLING, State.DECODING}
        assert {sequence.state for sequence in waiting} <= {State.WAITING}
        assert 0 <= metrics.kv_usage <= 1
        assert 0 <= metrics.deferred <= metrics.waiting <= len(story.arrivals)
        now = counters(metrics)
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True)), "a counter went back"
        before = now

    live(engine, story, looks=looks, look=look)


@settings(max_examples=100)
@given(story=stories())
def test_no_request_is_lost_and_none_comes_twice(story: Story) -> None:
    engine = engine_of(story)
    life = live(engine, story)
    under_way = [sequence.identity for sequence in (*engine.running, *engine.waiting)]
    finished = [outcome.sequence.identity for outcome in life.outcomes]
    aborted = [sequence.identity for sequence in life.aborted]
    assert sorted(under_way + finished + aborted) == [sequence.identity for sequence in life.sequences]
    assert story.faults.wedge_after is not None or not under_way
    assert engine.metrics.finished["abort"] == len(aborted)
    assert all(outcome.output_tokens == outcome.sequence.target for outcome in life.outcomes)


@settings(max_examples=100)
@given(story=stories())
def test_tokens_are_conserved(story: Story) -> None:
    engine = engine_of(story)
    life = live(engine, story)
    metrics, begun = engine.metrics, [one for one in life.sequences if one.first_token is not None]
    assert metrics.prompt_tokens == sum(sequence.request.prompt_tokens for sequence in begun)
    assert metrics.cached_prompt_tokens == sum(sequence.cached_tokens for sequence in begun)
    assert metrics.generation_tokens == sum(engine.generated(sequence) for sequence in life.sequences)
    assert metrics.iteration_tokens.total == metrics.prompt_tokens + metrics.generation_tokens
    assert metrics.time_to_first_token.count == len(begun)
    assert metrics.inter_token_latency.count == metrics.generation_tokens - len(begun)
    assert metrics.e2e_request_latency.count == len(life.outcomes)


@settings(max_examples=100)
@given(story=stories())
def test_who_came_first_is_served_first_among_equals(story: Story) -> None:
    engine = engine_of(story)
    life = live(engine, story)
    by_priority = engine.config.scheduling_policy is SchedulingPolicy.PRIORITY
    for rank in {sequence.request.priority if by_priority else 0 for sequence in life.sequences}:
        equals = [
            sequence.first_scheduled
            for sequence in life.sequences
            if (not by_priority or sequence.request.priority == rank)
            and not sequence.request.grammar_seconds
            and sequence not in life.aborted
        ]
        never = [at is None for at in equals]
        assert never == sorted(never), "one that came later was served, one before it was not"
        assert all(a <= b for a, b in pairwise(at for at in equals if at is not None))


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: the time it should have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @override
    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen: everybody waits for somebody"
        self.now += max(0.0, timeout)
        return super().select(0)


class FakeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to whatever is due next."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.now


@settings(max_examples=60)
@given(story=stories())
def test_real_and_virtual_time_give_the_same_answers(story: Story) -> None:
    arrivals = [one for one in story.arrivals if one.prompt + one.output <= story.settings["max_model_len"]]

    async def in_real_time() -> list[Generation]:
        clock = asyncio.get_running_loop().time
        driver = EngineDriver(SimulatedEngine(config(**story.settings)), clock=clock)
        driving = asyncio.create_task(driver.run())
        generations = []
        for arrival in arrivals:
            await asyncio.sleep(arrival.gap)
            generations.append(
                driver.submit(
                    prompt_tokens=arrival.prompt,
                    max_tokens=arrival.output,
                    ignore_eos=True,
                    stream=arrival.aborts,
                    priority=arrival.priority,
                )
            )
        for generation in generations:
            await generation.outcome
        driving.cancel()
        return generations

    with asyncio.Runner(loop_factory=FakeLoop) as runner:
        generations = runner.run(in_real_time())
    virtual, outcomes = SimulatedEngine(config(**story.settings)), []
    for generation in generations:
        asked = generation.sequence.request
        outcomes += virtual.advance(asked.arrival)
        virtual.submit(Request(arrival=asked.arrival, prompt_tokens=asked.prompt_tokens, max_tokens=asked.max_tokens,
                               priority=asked.priority))  # fmt: skip
    outcomes += virtual.advance(1e9)
    answers = {outcome.sequence.identity: outcome for outcome in outcomes}
    for generation in generations:
        real, same = generation.outcome.result(), answers[generation.sequence.identity]
        assert (real.first_scheduled, real.first_token, real.finished) == (
            same.first_scheduled, same.first_token, same.finished,
        )  # fmt: skip
        assert real.output_tokens == same.output_tokens
