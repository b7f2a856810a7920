"""Each limit at its very value, where other tables only come near. `python -m tests.mutation` finds what is missing."""

import math
from typing import Any

import pytest
from tests.builders import diagnosed, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis import decode_bandwidth_bound, past_tpot_knee
from vllm_autotuner.diagnosis.case import Case, queues, tpot_tail
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.communication_bound import GAIN, no_faster_than_fewer_gpus
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import KVPool, Observation, StepPoint
from vllm_autotuner.performance.step_time import StepTime

TTFT, TPOT = 2.0, 0.05
"""The objectives of the builders' targets (seconds)."""


def exactly(value: float, *, count: float = 100.0) -> Distribution:
    """All quantiles and the mean are `value`, to the bit: what lies above the last edge is said to be at it."""
    return Distribution(buckets={value: 0.0, math.inf: count}, total=value * count, count=count)


def halves(low: float, high: float, *, count: float = 100.0) -> Distribution:
    """The median is `low` and p95 and p99 are `high`, to the bit."""
    return Distribution(buckets={low: count / 2, high: count / 2, math.inf: count}, count=count)


def ten(**levels: Any) -> Any:
    """An engine of ten scrapes, so that shares of 0.5, 0.7 and 0.8 can be met exactly."""
    return engine(**({"scrapes": 10} | levels))


def prompts(*, finished: float, **rest: Any) -> Any:
    """A queue beside a pool with room and free seats, and nearly all tokens are those of prompts."""
    return engine(running=8, waiting=25, kv=0.3, finished=finished, generation_tokens=100.0, **rest)


