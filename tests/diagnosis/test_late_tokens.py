"""Late first tokens and slow ones without a full pool or taken seats: prefill, bandwidth, links, a few giants."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.builders import NOT_MEASURED, WINDOW, diagnosed, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.performance.step_time import StepTime, fit_step_time

SAMPLED = WINDOW - 2
"""Seconds between the first and the last scrape of the builders' window."""


def lengths(short: float, long: float, *, share: float = 0.05, count: float = 200.0) -> Distribution:
    """`share` of all requests have `long` tokens, the others `short`."""
    few = share * count
    return Distribution(
        buckets={short * 0.98: 0.0, short: count - few, long * 0.98: count - few, long: count, math.inf: count},
        count=count,
    )


# --- PastTPOTKnee -----------------------------------------------------------------------------------------------------

SHORT_PROMPTS = tuple(StepPoint(running=b, itl=0.01 + 0.0005 * b, tokens=1000) for b in (8.0, 20.0, 32.0))
"""Windows in which a batch of 80 would have met the objective of 50 ms."""


@pytest.mark.parametrize(
    ("itl", "expected"),
    [
        pytest.param(0.060, DiagnosisClass.PAST_TPOT_KNEE, id="no window explains them: prompts have grown since"),
        pytest.param(0.021, DiagnosisClass.UNCLEAR, id="the mean is as foreseen: a tail that no batch explains"),
    ],
)
def test_windows_of_before_do_not_excuse_tokens_that_come_late_now(itl: float, expected: DiagnosisClass) -> None:
    slow = observation(engine(running=20, kv=0.3), tpot=latency(0.060), itl=latency(itl), steps=SHORT_PROMPTS)
    assert named(slow).primary is expected


def test_windows_that_no_line_describes_are_not_told_to_be_missing() -> None:
    seen = ((3, 0.0051, 2e3), (106, 0.0184, 2e5), (162, 0.0181, 3e5))
    steps = tuple(StepPoint(running=b, itl=itl, tokens=tokens) for b, itl, tokens in seen)
    found = named(observation(engine(running=3.5, kv=0.3), tpot=latency(0.06), itl=latency(0.06), steps=steps))
    assert found.primary is DiagnosisClass.UNCLEAR
    assert "misses the 3 windows with load by 44%" in found.message


# --- PrefillBound -----------------------------------------------------------------------------------------------------

