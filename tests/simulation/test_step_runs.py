"""Many steps at once are what the same steps are one by one, and nobody can tell how often the engine was asked."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.virtual import config
from typing_extensions import override

from vllm_autotuner.simulation.faults import SLOWDOWN_EVERY, Faults
from vllm_autotuner.simulation.metrics import TOKEN_SECONDS, EngineMetrics, Histogram
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request, State
from vllm_autotuner.simulation.step_run import StepRun
from vllm_autotuner.simulation.step_time import StepLaw


class StepByStep(SimulatedEngine):
    """The same engine, but each run is a single step."""

    @override
    def _steps_ahead(self) -> int:
        return min(1, super()._steps_ahead())


@dataclass(frozen=True)
class Arrival:
    """A request some time after the one before; then the oldest request that still lives may be aborted."""

    gap: float
    prompt: int
    output: int
    eos_after: int | None
    aborts: bool


@dataclass(frozen=True)
class Story:
    """Everything that a run depends on."""

    arrivals: list[Arrival]
    settings: dict[str, Any]
    faults: Faults


@st.composite
def stories(draw: st.DrawFn) -> Story:
    arrivals = draw(
        st.lists(
            st.builds(
                Arrival,
                gap=st.floats(0, 3.0),
                prompt=st.integers(1, 300),
                output=st.integers(1, 400),
                eos_after=st.none() | st.integers(1, 100),
                aborts=st.booleans(),
            ),
            max_size=25,
        )
    )
    block_size = draw(st.sampled_from([16, 128, 7, 1]))
    blocks = draw(st.integers(800, 2400)) // block_size
    law = StepLaw(
        # An odd factor keeps sums of steps off the edges of buckets and off arrivals, where rounding would decide.
        base=draw(st.floats(0.001, 0.05)) * 1.000173,
        per_sequence=draw(st.sampled_from([0.0, 0.0001])),
        per_held_token=draw(st.sampled_from([0.0, 1e-7, 1e-5])),
        per_prefill_token=draw(st.sampled_from([0.0, 2e-5])),
    )
    engine_settings = {
        "law": law,
        "block_size": block_size,
        "num_gpu_blocks": blocks + 2,
        "max_model_len": min(700, blocks * block_size),
        "max_num_seqs": draw(st.integers(1, 12)),
        "max_num_batched_tokens": draw(st.integers(16, 500)),
        "jitter": draw(st.sampled_from([0.0, 0.0, 0.2])),
    }
    faults = Faults(
        slowdown_per_hour=draw(st.sampled_from([0.0, 0.0, 20.0])), wedge_after=draw(st.none() | st.floats(0, 60))
    )
    return Story(arrivals, engine_settings, faults)


def fits(arrival: Arrival, *, max_model_len: int) -> bool:
    return arrival.prompt + arrival.output <= max_model_len


def live(engine: SimulatedEngine, story: Story, *, looks: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Play the story, looking `looks` times at random moments between two arrivals; return what came of each."""
    when, now, sequences, outcomes = random.Random(seed), 0.0, [], []

    def pass_to(until: float) -> None:
        for moment in sorted(when.uniform(now, until) for _ in range(looks)):
            outcomes.extend(engine.advance(moment))
        outcomes.extend(engine.advance(until))

    for arrival in story.arrivals:
        if not fits(arrival, max_model_len=engine.config.max_model_len):
            continue
        pass_to(now + arrival.gap)
        now += arrival.gap
        request = Request(
            arrival=now, prompt_tokens=arrival.prompt, max_tokens=arrival.output, eos_after=arrival.eos_after
        )
        sequences.append(engine.submit(request))
        if arrival.aborts:
            oldest = next((one for one in sequences if one.state is not State.FINISHED), sequences[-1])
            engine.abort(oldest)
    pass_to(now + 5.0)
    pass_to(now + 5000.0)
    return [
        (outcome.sequence.identity, outcome.output_tokens, outcome.sequence.preemptions, outcome.reason,
         outcome.first_scheduled, outcome.first_token, outcome.finished)
        for outcome in outcomes
    ]  # fmt: skip


def figures(metrics: EngineMetrics) -> tuple[dict[str, Any], dict[str, float]]:
    """Everything that is counted, exactly; and the sums of seconds, which rounding may touch."""
    exact: dict[str, Any] = {}
    sums: dict[str, float] = {}
    for name, value in vars(metrics).items():
        if isinstance(value, Histogram):
            exact[name] = list(value.counts)
            sums[name] = value.total
        else:
            exact[name] = value
    return exact, sums


@settings(max_examples=120, deadline=None)
@given(story=stories(), looks=st.integers(0, 30))
def test_how_often_the_engine_is_asked_changes_nothing_but_the_rounding_of_sums(story: Story, looks: int) -> None:
    once = SimulatedEngine(config(**story.settings), faults=story.faults)
    often = SimulatedEngine(config(**story.settings), faults=story.faults)
    assert live(once, story, looks=0) == live(often, story, looks=looks)
    (exact, sums), (exact_often, sums_often) = figures(once.metrics), figures(often.metrics)
    assert exact == exact_often
    assert sums == pytest.approx(sums_often, rel=1e-12)
    assert (once.pool.used, once.next_step_end) == (often.pool.used, often.next_step_end)


