"""Services that nobody designed: whatever is seen, a proposal keeps the bounds, the rules and its word.

Some hundreds in every run, a thousand in `make soak`.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders import NOW, SCRAPES, WINDOW, engine, latency, observation, targets
from tests.examples import examples
from tests.planning.situations import QWEN_32B, line, scaling, served, situation

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Profile, Tuning
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.planning.bounds import opted_in, outside
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.planning.context_length import longest_seen
from vllm_autotuner.planning.feasibility import FP8_SINCE, Feasible, heads_divide
from vllm_autotuner.planning.forecast import Outlook
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.plan import Considered, plan
from vllm_autotuner.planning.platform import Platform, platform_named
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.planning.worth import MET

MODELS = ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-0.5B", "deepseek-ai/DeepSeek-V3", "")
GPUS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "Tesla-T4", None)
COUNTS = st.integers(1, 2048)
DEGREES = st.sampled_from((1, 2, 3, 4, 6, 8, 16))


@st.composite
def int_bounds(draw: st.DrawFn, low: int, high: int) -> IntBounds:
    """Hostile ones too: a single value, far below or above anything useful."""
    first, second = draw(st.integers(low, high)), draw(st.integers(low, high))
    return IntBounds(min=min(first, second), max=max(first, second))


@st.composite
def tunings(draw: st.DrawFn) -> Tuning:
    types = st.lists(st.sampled_from(("auto", "fp8", "fp8_e5m2", "bfloat16")), min_size=1, max_size=4, unique=True)
    return Tuning(
        save_gpus=draw(st.booleans()),
        max_num_seqs=draw(st.none() | int_bounds(1, 4096)),
        max_model_len=draw(st.none() | int_bounds(1, 200_000)),
        kv_cache_dtype=draw(st.none() | types.map(lambda found: AllowedStrings(allowed=tuple(found)))),
        tensor_parallel_size=draw(
            st.none()
            | st.lists(DEGREES, min_size=1, max_size=4, unique=True).map(
                lambda found: AllowedInts(allowed=tuple(found))
            )
        ),
    )


@st.composite
def platforms(draw: st.DrawFn) -> Platform:
    named = platform_named(draw(st.sampled_from(MODELS)), gpu=draw(st.sampled_from(GPUS)), catalogue=Catalogue())
    free_gpus = draw(st.none() | st.builds(lambda free, size: FreeGpus(free=tuple(free), largest_node=size),
                                      st.lists(st.integers(0, 8), max_size=3), st.integers(0, 16)))  # fmt: skip
    return replace(named, free_gpus=free_gpus, devices_ours=draw(st.booleans()))


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    def one(index: int) -> Any:
        running = [float(count) for count in draw(st.lists(st.integers(0, 512), min_size=SCRAPES, max_size=SCRAPES))]
        kv = draw(st.none() | st.floats(0, 1))
        return engine(pod=f"chat-{index}", running=running, waiting=float(draw(st.integers(0, 600))), kv=kv)

    seconds = st.floats(1e-4, 60)
    seen = observation(
        *(one(index) for index in range(draw(st.integers(1, 2)))),
        ttft=latency(draw(seconds)),
        tpot=latency(draw(st.floats(1e-4, 1))),
    )
    batches = draw(st.lists(st.integers(1, 512), max_size=5))
    steps = line(*batches, base=draw(st.floats(0, 0.2)), per_sequence=draw(st.floats(0, 0.01)))
    if draw(st.booleans()):
        steps = (*steps, StepPoint(running=math.nan, itl=0.01, tokens=5), StepPoint(running=9, itl=math.nan, tokens=5))
    pool = KVPool(
        tokens=draw(st.none() | st.integers(0, 2_000_000)),
        cache_dtype=draw(st.sampled_from((None, "auto", "fp8"))),
        max_model_len=draw(st.none() | st.integers(1, 200_000)),
    )
    prompt, output = draw(st.floats(1, 20_000)), draw(st.floats(1, 8_000))
    found = served(
        seen, steps=steps, pool=pool, prompt=prompt, output=output, prefill=draw(st.none() | st.floats(0, 30))
    )
    if draw(st.booleans()):
        return found
    # Half an hour of load, of which lengths are known: only then GPUs may be saved.
    again = [
        replace(step, time=NOW - WINDOW * back - 1) for back in range(20) for step in steps[back % max(1, len(steps)) :]
    ]
    return replace(
        found,
        steps=tuple(again),
        recent_prompt_length=latency(prompt),
        recent_output_length=latency(output),
    )


@st.composite
def services(draw: st.DrawFn) -> Situation:
    knobs = EngineKnobs(
        max_num_seqs=draw(st.none() | COUNTS),
        max_model_len=draw(st.none() | st.integers(16, 200_000)),
        kv_cache_dtype=draw(st.sampled_from((None, "auto", "fp8"))),
        tensor_parallel_size=draw(st.none() | DEGREES),
    )
    failed = st.sampled_from((("kvCacheDtype", "fp8"), ("tensorParallelSize", "4"), ("maxModelLen", "8192")))
    return situation(
        draw(observations()),
        primary=draw(st.sampled_from(DiagnosisClass)),
        knobs=knobs,
        tuning=draw(tunings()),
        replicas=draw(st.integers(1, 8)),
        scale=draw(st.none() | st.builds(scaling, st.just(1), st.integers(1, 8))),
        platform=draw(platforms()),
        failed=draw(st.lists(COUNTS, max_size=2)),
        failed_values=draw(st.lists(failed, max_size=2, unique=True)),
        against=targets(profile=draw(st.sampled_from(Profile))),
        contributing=draw(st.lists(st.sampled_from(DiagnosisClass), max_size=2, unique=True)),
    )


SLOW = settings(
    max_examples=examples(150, in_soak=300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(SLOW, max_examples=examples(300, in_soak=1000))
@given(services())
def test_no_proposal_breaks_a_bound_a_rule_or_the_opt_in(given: Situation) -> None:
    found = plan(given)
    assert (found.proposal is not None) == bool(found.considered)
    for considered in found.considered:
        proposal = considered.proposal
        assert outside(proposal.knob, proposal.value, tuning=given.tuning, scaling=given.scaling) == ""
        assert proposal.recommend_only or opted_in(proposal.knob, tuning=given.tuning, scaling=given.scaling)
        assert (proposal.knob.value, str(proposal.value)) not in given.failed
        assert proposal.reason
        keeps_the_rules(given, proposal.knob, proposal.value, applies=not proposal.recommend_only)
        costs_no_more_than_it_may(given, considered, before=found.before)
        for effect in proposal.predicted:
            assert effect.predicted is not None
            assert math.isfinite(effect.predicted)
            assert effect.predicted >= 0


def costs_no_more_than_it_may(given: Situation, considered: Considered, *, before: Outlook | None) -> None:
    """Runaway outputs get no GPUs; where objectives are met, whole GPUs are saved or nothing is proposed."""
    proposal, after = considered.proposal, considered.after
    runs_away = DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in given.diagnosis.contributing)
    assert not (runs_away and (proposal.extra_gpus > 0 or proposal.extra_replicas > 0))
    if given.diagnosis.primary in MET and proposal.knob is not Knob.MAX_MODEL_LEN:
        assert given.tuning.save_gpus
        assert proposal.target is ChangeTarget.GPUS
        assert before is not None
        assert before.needed_gpus is not None
        assert after is not None
        assert after.needed_gpus is not None
        assert before.needed_gpus - after.needed_gpus >= 1
        assert after.tpot is not None
        assert before.tpot is not None
        assert after.tpot <= given.targets.tpot.seconds or before.tpot > given.targets.tpot.seconds


def keeps_the_rules(given: Situation, knob: Knob, value: int | str, *, applies: bool) -> None:
    """What cannot start is never proposed; what nobody knows is never applied."""
    shape, gpu = given.platform.shape, given.platform.gpu
    match knob:
        case Knob.KV_CACHE_DTYPE:
            assert value == "fp8"
            assert gpu is None or gpu.compute_capability is None or gpu.compute_capability >= FP8_SINCE
            assert not applies or (gpu is not None and isinstance(shape, Geometry))
        case Knob.TENSOR_PARALLEL_SIZE:
            now, free_gpus = given.knobs.tensor_parallel_size or 1, given.platform.free_gpus
            assert isinstance(value, int)
            assert now / LARGEST_STEP <= value <= now * LARGEST_STEP
            assert value != now
            assert free_gpus is None or free_gpus.pods(value) >= 1
            assert isinstance(shape, UnknownGeometry) or isinstance(heads_divide(shape, value), Feasible)
            assert not applies or (isinstance(shape, Geometry) and given.platform.devices_ours)
        case Knob.MAX_MODEL_LEN:
            longest = longest_seen(given.observation)
            assert isinstance(value, int)
            assert longest is not None
            assert value >= longest
            assert not applies
        case Knob.MAX_NUM_SEQS | Knob.REPLICAS:
            assert isinstance(value, int)
            assert value >= 1


@settings(SLOW, max_examples=examples(100, in_soak=200))
@given(services())
def test_the_same_input_gives_the_same_output(given: Situation) -> None:
    assert plan(given) == plan(given)


@pytest.mark.parametrize("profile", list(Profile))
def test_more_demand_never_asks_for_a_lower_max_num_seqs(profile: Profile) -> None:
    values = []
    for waiting in (10.0, 30.0, 100.0, 300.0):
        seen = served(observation(engine(running=64.0, waiting=waiting, kv=0.2), ttft=latency(9.0)))
        found = plan(situation(seen, against=targets(profile=profile))).proposal
        assert found is not None
        values.append(found.count)
    assert values == sorted(values)


BAD = (
    pytest.param((), id="no windows"),
    pytest.param(line(64, base=0.02, per_sequence=0.0002), id="a single point"),
    pytest.param(line(64, 64, 65, base=0.02, per_sequence=0.0002), id="constant load: no spread"),
    pytest.param((StepPoint(running=math.nan, itl=0.02, tokens=9),) * 4, id="NaN batches"),
    pytest.param((StepPoint(running=64, itl=math.nan, tokens=9),) * 4, id="NaN latencies"),
    pytest.param((StepPoint(running=64, itl=math.inf, tokens=9),) * 4, id="endless latencies"),
)


@pytest.mark.parametrize("steps", BAD)
def test_bad_samples_give_no_opinion_about_speed(steps: tuple[StepPoint, ...]) -> None:
    seen = served(observation(engine(running=64.0, waiting=100.0, kv=0.32), ttft=latency(9.0)), steps=steps)
    found = plan(situation(seen, platform=QWEN_32B))
    assert found.proposal is not None
    assert found.proposal.confidence is not Confidence.HIGH
    assert {effect.name for effect in found.proposal.predicted}.isdisjoint({"TPOT", "TTFT", "goodput"})