PROMPTS: dict[str, Any] = {"ttft": latency(6.0), "queue_time": latency(0.1)}
QUEUE: dict[str, Any] = {"running": 8.0, "waiting": 25.0, "kv": 0.32, "generation_tokens": 200.0}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            observation(engine(running=8, kv=0.3), **PROMPTS, prefill_time=latency(5.8)),
            DiagnosisClass.PREFILL_BOUND,
            id="F3 nothing waits, TTFT high: prefill",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), **PROMPTS, prefill_time=latency(3.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="half of TTFT is prefill",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), **PROMPTS, prefill_time=latency(2.9)),
            DiagnosisClass.UNCLEAR,
            id="less than half of TTFT is prefill: the frontend, the tokenizer, the network",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=latency(2.0), prefill_time=latency(1.9)),
            DiagnosisClass.HEALTHY,
            id="long prompts inside the objective",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=1.2 * SAMPLED), ttft=latency(8.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="peers: prefill-only load at 32 % KV with free seats",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=0.5 * SAMPLED), ttft=latency(8.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="half of the time on prompts",
        ),
        pytest.param(
            observation(engine(**(QUEUE | {"generation_tokens": 0.0}), finished=0.0), ttft=latency(8.0)),
            DiagnosisClass.PREFILL_BOUND,
            id="before the first request finishes, prompt tokens without output tokens tell",
        ),
        pytest.param(
            observation(
                engine(**(QUEUE | {"generation_tokens": 0.0}), prompt_tokens=0.0, finished=0.0), ttft=latency(8.0)
            ),
            DiagnosisClass.OVERLOADED,
            id="nothing computed yet tells nothing",
        ),
        pytest.param(
            observation(
                engine(**QUEUE, prompt_tokens=1_600.0, prefill_seconds=1.2 * SAMPLED),
                ttft=latency(8.0),
                tpot=latency(0.09),
            ),
            DiagnosisClass.PREFILL_BOUND,
            id="eight prompt tokens for each output token: steps are long because of prompts, at any batch",
        ),
        pytest.param(
            observation(
                engine(**QUEUE, prompt_tokens=1_599.0, prefill_seconds=1.2 * SAMPLED),
                ttft=latency(8.0),
                tpot=latency(0.09),
            ),
            DiagnosisClass.PAST_TPOT_KNEE,
            id="fewer prompt tokens: the batch makes the steps long",
        ),
        pytest.param(
            observation(
                engine(**QUEUE, prompt_tokens=9_000.0, prompt_tokens_computed=900.0, prefill_seconds=1.2 * SAMPLED),
                ttft=latency(8.0),
                tpot=latency(0.09),
            ),
            DiagnosisClass.PAST_TPOT_KNEE,
            id="prompts that the cache holds take no time in a step",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=0.49 * SAMPLED), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="less than half of the time on prompts: this queue is for something else",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=None), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="a queue, and nobody knows what the engine does: no prefill is invented",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=30.0, scrapes=1), ttft=latency(8.0)),
            DiagnosisClass.OVERLOADED,
            id="a single scrape has no rate",
        ),
        pytest.param(
            observation(engine(**QUEUE, prefill_seconds=1.2 * SAMPLED), ttft=latency(1.0)),
            DiagnosisClass.OVERLOADED,
            id="TTFT inside its objective",
        ),
        pytest.param(
            observation(engine(**(QUEUE | {"kv": 0.95}), prefill_seconds=1.2 * SAMPLED), ttft=latency(8.0)),
            DiagnosisClass.KV_CACHE_SATURATED,
            id="the pool comes first",
        ),
        pytest.param(
            observation(engine(**(QUEUE | {"running": 64.0}), prefill_seconds=1.2 * SAMPLED), ttft=latency(8.0)),
            DiagnosisClass.CONCURRENCY_CAPPED,
            id="taken seats come first",
        ),
        pytest.param(
            observation(
                engine(**(QUEUE | {"running": [64.0] * 8 + [8.0] * 7}), prefill_seconds=1.2 * SAMPLED),
                ttft=latency(8.0),
            ),
            DiagnosisClass.OVERLOADED,
            id="seats taken half of the time bind half of the time: neither name is sure",
        ),
        pytest.param(
            observation(
                engine(**(QUEUE | {"running": [64.0] * 7 + [8.0] * 8}), prefill_seconds=1.2 * SAMPLED),
                ttft=latency(8.0),
            ),
            DiagnosisClass.PREFILL_BOUND,
            id="seats taken now and then",
        ),
        pytest.param(
            observation(
                engine(**QUEUE, prefill_seconds=1.2 * SAMPLED),
                engine(pod="chat-1", **QUEUE, prefill_seconds=0.1 * SAMPLED),
                ttft=latency(8.0),
            ),
            DiagnosisClass.OVERLOADED,
            id="two engines that queue for two reasons",
        ),
        pytest.param(
            observation(engine(running=8, waiting=[1] + [0] * 14, kv=0.3), ttft=latency(6.0)),
            DiagnosisClass.HEALTHY,
            id="a queue that has drained, and no prefill times: nothing is invented",
        ),
        pytest.param(
            observation(engine(running=8, waiting=[0] * 14 + [1], kv=0.3), ttft=latency(6.0)),
            DiagnosisClass.UNCLEAR,
            id="somebody waits, and no prefill times: nothing is invented",
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=NOT_MEASURED, prefill_time=latency(9.0)),
            DiagnosisClass.HEALTHY,
            id="a TTFT that nobody measured misses nothing",
        ),
    ],
)
def test_prefill(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_unknown_prefill_times_and_max_num_seqs_cost_confidence() -> None:
    alone = observation(engine(running=8, kv=0.3), ttft=latency(6.0))
    assert named(alone).confidence is Confidence.LOW
    queue = observation(engine(**QUEUE | {"running": [8.0, 6.0, 5.0] * 5}, prefill_seconds=30.0), ttft=latency(8.0))
    assert named(queue).confidence is Confidence.HIGH
    assert (named(queue, seats=None).primary, named(queue, seats=None).confidence) == (
        DiagnosisClass.PREFILL_BOUND,
        Confidence.MEDIUM,
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "expected"),
    [
        pytest.param(200_000.0, DiagnosisClass.PREFILL_BOUND, id="most of what is computed are prompts"),
        pytest.param(3_000.0, DiagnosisClass.UNCLEAR, id="prompts of 27 tokens were called long"),
    ],
)
def test_prefill_times_of_a_window_in_which_no_request_ended(prompt_tokens: float, expected: DiagnosisClass) -> None:
    """They are exported: that none was measured says nothing of prompts."""
    ended = Distribution(buckets={0.1: 0.0, math.inf: 0.0}, total=0.0, count=0.0)
    one = engine(running=8, kv=0.3, prompt_tokens=prompt_tokens, generation_tokens=15_000.0)
    found = named(observation(one, ttft=latency(6.0), prefill_time=ended))
    assert found.primary is expected
    assert "not exported" not in found.message