@settings(max_examples=120, deadline=None)
@given(story=stories())
def test_many_steps_at_once_are_the_same_steps_one_by_one(story: Story) -> None:
    fast = SimulatedEngine(config(**story.settings), faults=story.faults)
    slow = StepByStep(config(**story.settings), faults=story.faults)
    for quick, stepped in zip(live(fast, story, looks=2), live(slow, story, looks=2), strict=True):
        assert quick[:4] == stepped[:4]
        assert quick[4:] == pytest.approx(stepped[4:], rel=1e-9)
    (exact, sums), (exact_stepped, sums_stepped) = figures(fast.metrics), figures(slow.metrics)
    assert exact == exact_stepped
    assert sums == pytest.approx(sums_stepped, rel=1e-9)
    assert fast.pool.used == slow.pool.used


runs = st.builds(
    StepRun,
    start=st.floats(0, 1e6),
    first=st.floats(1e-4, 10),
    growth=st.sampled_from([0.0, 1e-9, 1e-5, 0.01]),
    steps=st.integers(1, 100_000),
    prefill=st.just(False),
)


@given(run=runs, part=st.floats(0, 1.2))
def test_a_run_tells_how_many_of_its_steps_have_ended(run: StepRun, part: float) -> None:
    until = run.start + part * (run.end - run.start)
    ended = run.ended_by(until)
    assert 0 <= ended <= run.steps
    assert ended == 0 or run.end_of(ended) <= until
    assert ended == run.steps or run.end_of(ended + 1) > until
    assert run.ended_by(run.end_of(ended)) == ended or ended == 0, "an end belongs to its step"


@given(run=runs, part=st.floats(0, 1.2))
def test_no_step_begins_at_the_cut_or_later(run: StepRun, part: float) -> None:
    before, time = run.steps, run.start + part * (run.end - run.start)
    run.cut_before(time)
    assert 1 <= run.steps <= before
    assert run.steps == 1 or run.end_of(run.steps - 1) < time
    assert run.steps == before or run.end >= time


@given(
    first=st.floats(1e-4, 100),
    growth=st.sampled_from([0.0, 1e-9, 1e-6, 0.003, 1.0]),
    start=st.integers(0, 1000),
    steps=st.integers(1, 400),
    times=st.integers(1, 5),
)
def test_a_ramp_is_counted_as_its_values_one_by_one(
    first: float, growth: float, start: int, steps: int, times: int
) -> None:
    ramp, single = Histogram(TOKEN_SECONDS), Histogram(TOKEN_SECONDS)
    ramp.observe_ramp(first, growth=growth, start=start, stop=start + steps, times=times)
    for index in range(start, start + steps):
        single.observe(first + growth * index, times)
    assert ramp.counts == single.counts
    assert ramp.total == pytest.approx(single.total, rel=1e-12)


def test_a_value_on_an_edge_of_a_ramp_lies_below_it() -> None:
    histogram = Histogram([1.0, 2.0, 3.0])
    histogram.observe_ramp(0.5, growth=0.5, start=0, stop=8, times=2)  # 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4
    assert histogram.counts == [4, 4, 4, 4]


def test_a_slow_degradation_grows_in_small_equal_steps() -> None:
    faults = Faults(slowdown_per_hour=3.6)
    ages = [0.0, SLOWDOWN_EVERY - 0.001, SLOWDOWN_EVERY, 10 * SLOWDOWN_EVERY]
    assert [faults.stretch(max_num_seqs=1, age=age) for age in ages] == pytest.approx([1.0, 1.0, 1.01, 1.1])
    assert [faults.next_change(age=age) for age in (0.0, SLOWDOWN_EVERY)] == [SLOWDOWN_EVERY, 2 * SLOWDOWN_EVERY]
    assert Faults().next_change(age=5.0) is None


def test_jitter_keeps_the_mean_step() -> None:
    def mean_itl(jitter: float) -> float:
        engine = SimulatedEngine(config(max_model_len=60_000, num_gpu_blocks=6000, jitter=jitter))
        engine.submit(Request(arrival=0.0, prompt_tokens=10, max_tokens=50_000))
        engine.advance(1e6)
        return engine.metrics.inter_token_latency.total / engine.metrics.inter_token_latency.count

    # 50,000 steps are 3,125 draws: the mean of exp(N(-0.02, 0.2)) over them has a standard error of 0.36 %.
    assert mean_itl(0.2) == pytest.approx(mean_itl(0.0), rel=0.012)


def test_a_long_answer_alone_is_a_handful_of_runs() -> None:
    engine = SimulatedEngine(config())
    engine.submit(Request(arrival=0.0, prompt_tokens=100, max_tokens=1900))
    looks = 0
    while (change := engine.next_change) is not None:
        engine.advance(change)
        looks += 1
    assert looks == 2, "the prompt, then everything else"
    assert engine.metrics.generation_tokens == 1900
