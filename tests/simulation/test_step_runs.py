"""Many steps at once are what the same steps are one by one, and nobody can tell how often the engine was asked."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.stories import Story, engine_of, live, stories
from tests.simulation.virtual import config
from typing_extensions import override

from vllm_autotuner.simulation.faults import SLOWDOWN_EVERY, Faults
from vllm_autotuner.simulation.metrics import TOKEN_SECONDS, EngineMetrics, Histogram
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request
from vllm_autotuner.simulation.step_run import StepRun


class StepByStep(SimulatedEngine):
    """The same engine, but each run is a single step."""

    @override
    def _steps_ahead(self) -> int:
        return min(1, super()._steps_ahead())


def public(metrics: EngineMetrics) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(metrics).items() if not name.startswith("_")]


def figures(metrics: EngineMetrics) -> tuple[dict[str, Any], dict[str, float]]:
    """Everything that is counted, exactly; and the sums of seconds, which rounding may touch."""
    exact: dict[str, Any] = {}
    sums: dict[str, float] = {}
    for name, value in public(metrics):
        if isinstance(value, Histogram):
            exact[name] = list(value.counts)
            sums[name] = value.total
        else:
            exact[name] = value
    return exact, sums


@settings(max_examples=120)
@given(story=stories(), looks=st.integers(0, 30))
def test_how_often_the_engine_is_asked_changes_nothing_but_the_rounding_of_sums(story: Story, looks: int) -> None:
    once, often = engine_of(story), engine_of(story)
    assert live(once, story).answers == live(often, story, looks=looks).answers
    (exact, sums), (exact_often, sums_often) = figures(once.metrics), figures(often.metrics)
    assert exact == exact_often
    assert sums == pytest.approx(sums_often, rel=1e-12)
    assert (once.pool.used, once.next_step_end) == (often.pool.used, often.next_step_end)


@settings(max_examples=120)
@given(story=stories())
def test_many_steps_at_once_are_the_same_steps_one_by_one(story: Story) -> None:
    fast, slow = engine_of(story), engine_of(story, StepByStep)
    answers = zip(live(fast, story, looks=2).answers, live(slow, story, looks=2).answers, strict=True)
    for quick, stepped in answers:
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