@pytest.mark.parametrize(
    ("running", "share", "prompts", "tpot", "expected"),
    [
        pytest.param(2.0, 0.6, 200_000.0, 0.08, DiagnosisClass.PREFILL_BOUND, id="two sequences wait for prompts"),
        pytest.param(30.0, 0.6, 200_000.0, 0.08, DiagnosisClass.PAST_TPOT_KNEE, id="thirty can be fewer"),
        pytest.param(2.0, 0.6, 200_000.0, 0.04, DiagnosisClass.HEALTHY, id="in time all the same"),
        pytest.param(2.0, 0.4, 200_000.0, 0.08, DiagnosisClass.UNCLEAR, id="most steps have no prompt in them"),
        pytest.param(2.0, 0.6, 30_000.0, 0.08, DiagnosisClass.UNCLEAR, id="two prompt tokens for each token"),
    ],
)
def test_tokens_that_wait_for_prompts(
    running: float, share: float, prompts: float, tpot: float, expected: DiagnosisClass
) -> None:
    """Of services drawn at random no class named what made their tokens late: few sequences, and prompts in between."""
    one = engine(running=running, kv=0.1, prefill_seconds=share * SAMPLED, prompt_tokens=prompts)
    late = latency(tpot, count=400)
    found = named(observation(one, ttft=latency(0.4), tpot=late, itl=late, prefill_time=latency(0.2)))
    assert found.primary is expected, found.message
    if expected is DiagnosisClass.PREFILL_BOUND:
        assert "prompts are computed between the tokens, and prefill takes 0.6 s of every second" in found.message


