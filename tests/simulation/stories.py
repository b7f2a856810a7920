"""Whole lives of an engine for hypothesis: settings, faults, and requests that come, wait, are aborted and finish."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.simulation.virtual import config

from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Outcome, Request, SchedulingPolicy, Sequence, State
from vllm_autotuner.simulation.step_duration import StepLaw


@dataclass(frozen=True)
class Arrival:
    """A request some time after the one before; then the oldest request that still lives may be aborted."""

    gap: float
    prompt: int
    output: int
    eos_after: int | None
    aborts: bool
    priority: int
    grammar_seconds: float
    cached_tokens: int | None
    shared_tokens: int


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
                priority=st.integers(0, 2),
                grammar_seconds=st.just(0.0) | st.floats(0, 4.0),
                cached_tokens=st.none() | st.integers(0, 300),
                shared_tokens=st.sampled_from([0, 64, 150]),
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
    max_model_len = min(700, blocks * block_size)
    chunked = draw(st.booleans())
    engine_settings = {
        "law": law,
        "block_size": block_size,
        "num_gpu_blocks": blocks + 2,
        "max_model_len": max_model_len,
        "max_num_seqs": draw(st.integers(1, 12)),
        "max_num_batched_tokens": draw(st.integers(16 if chunked else max_model_len, 800)),
        "enable_chunked_prefill": chunked,
        "scheduling_policy": draw(st.sampled_from(SchedulingPolicy)),
        "enable_prefix_caching": (caching := draw(st.booleans())),
        "prefix_hit_ratio": draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])) if caching else 0.0,
        "cold_requests": draw(st.integers(0, 3)),
        "async_scheduling": draw(st.booleans()),
        "jitter": draw(st.sampled_from([0.0, 0.0, 0.2])),
    }
    faults = Faults(
        slowdown_per_hour=draw(st.sampled_from([0.0, 0.0, 20.0])), wedge_after=draw(st.none() | st.floats(0, 60))
    )
    return Story(arrivals, engine_settings, faults)


@dataclass(frozen=True)
class Life:
    """What a story came to."""

    sequences: list[Sequence]
    outcomes: list[Outcome]
    aborted: list[Sequence]

    @property
    def answers(self) -> list[tuple[Any, ...]]:
        """Everything about each finished request, in the order of their ends."""
        return [
            (outcome.sequence.identity, outcome.output_tokens, outcome.sequence.preemptions, outcome.reason,
             outcome.first_scheduled, outcome.first_token, outcome.finished)
            for outcome in self.outcomes
        ]  # fmt: skip


def engine_of(story: Story, kind: type[SimulatedEngine] = SimulatedEngine) -> SimulatedEngine:
    return kind(config(**story.settings), faults=story.faults)


def live(engine: SimulatedEngine, story: Story, *, looks: int = 0, look: Callable[[], None] = lambda: None) -> Life:
    """Play the story to its end; look at the engine `looks` times at random moments between two arrivals."""
    when, now = random.Random(0), 0.0
    life = Life([], [], [])

    def pass_to(until: float) -> None:
        for moment in [*sorted(when.uniform(now, until) for _ in range(looks)), until]:
            life.outcomes.extend(engine.advance(moment))
            look()

    for arrival in story.arrivals:
        if arrival.prompt + arrival.output > engine.config.max_model_len:
            continue
        pass_to(now + arrival.gap)
        now += arrival.gap
        request = Request(
            arrival=now,
            prompt_tokens=arrival.prompt,
            max_tokens=arrival.output,
            eos_after=arrival.eos_after,
            priority=arrival.priority,
            grammar_seconds=arrival.grammar_seconds,
            cached_tokens=arrival.cached_tokens,
            shared_tokens=arrival.shared_tokens,
        )
        life.sequences.append(engine.submit(request))
        if arrival.aborts:
            oldest = next((one for one in life.sequences if one.state is not State.FINISHED), None)
            if oldest is not None:
                engine.abort(oldest)
                life.aborted.append(oldest)
        look()
    pass_to(now + 5.0)
    pass_to(now + 5000.0)
    return life
