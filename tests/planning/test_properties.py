"""What holds for every proposal that can ever be made."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import SCRAPES, engine, latency, observation
from tests.planning.situations import QWEN_32B, bounds, line, scaling, situation, with_steps

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Tuning
from vllm_autotuner.diagnosis.case import busy_batch, step_time
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import EngineWindow
from vllm_autotuner.performance.capacity import FARTHEST
from vllm_autotuner.performance.step_time import StepTime
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.planning.unused_slots import memory_of_unused_slots

COUNTS = st.integers(1, 512)
LOWERS = {DiagnosisClass.PAST_TPOT_KNEE, DiagnosisClass.PREEMPTION_THRASH}


@st.composite
def tunings(draw: st.DrawFn) -> Tuning:
    low = draw(st.integers(1, 600))
    return draw(st.just(Tuning()) | st.just(bounds(low, low + draw(st.integers(0, 600)))))


@st.composite
def engines(draw: st.DrawFn, pod: str) -> EngineWindow:
    running = [float(count) for count in draw(st.lists(st.integers(0, 512), min_size=SCRAPES, max_size=SCRAPES))]
    return engine(
        pod=pod,
        running=running,
        waiting=float(draw(st.integers(0, 600))),
        kv=draw(st.none() | st.floats(0, 1)),
    )


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    seen = observation(
        *(draw(engines(f"chat-{index}")) for index in range(draw(st.integers(1, 2)))),
        tpot=latency(draw(st.floats(0.001, 1))),
    )
    batches = draw(st.lists(COUNTS, max_size=4))
    steps = line(*batches, base=draw(st.floats(0.001, 0.2)), per_sequence=draw(st.floats(0, 0.01)))
    return situation(
        with_steps(seen, steps),
        primary=draw(st.sampled_from(DiagnosisClass)),
        seats=draw(st.none() | COUNTS),
        tuning=draw(tunings()),
        failed=draw(st.lists(COUNTS, max_size=3)),
        replicas=draw(st.integers(1, 8)),
        scale=draw(st.none() | st.builds(scaling, st.just(1), st.integers(1, 8))),
    )


@settings(max_examples=300)
@given(situations())
def test_no_proposal_leaves_the_bounds_or_the_step_limit(given: Situation) -> None:
    proposal = plan(given).proposal
    if proposal is None:
        return
    if proposal.knob is Knob.REPLICAS:
        assert given.replicas < proposal.count <= given.replicas * LARGEST_STEP
        assert given.scaling is None or proposal.count <= given.scaling.max_replicas
        assert (given.scaling is None) == bool(proposal.recommend_only)
        return
    limits = given.tuning.max_num_seqs
    moments = [moment for one in given.observation.engines for moment in one.moments]
    raises_unknown = given.knobs.max_num_seqs is None and proposal.count > max(moment.running for moment in moments)
    assert (limits is None or raises_unknown) == bool(proposal.recommend_only)
    assert limits is None or limits.min <= proposal.count <= limits.max
    fitted = step_time(given.observation)
    seats = given.knobs.max_num_seqs or max(1, round(max(moment.running for moment in moments)))
    levels = [sorted(moment.running for moment in one.moments) for one in given.observation.engines]
    batch = max(level[min(len(level) - 1, round(0.9 * len(level)))] for level in levels)
    if given.diagnosis.primary in LOWERS and proposal.count < batch:
        low = min(batch / LARGEST_STEP, fitted.low if isinstance(fitted, StepTime) else math.inf)
        assert math.ceil(low) <= proposal.count
        assert not any(proposal.count <= failed < batch for failed in given.failed_seats)
    else:
        high = FARTHEST * max(1.0, fitted.high) if isinstance(fitted, StepTime) else 0.0
        assert seats < proposal.count <= max(seats * LARGEST_STEP, high)
        assert not any(seats < failed <= proposal.count for failed in given.failed_seats)


@st.composite
def full_caches(draw: st.DrawFn) -> Situation:
    """A small KV cache with a few sequences, and many slots."""
    running = [float(count) for count in draw(st.lists(st.integers(1, 40), min_size=SCRAPES, max_size=SCRAPES))]
    pool = KVPool(tokens=draw(st.integers(1000, 100_000)))
    return situation(
        observation(engine(running=running, kv=draw(st.floats(0.3, 1)), pool=pool)),
        primary=draw(st.sampled_from(DiagnosisClass)),
        seats=draw(st.none() | st.integers(1, 4096)),
        tuning=draw(tunings()),
        failed=draw(st.lists(COUNTS, max_size=1)),
        platform=QWEN_32B,
    )


@settings(max_examples=300)
@given(full_caches())
def test_unused_slots_are_fewer_than_there_are_and_no_fewer_than_run(given: Situation) -> None:
    found, slots = memory_of_unused_slots(given), given.slots
    if not isinstance(found, Proposal):
        return
    assert slots is not None
    assert max(map(busy_batch, given.observation.engines)) <= found.count < slots
    assert not any(failed < slots for failed in given.failed_seats)
    limits = given.tuning.max_num_seqs
    assert (limits is None) == bool(found.recommend_only)
    assert limits is None or limits.min <= found.count <= limits.max


@settings(max_examples=50)
@given(situations())
def test_the_same_input_gives_the_same_output(given: Situation) -> None:
    assert plan(given) == plan(given)