@pytest.mark.parametrize(
    ("steps", "tpot", "expected"),
    [
        pytest.param((), 0.24, DiagnosisClass.PREFILL_BOUND, id="nothing says that fewer would do"),
        pytest.param(SHORT_PROMPTS, 0.24, DiagnosisClass.PREFILL_BOUND, id="as measured now not even one would do"),
        pytest.param(SHORT_PROMPTS, 0.1, DiagnosisClass.PAST_TPOT_KNEE, id="two would do"),
    ],
)
def test_prompts_that_contend_in_a_batch_of_five(
    steps: tuple[StepPoint, ...], tpot: float, expected: DiagnosisClass
) -> None:
    """As an H200 has them: prompts of 6,000 tokens for a few tokens of output, 5 ms alone and 240 ms between them."""
    one = engine(running=5, kv=0.4, prefill_seconds=1.2 * SAMPLED, prompt_tokens=900_000.0, generation_tokens=1_500.0)
    late = latency(tpot, count=400)
    found = named(observation(one, ttft=latency(0.4), tpot=late, itl=late, prefill_time=latency(0.3), steps=steps))
    assert found.primary is expected, found.message


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        pytest.param([0.0] * 8 + [5.0] * 7, 11.0, DiagnosisClass.PREFILL_BOUND, id="a queue that comes and goes"),
        pytest.param([0.0] * 15, 11.0, DiagnosisClass.PREFILL_BOUND, id="the queue was before the window"),
        pytest.param([5.0] * 15, 64.0, DiagnosisClass.PAST_TPOT_KNEE, id="a queue that stands, for one of 64 slots"),
    ],
)
def test_prompts_that_contend_while_ttft_is_late_by_a_queue(
    waiting: list[float], running: float, expected: DiagnosisClass
) -> None:
    """An H200 near its limit with prompts of 6,000 tokens: prefill is a fifth of TTFT, and a queue comes and goes."""
    one = engine(
        running=running, waiting=waiting, kv=0.5, prefill_seconds=3.2 * SAMPLED, prompt_tokens=1_100_000.0,
        generation_tokens=1_500.0,
    )  # fmt: skip
    late = latency(0.29, count=180)
    found = named(observation(one, ttft=latency(2.6), tpot=late, itl=late, prefill_time=latency(0.5)))
    assert found.primary is expected, found.message
    assert ("TTFT p95 is 2.6 s (objective 2.0 s)" in found.message) is (expected is DiagnosisClass.PREFILL_BOUND)


def test_a_named_prefill_leaves_only_when_clearly_inside_again() -> None:
    late = observation(engine(running=8, kv=0.3), ttft=latency(6.0), prefill_time=latency(5.9))
    for ttft, expected in ((1.9, DiagnosisClass.PREFILL_BOUND), (1.8, DiagnosisClass.HEALTHY)):
        better = observation(engine(running=8, kv=0.3), ttft=latency(ttft), prefill_time=latency(ttft))
        history = History()
        for seen in (late, better, better):
            found, history = judged(seen, history=history)
        assert found.primary is expected


# --- DecodeBandwidthBound, PastTPOTKnee -------------------------------------------------------------------------------


def line(*batches: float, base: float, per_sequence: float) -> tuple[StepPoint, ...]:
    return tuple(StepPoint(running=batch, itl=base + per_sequence * batch, tokens=1000) for batch in batches)