SOME = [1.0] * 8 + [0.0] * 2
HALF = [1.0] * 5 + [0.0] * 5
SEATED = [64.0] * 5 + [8.0] * 5
HUGE = halves(200.0, 2_000.0, count=200.0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # --- latencies exactly at their objective are met ---
        pytest.param(observation(ttft=exactly(TTFT), prefill_time=exactly(TTFT)), DiagnosisClass.HEALTHY, id="TTFT"),
        pytest.param(
            observation(engine(running=30, kv=0.3), tpot=exactly(TPOT)), DiagnosisClass.HEALTHY, id="TPOT of a batch"
        ),
        pytest.param(
            observation(engine(running=2, kv=0.3), tpot=exactly(TPOT)), DiagnosisClass.HEALTHY, id="TPOT of two"
        ),
        pytest.param(
            observation(engine(running=2, kv=0.3), tpot=exactly(TPOT), itl=latency(0.09, count=2000)),
            DiagnosisClass.HEALTHY,
            id="TPOT of two, although steps are slow",
        ),
        pytest.param(
            observation(engine(running=2, kv=0.3), tpot=exactly(0.09), itl=exactly(TPOT)),
            DiagnosisClass.UNCLEAR,
            id="steps of two, although those who finish were slow",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(6.0), prefill_time=latency(5.9), tpot=exactly(TPOT)),
            DiagnosisClass.PREFILL_BOUND,
            id="TPOT beside a late first token",
        ),
        pytest.param(
            observation(
                engine(running=8, kv=0.3),
                ttft=halves(1.0, 40.0),
                prompt_length=HUGE,
                prefill_time=exactly(0.1),
                tpot=exactly(TPOT),
            ),
            DiagnosisClass.HEAD_OF_LINE_BLOCKING,
            id="TPOT beside a few giants",
        ),
        pytest.param(
            observation(engine(running=64, waiting=9, kv=0.3), tpot=exactly(TPOT)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="TPOT at taken seats",
        ),
        # --- shares of scrapes ---
        pytest.param(
            observation(ten(running=60, waiting=SOME, kv=0.998)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="waiting in 8 of 10 scrapes lasts",
        ),
        pytest.param(
            observation(ten(running=60, waiting=[1.0] * 7 + [0.0] * 3, kv=0.998)),
            DiagnosisClass.UNCLEAR,
            id="waiting in 7 of 10 scrapes does not",
        ),
        pytest.param(
            observation(ten(running=[64.0] * 7 + [8.0] * 3, waiting=9, kv=0.3)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="seats taken in 7 of 10 scrapes",
        ),
        pytest.param(
            observation(ten(running=[64.0] * 6 + [8.0] * 4, waiting=9, kv=0.3)),
            DiagnosisClass.OVERLOADED,
            id="seats taken in 6 of 10 scrapes",
        ),
        pytest.param(
            observation(ten(running=SEATED, waiting=9, kv=0.3, prefill_seconds=18.0), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="seats taken in half of the scrapes are no free seats",
        ),
        pytest.param(
            observation(ten(running=SEATED, waiting=9, kv=0.95)),
            DiagnosisClass.OVERLOADED,
            id="nor beside a full pool",
        ),
        pytest.param(
            observation(ten(deferred=SOME)), DiagnosisClass.DEFERRED_QUEUE, id="deferred in 8 of 10 scrapes lasts"
        ),
        pytest.param(
            observation(ten(deferred=[0.0] * 10)), DiagnosisClass.HEALTHY, id="an exported zero is nobody deferred"
        ),
        pytest.param(
            observation(ten(deferred=3.0, waiting=HALF)),
            DiagnosisClass.UNCLEAR,
            id="capacity waiting in half of the scrapes is no deferred queue",
        ),
        # --- the pool ---
        pytest.param(
            observation(engine(running=30, waiting=9, kv=[0.1] * 14 + [0.9])),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="KV 90 % once",
        ),
        pytest.param(
            observation(engine(running=30, waiting=9, kv=0.8, scrapes=1)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="KV 80 % on average",
        ),
        pytest.param(
            observation(engine(running=64, waiting=9, kv=[0.1] * 14 + [0.9])),
            DiagnosisClass.OVERLOADED,
            id="KV 90 % once has no room for more seats",
        ),
        pytest.param(observation(engine(kv=0.9, scrapes=1)), DiagnosisClass.UNCLEAR, id="KV 90 % and nobody waits"),
        pytest.param(
            observation(engine(running=64, waiting=9, kv=0.95, preemptions=1.0, finished=100.0)),
            DiagnosisClass.OVERLOADED,
            id="1 % evicted at taken seats: the seats bind, too",
        ),
        pytest.param(
            observation(engine(running=64, waiting=9, kv=0.7, preemptions=2.0, finished=100.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="2 % evicted at taken seats: it is the pool",
        ),
        # --- hangs ---
        pytest.param(observation(engine(stalled_for=120.0)), DiagnosisClass.WEDGED, id="no token for 120 s"),
        pytest.param(
            observation(engine(running=39, waiting=30, kv=0.5, stalled_for=30.0)),
            DiagnosisClass.UNCLEAR,
            id="no token for the whole window: neither a hang yet nor load",
        ),
        pytest.param(
            observation(engine(running=[39.0] * 14 + [0.0], stalled_for=30.0)),
            DiagnosisClass.HEALTHY,
            id="a scrape without work explains why no token came",
        ),
        # --- prompts before the first requests have finished ---
        pytest.param(
            observation(prompts(finished=9.0), ttft=latency(8.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="nine requests do not tell prefill times yet: their tokens do",
        ),
        pytest.param(
            observation(prompts(finished=10.0), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="ten requests told no prefill",
        ),
        # --- tails ---
        pytest.param(
            observation(
                engine(running=8, kv=0.3),
                ttft=Distribution(buckets={0.1: 90.0, TTFT: 90.0, math.inf: 100.0}, count=100.0),
                prompt_length=HUGE,
                prefill_time=exactly(0.1),
            ),
            DiagnosisClass.HEALTHY,
            id="a tail that ends at the objective",
        ),
        pytest.param(
            observation(
                engine(running=8, kv=0.3), ttft=halves(TTFT, 40.0), prompt_length=HUGE, prefill_time=exactly(0.1)
            ),
            DiagnosisClass.HEAD_OF_LINE_BLOCKING,
            id="a median at the objective, and prompts of exactly ten times the median",
        ),
        pytest.param(
            observation(
                engine(running=8, kv=0.3), ttft=halves(1.0, 10.0), prompt_length=HUGE, prefill_time=exactly(0.1)
            ),
            DiagnosisClass.HEAD_OF_LINE_BLOCKING,
            id="waits of exactly ten times the median",
        ),
        pytest.param(
            observation(
                engine(running=8, kv=0.3),
                ttft=halves(1.0, 40.0),
                output_length=Distribution(buckets={0.0: 150.0, 5.0: 150.0, math.inf: 200.0}, count=200.0),
            ),
            DiagnosisClass.PREFILL_BOUND,
            id="a median of no token at all has no ratio",
        ),
    ],
)
def test_at_the_limit(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_a_single_slot_can_be_taken() -> None:
    assert (
        named(observation(engine(running=1, waiting=5, kv=0.1)), seats=1).primary is DiagnosisClass.CONCURRENCY_CAPPED
    )


def test_a_context_of_exactly_twice_the_need_is_oversized() -> None:
    lengths: dict[str, Any] = {"prompt_length": exactly(2_000, count=2000), "output_length": exactly(1_000, count=2000)}
    found = named(observation(engine(pool=KVPool(max_model_len=7_500)), **lengths))
    assert [part.diagnosis for part in found.contributing] == [DiagnosisClass.CONTEXT_OVERSIZED]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(10, DiagnosisClass.PAST_TPOT_KNEE, id="ten finished requests say how it felt"),
        pytest.param(9, DiagnosisClass.HEALTHY, id="of nine one decides: the tokens say it"),
    ],
)
def test_who_tells_tpot(count: float, expected: DiagnosisClass) -> None:
    seen = observation(engine(running=30, kv=0.3), tpot=latency(0.09, count=count), itl=latency(0.02, count=2000))
    assert named(seen).primary is expected


def test_the_tail_is_a_ratio_and_nothing_without_a_mean() -> None:
    def tail(seen: Distribution) -> float:
        return tpot_tail(Case(observation=observation(tpot=seen), targets=targets(), knobs=EngineKnobs()))

    wide = Distribution(buckets={0.08: 0.0, math.inf: 100.0}, total=4.0, count=100.0)
    assert tail(wide) == pytest.approx(2.0)
    assert tail(Distribution(buckets={0.08: 0.0, math.inf: 100.0}, total=0.0, count=100.0)) == 1.0


@pytest.mark.parametrize(("waiting", "queue"), [(HALF, True), ([1.0] * 4 + [0.0] * 6, False)])
def test_half_of_the_scrapes_are_a_queue(waiting: list[float], queue: bool) -> None:
    assert queues(observation(ten(waiting=waiting))) is queue


@pytest.mark.parametrize(
    ("rejected", "expected"),
    [
        pytest.param(None, DiagnosisClass.HEALTHY, id="not exported"),
        pytest.param(0.0, DiagnosisClass.HEALTHY, id="nobody was turned away"),
        pytest.param(0.5, DiagnosisClass.UNCLEAR, id="less than one in a hundred: not healthy, not a lasting queue"),
        pytest.param(1.0, DiagnosisClass.UNCLEAR, id="exactly one in a hundred"),
        pytest.param(1.1, DiagnosisClass.OVERLOADED, id="more than one in a hundred"),
    ],
)
def test_a_queue_that_turns_requests_away_is_full_whatever_its_gauge_says(
    rejected: float | None, expected: DiagnosisClass
) -> None:
    found = named(observation(engine(waiting=0.0, finished=99.0, rejected=rejected)))
    assert found.primary is expected, found.message


@pytest.mark.parametrize(
    ("shares", "tpot", "contend"),
    [
        pytest.param([0.7], TPOT, True, id="at exactly seven tenths of the time"),
        pytest.param([0.69], TPOT, False, id="a little less"),
        pytest.param([1.0, 0.4], TPOT, True, id="as much on average over the engines that tell"),
        pytest.param([1.0, 0.3], TPOT, False, id="less on average"),
        pytest.param([0.5], 1.1 * TPOT, True, id="half of it where tokens come late as well"),
        pytest.param([0.49], 1.1 * TPOT, False, id="less than half is not why they do"),
        pytest.param([], 1.1 * TPOT, False, id="nobody tells"),
    ],
)
def test_prompts_contend_from_a_load_of_seven_tenths_on(shares: list[float], tpot: float, contend: bool) -> None:
    told = [engine(prefill_seconds=share * engine().sampled) for share in shares]
    seen = observation(*told, engine(prefill_seconds=None), tpot=exactly(tpot))
    assert prompts_contend(Case(observation=seen, targets=targets(), knobs=EngineKnobs())) is contend


def test_half_of_the_time_on_prompts_is_sure_and_less_is_not() -> None:
    half, less = (
        named(observation(prompts(finished=9.0, prefill_seconds=seconds), ttft=latency(8.0)))
        for seconds in (14.0, 13.9)
    )
    assert (half.primary, half.confidence) == (DiagnosisClass.PREFILL_BOUND, Confidence.HIGH)
    assert "takes 0.5 s of every second" in half.message
    assert (less.primary, less.confidence) == (DiagnosisClass.PREFILL_BOUND, Confidence.MEDIUM)
    assert "prefill is most of the computation" in less.message


# --- models -----------------------------------------------------------------------------------------------------------

FLAT = StepTime(base=0.0, per_sequence=TPOT, low=1, high=64, points=9, error=0.0)
"""A single sequence takes the objective, to the bit."""


def test_a_single_sequence_at_the_objective_is_not_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_bandwidth_bound, "fit_step_time", lambda points: FLAT)
    # Three sequences: too few for the knee, more than two.
    seen = observation(engine(running=3, kv=0.3), tpot=exactly(0.09), itl=exactly(0.09))
    assert named(seen).primary is DiagnosisClass.UNCLEAR


def test_a_batch_at_the_knee_is_not_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_tpot_knee, "largest_batch_at_quantile", lambda model, **_: 30)
    steps = tuple(StepPoint(running=batch, itl=0.001 * batch, tokens=1000) for batch in (8.0, 16.0, 32.0))
    found = named(observation(engine(running=30, kv=0.3), tpot=exactly(0.09), steps=steps))
    assert found.primary is not DiagnosisClass.PAST_TPOT_KNEE
    assert "allows a batch size of 30" in found.message


def compared(itl: float, *, batch: float = 1.0) -> bool:
    seen = observation(engine(running=batch, kv=0.3), itl=Distribution(total=itl, count=1.0))
    knobs = EngineKnobs(tensor_parallel_size=4)
    return (
        no_faster_than_fewer_gpus(Case(observation=seen, targets=targets(), knobs=knobs, learned={2: FLAT})) is not None
    )


def test_a_step_that_gains_exactly_a_tenth_gains_too_little() -> None:
    assert compared(GAIN.limit * FLAT.predict(1.0))
    assert not compared(0.999 * GAIN.limit * FLAT.predict(1.0))
    assert not compared(1.0, batch=0.9), "less than one sequence is nobody's step"


def test_a_tpot_at_the_objective_blames_no_link() -> None:
    seen = observation(engine(running=2, kv=0.3), tpot=exactly(TPOT), itl=latency(0.2, count=2000))
    found, _ = diagnosed(
        seen, targets=targets(), knobs=EngineKnobs(tensor_parallel_size=4), history=History(learned={2: FLAT})
    )
    assert found.primary is DiagnosisClass.HEALTHY


def prompted(*, running: float, finished: float, prompts: float, generated: float, seconds: float) -> Observation:
    """Requests wait with room in the cache; `seconds` of the window went into `prompts` tokens."""
    busy = engine(
        running=running,
        waiting=max(12.0, running),
        kv=0.35,
        finished=finished,
        prompt_tokens=prompts,
        prompt_tokens_computed=prompts,
        generation_tokens=generated,
        prefill_seconds=seconds,
    )
    each = latency(seconds / finished)
    return observation(busy, ttft=latency(25.0), prefill_time=each, tpot=latency(0.02), itl=latency(0.02))


@pytest.mark.parametrize("seats", [None, 256])
def test_a_few_long_prompts_at_a_time_are_no_cap(seats: int | None) -> None:
    """Prompts of 60,000 tokens are computed one after the other: one runs, and the flag is left out."""
    seen = prompted(running=1.0, finished=12.0, prompts=720_000.0, generated=240.0, seconds=27.0)
    assert named(seen, seats=seats).primary is DiagnosisClass.PREFILL_BOUND


def test_a_full_batch_that_is_given_new_prompts_all_the_time_is_capped() -> None:
    """Of 256 that run, one is a prompt at any time: its share of the time is that of one, and no reason."""
    seen = prompted(running=256.0, finished=200.0, prompts=400_000.0, generated=60_000.0, seconds=28.0)
    assert named(seen, seats=None).primary is DiagnosisClass.CONCURRENCY_CAPPED