def slow(*, running: float, base: float = 0.06, tpot: float = 0.09, **rest: Any) -> Observation:
    steps = line(2, 8, 16, 32, base=base, per_sequence=0.001)
    return observation(engine(running=running, kv=0.3), tpot=latency(tpot), itl=latency(tpot), steps=steps, **rest)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(slow(running=2), DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="slow at a batch of two"),
        pytest.param(slow(running=1), DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="slow alone"),
        pytest.param(
            replace(slow(running=1), itl=latency(0.02)),
            DiagnosisClass.UNCLEAR,
            id="requests that were slow before finish now, and steps are fast again",
        ),
        pytest.param(slow(running=30), DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="the intercept is over the objective"),
        pytest.param(slow(running=30, base=0.045), DiagnosisClass.PAST_TPOT_KNEE, id="a smaller batch meets it"),
        pytest.param(slow(running=2, tpot=0.05), DiagnosisClass.HEALTHY, id="exactly at the objective"),
        pytest.param(
            observation(engine(running=2.5, kv=0.1), tpot=latency(0.09)),
            DiagnosisClass.UNCLEAR,
            id="between two and four sequences, and no model: nobody knows",
        ),
        pytest.param(
            observation(engine(running=4, kv=0.1), tpot=latency(0.09)),
            DiagnosisClass.PAST_TPOT_KNEE,
            id="from four on the batch is tried first",
        ),
        pytest.param(
            observation(
                engine(running=2, kv=0.1, prefill_seconds=0.5 * SAMPLED), tpot=latency(0.09), prefill_time=latency(0.1)
            ),
            DiagnosisClass.UNCLEAR,
            id="steps that carry prompts are long, whatever the memory does",
        ),
        pytest.param(
            observation(engine(running=2, kv=0.1), tpot=NOT_MEASURED, itl=NOT_MEASURED),
            DiagnosisClass.HEALTHY,
            id="a TPOT that nobody measured misses nothing",
        ),
    ],
)
def test_decode(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_the_tail_of_a_bursty_batch_says_nothing_about_a_single_sequence() -> None:
    """Alone 31 ms on average; at a batch of 30 one token in ten takes twice the mean."""
    seen = slow(running=30, base=0.03)
    bursty = replace(seen, tpot=latency(0.051, tail=0.102), itl=latency(0.06))
    assert named(bursty).primary is not DiagnosisClass.DECODE_BANDWIDTH_BOUND


def test_a_single_sequence_that_just_meets_the_objective_is_past_the_knee() -> None:
    # base + one sequence = 49 ms; the builders' tail is 1 (p95 and mean coincide within 2 %).
    found = named(slow(running=30, base=0.047, tpot=0.077))
    assert found.primary is DiagnosisClass.PAST_TPOT_KNEE


def test_confidence_of_an_intercept() -> None:
    near = slow(running=30)
    far = observation(
        engine(running=30, kv=0.3),
        tpot=latency(0.09),
        itl=latency(0.09),
        steps=line(10, 16, 32, base=0.06, per_sequence=0.001),
    )
    assert [named(seen).confidence for seen in (near, far)] == [Confidence.HIGH, Confidence.MEDIUM]


def test_a_named_decode_leaves_only_when_clearly_inside_again() -> None:
    for tpot, expected in ((0.047, DiagnosisClass.DECODE_BANDWIDTH_BOUND), (0.045, DiagnosisClass.HEALTHY)):
        history = History()
        for seen in (slow(running=2), slow(running=2, tpot=tpot), slow(running=2, tpot=tpot)):
            found, history = judged(seen, history=history)
        assert found.primary is expected, tpot


# --- CommunicationBound -----------------------------------------------------------------------------------------------


def judged(
    seen: Observation, *, degree: int | None = None, history: History | None = None
) -> tuple[Diagnosis, History]:
    return diagnosed(
        seen,
        targets=targets(),
        knobs=EngineKnobs(max_num_seqs=64, tensor_parallel_size=degree),
        history=history or History(),
    )


def at_two_gpus() -> StepTime:
    model = fit_step_time(line(2, 8, 16, 32, base=0.06, per_sequence=0.001))
    assert isinstance(model, StepTime)
    return model


@pytest.mark.parametrize(
    ("degree", "itl", "expected"),
    [
        pytest.param(4, 0.0900, DiagnosisClass.COMMUNICATION_BOUND, id="four GPUs are as slow as two were"),
        pytest.param(4, 0.0820, DiagnosisClass.COMMUNICATION_BOUND, id="a tenth faster is noise"),
        pytest.param(4, 0.0800, DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="more than a tenth faster is a gain"),
        pytest.param(2, 0.0900, DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="the same degree proves nothing"),
        pytest.param(1, 0.0900, DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="nor does a higher one"),
        pytest.param(None, 0.0900, DiagnosisClass.DECODE_BANDWIDTH_BOUND, id="nor one that nobody knows"),
    ],
)
def test_communication(degree: int | None, itl: float, expected: DiagnosisClass) -> None:
    """At a batch of 30 two GPUs took 90 ms a step."""
    now = observation(
        engine(running=30, kv=0.3),
        tpot=latency(0.1),
        itl=latency(itl, count=2000),
        steps=line(4, 8, 16, 32, base=0.07, per_sequence=0.0005),
    )
    found, _ = judged(now, degree=degree, history=History(learned={2: at_two_gpus()}))
    assert found.primary is expected, found.message


def test_communication_is_learned_from_the_service_itself() -> None:
    before = slow(running=30)
    _, history = judged(before, degree=2)
    assert set(history.learned) == {2}
    found, history = judged(slow(running=30), degree=4, history=History(learned=history.learned))
    assert found.primary is DiagnosisClass.COMMUNICATION_BOUND
    assert found.confidence is Confidence.MEDIUM
    assert "it took 90 ms on 2" in found.message
    assert set(history.learned) == {2, 4}


def test_inside_the_objective_communication_is_no_bottleneck() -> None:
    found, _ = judged(slow(running=30, tpot=0.05), degree=4, history=History(learned={2: at_two_gpus()}))
    assert found.primary is DiagnosisClass.HEALTHY


def test_an_idle_engine_compares_nothing() -> None:
    quiet = observation(engine(running=0.5, kv=0.1), tpot=latency(0.2), itl=latency(0.2))
    found, _ = judged(quiet, degree=4, history=History(learned={2: at_two_gpus()}))
    assert found.primary is DiagnosisClass.DECODE_BANDWIDTH_BOUND


def test_a_batch_that_the_lower_degree_never_ran_is_little_proof() -> None:
    huge = observation(
        engine(running=60, kv=0.3),
        tpot=latency(0.2),
        itl=latency(0.2),
        steps=line(8, 30, 60, base=0.14, per_sequence=0.001),
    )
    found, _ = judged(huge, degree=4, history=History(learned={2: at_two_gpus()}))
    assert (found.primary, found.confidence) == (DiagnosisClass.COMMUNICATION_BOUND, Confidence.LOW)


# --- HeadOfLineBlocking -----------------------------------------------------------------------------------------------


def waits(usual: float, slowest: float, *, share: float = 0.06, count: float = 200.0) -> Distribution:
    few = share * count
    rest = count - few
    return Distribution(
        buckets={usual * 0.98: 0.0, usual: rest, slowest * 0.98: rest, slowest: count, math.inf: count},
        total=usual * rest + slowest * few,
        count=count,
    )


SHORT = lengths(200, 400)
HUGE = lengths(200, 16_000)


def giants(
    *,
    ttft: Distribution | None = None,
    tpot: Distribution | None = None,
    prompts: Distribution = HUGE,
    outputs: Distribution = SHORT,
) -> Observation:
    return observation(
        engine(running=8, kv=0.3),
        ttft=ttft or waits(0.2, 8.0),
        tpot=tpot,
        prompt_length=prompts,
        output_length=outputs,
        prefill_time=latency(0.1),
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(giants(), DiagnosisClass.HEAD_OF_LINE_BLOCKING, id="a few huge prompts"),
        pytest.param(giants(prompts=SHORT, outputs=HUGE), DiagnosisClass.UNCLEAR, id="huge outputs block nobody"),
        pytest.param(
            giants(tpot=waits(0.03, 0.2)),
            DiagnosisClass.HEAD_OF_LINE_BLOCKING,
            id="a huge prompt makes tokens late for those beside it",
        ),
        pytest.param(
            giants(tpot=waits(0.06, 0.2)), DiagnosisClass.PAST_TPOT_KNEE, id="tokens that are late for most: the batch"
        ),
        pytest.param(giants(prompts=SHORT), DiagnosisClass.UNCLEAR, id="late, and nobody is huge"),
        pytest.param(giants(ttft=waits(0.2, 1.9)), DiagnosisClass.HEALTHY, id="inside the objective"),
        pytest.param(giants(ttft=waits(2.5, 60.0)), DiagnosisClass.UNCLEAR, id="the median is late, too"),
        pytest.param(giants(ttft=waits(1.0, 9.0)), DiagnosisClass.UNCLEAR, id="nine times the median is a spread"),
        pytest.param(
            giants(ttft=waits(1.0, 10.3)), DiagnosisClass.HEAD_OF_LINE_BLOCKING, id="ten times the median is none"
        ),
        pytest.param(giants(prompts=lengths(200, 1_900)), DiagnosisClass.UNCLEAR, id="nine times the usual prompt"),
        pytest.param(
            giants(prompts=lengths(200, 2_060)), DiagnosisClass.HEAD_OF_LINE_BLOCKING, id="ten times the usual prompt"
        ),
        pytest.param(giants(ttft=waits(0.2, 8.0, count=49)), DiagnosisClass.UNCLEAR, id="49 waits have no p99"),
        pytest.param(giants(ttft=waits(0.2, 8.0, count=50)), DiagnosisClass.HEAD_OF_LINE_BLOCKING, id="50 waits do"),
        pytest.param(
            giants(prompts=lengths(200, 16_000, count=49)), DiagnosisClass.UNCLEAR, id="49 prompts have no p99"
        ),
        pytest.param(
            giants(prompts=lengths(200, 16_000, count=50)), DiagnosisClass.HEAD_OF_LINE_BLOCKING, id="50 prompts do"
        ),
        pytest.param(
            observation(engine(running=8, kv=0.3), ttft=waits(0.2, 8.0), prompt_length=HUGE, output_length=SHORT),
            DiagnosisClass.HEAD_OF_LINE_BLOCKING,
            id="a few giants are not called prefill, also where prefill times are not told",
        ),
    ],
)
def test_a_few_giants(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def rarely(slowest: float, *, usual: float = 0.3, late: float = 2.4) -> Distribution:
    """Of 1,000 waits 60 are `late` and four of these the slowest ones: p99 is `late`, and 0.63 % may be by chance."""
    edges = {usual: 940.0, 0.98 * late: 940.0, late: 996.0, 0.98 * slowest: 996.0, slowest: 1000.0}
    return Distribution(buckets={0.98 * usual: 0.0, **edges, math.inf: 1000.0}, count=1000.0)


@pytest.mark.parametrize(
    ("after", "stays"),
    [
        pytest.param(giants(ttft=rarely(8.0)), True, id="by chance p99 is not one of the slowest"),
        pytest.param(giants(ttft=rarely(2.5)), False, id="none is slow enough for that"),
        pytest.param(giants(ttft=rarely(8.0, late=1.9)), True, id="TTFT 1.9 s of 2 is noise"),
        pytest.param(giants(ttft=rarely(8.0, late=1.7)), False, id="TTFT 1.7 s is in time"),
        pytest.param(giants(ttft=rarely(40.0, usual=2.1, late=30.0)), True, id="a median of 2.1 s of 2 is noise"),
        pytest.param(giants(ttft=rarely(40.0, usual=2.3, late=30.0)), False, id="a median of 2.3 s is late"),
    ],
)
def test_named_giants_leave_when_clearly_over(after: Observation, stays: bool) -> None:
    history = History()
    for seen in (giants(), after, after):
        found, history = diagnosed(seen, targets=targets(), knobs=EngineKnobs(max_num_seqs=64), history=history)
    assert (found.primary is DiagnosisClass.HEAD_OF_LINE_BLOCKING) is stays, found.message
    assert named(after).primary is not DiagnosisClass.HEAD_OF_LINE_BLOCKING, "it would not be named by this"


def test_a_tail_that_counts_by_chance_is_told_as_measured() -> None:
    history = History()
    for seen in (giants(), giants(ttft=rarely(8.0))):
        found, history = diagnosed(seen, targets=targets(), knobs=EngineKnobs(max_num_seqs=64), history=history)
    tail = next(one for one in found.evidence if one.name == "TTFT, p99 over p50")
    assert "TTFT p99 is 8 times the median" in found.message
    assert tail.value == pytest.approx(8.1, abs=0.1)
    assert tail.threshold == 10
    assert tail.note.startswith("up to 26")
    assert tail.note.endswith("by chance")


def test_the_giants_are_named_with_their_size() -> None:
    found = named(giants())
    assert "prompt length p99 is 15936 tokens (median 198)" in found.message
