"""Outputs that run away, contexts that are too long, pools that thrash, replicas too many."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.builders import NOT_MEASURED, NOW, WINDOW, diagnosed, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import Endings
from vllm_autotuner.observation.observation import FirstTokens, KVPool, Observation, StepPoint

MODEL_LENGTH = KVPool(max_model_len=2048)


def mean(tokens: float, *, count: float = 20.0) -> Distribution:
    return Distribution(total=tokens * count, count=count)


def beside(found: Diagnosis) -> list[DiagnosisClass]:
    return [part.diagnosis for part in found.contributing]


# --- RunawayOutputs ---------------------------------------------------------------------------------------------------


def ended(
    *,
    length: float = 19.0,
    stop: float = 1.0,
    output: float = 1_900.0,
    prompt: float = 48.0,
    earlier: Endings | None = None,
    lately: Endings | None = None,
    pool: KVPool = MODEL_LENGTH,
    **rest: Any,
) -> Observation:
    one = engine(finished_by={"length": length, "stop": stop}, earlier=earlier, lately=lately, pool=pool, **rest)
    return observation(one, recent_output_length=mean(output), recent_prompt_length=mean(prompt))


STOPPED = Endings(finished=1000.0, by_length=50.0, output_mean=100.0)
"""A service whose requests used to stop by themselves."""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(ended(), DiagnosisClass.RUNAWAY_OUTPUTS, id="F5 a missing stop token: outputs fill max-model-len"),
        pytest.param(
            ended(output=200), DiagnosisClass.HEALTHY, id="a load generator with a fixed length ends by it, too"
        ),
        pytest.param(ended(output=1_600), DiagnosisClass.RUNAWAY_OUTPUTS, id="four fifths of what is left"),
        pytest.param(ended(output=1_599), DiagnosisClass.HEALTHY, id="less than four fifths of what is left"),
        pytest.param(ended(length=18, stop=2), DiagnosisClass.RUNAWAY_OUTPUTS, id="nine of ten by length"),
        pytest.param(ended(length=17, stop=2), DiagnosisClass.HEALTHY, id="fewer than nine of ten by length"),
        pytest.param(ended(length=5, stop=0), DiagnosisClass.RUNAWAY_OUTPUTS, id="five requests"),
        pytest.param(
            ended(length=2, stop=0, lately=Endings(finished=6.0, by_length=6.0, output_mean=1_900.0)),
            DiagnosisClass.RUNAWAY_OUTPUTS,
            id="outputs so long that few end in a window: the minutes before it count, too",
        ),
        pytest.param(
            ended(length=0, stop=0, lately=Endings(finished=4.0, by_length=4.0, output_mean=1_900.0)),
            DiagnosisClass.HEALTHY,
            id="four requests in all that time are somebody's experiment",
        ),
        pytest.param(
            ended(length=1, stop=4, lately=Endings(finished=60.0, by_length=60.0, output_mean=1_900.0)),
            DiagnosisClass.HEALTHY,
            id="what ends now counts for more than what ended before",
        ),
        pytest.param(ended(length=4, stop=0), DiagnosisClass.HEALTHY, id="four requests are somebody's experiment"),
        pytest.param(
            ended(output=200, earlier=STOPPED), DiagnosisClass.RUNAWAY_OUTPUTS, id="twice as long as they used to be"
        ),
        pytest.param(ended(output=199, earlier=STOPPED), DiagnosisClass.HEALTHY, id="less than twice as long"),
        pytest.param(
            ended(output=900, earlier=Endings(finished=1000.0, by_length=1000.0, output_mean=100.0)),
            DiagnosisClass.HEALTHY,
            id="twice as long, but all of them always ended by length: another phase of a load generator",
        ),
        pytest.param(
            ended(output=900, earlier=Endings(finished=1000.0, by_length=500.0, output_mean=100.0)),
            DiagnosisClass.RUNAWAY_OUTPUTS,
            id="half of them used to stop",
        ),
        pytest.param(
            ended(output=900, earlier=Endings(finished=1000.0, by_length=501.0, output_mean=100.0)),
            DiagnosisClass.HEALTHY,
            id="fewer than half used to stop",
        ),
        pytest.param(
            ended(output=900, earlier=Endings(finished=4.0, by_length=0.0, output_mean=100.0)),
            DiagnosisClass.HEALTHY,
            id="four requests are no history",
        ),
        pytest.param(
            ended(output=900, earlier=Endings(finished=5.0, by_length=0.0, output_mean=100.0)),
            DiagnosisClass.RUNAWAY_OUTPUTS,
            id="five are one",
        ),
        pytest.param(
            ended(output=900, earlier=Endings(finished=1000.0, by_length=0.0, output_mean=None)),
            DiagnosisClass.HEALTHY,
            id="a history without lengths",
        ),
        pytest.param(ended(pool=KVPool()), DiagnosisClass.HEALTHY, id="max-model-len not known: not invented"),
        pytest.param(
            ended(running=60, waiting=21, kv=0.998), DiagnosisClass.KV_CACHE_SATURATED, id="the pool is named first"
        ),
        pytest.param(
            ended(running=30, waiting=21, kv=0.4), DiagnosisClass.RUNAWAY_OUTPUTS, id="before a class that adds GPUs"
        ),
        pytest.param(
            observation(engine(pool=MODEL_LENGTH), recent_output_length=mean(1_900), recent_prompt_length=mean(48)),
            DiagnosisClass.HEALTHY,
            id="the finished reason is not exported",
        ),
    ],
)
def test_runaway(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_runaway_outputs_stand_beside_the_pool_that_they_fill() -> None:
    assert beside(named(ended(running=60, waiting=21, kv=0.998))) == [DiagnosisClass.RUNAWAY_OUTPUTS]


def test_a_told_max_model_len_wins() -> None:
    found, _ = diagnosed(ended(output=900), targets=targets(), knobs=EngineKnobs(max_model_len=1024), history=History())
    assert (found.primary, found.confidence) == (DiagnosisClass.RUNAWAY_OUTPUTS, Confidence.HIGH)
    assert named(ended(output=900, earlier=STOPPED)).confidence is Confidence.MEDIUM


def test_named_runaway_outputs_leave_when_clearly_fewer_end_by_length() -> None:
    for length, expected in ((14, DiagnosisClass.RUNAWAY_OUTPUTS), (13, DiagnosisClass.HEALTHY)):
        assert settled(ended(), ended(length=length, stop=20 - length)) is expected


def test_named_runaway_outputs_are_shown_with_the_limit_they_stay_by() -> None:
    history, told = History(), []
    for seen in (ended(), ended(length=14, stop=6)):
        found, history = diagnosed(seen, targets=targets(), knobs=EngineKnobs(), history=history)
        told += [(one.value, one.threshold) for one in found.evidence if one.name == "finished by length"]
    assert told == [(0.95, 0.9), (0.7, 0.7)]


def settled(before: Observation, after: Observation) -> DiagnosisClass:
    """What is named when `before` was, and then `after` lasts."""
    history = History()
    for seen in (before, after, after):
        found, history = diagnosed(seen, targets=targets(), knobs=EngineKnobs(max_num_seqs=64), history=history)
    return found.primary


# --- ContextOversized -------------------------------------------------------------------------------------------------


def up_to(tokens: float, *, count: float = 2000.0) -> Distribution:
    return Distribution(buckets={tokens * 0.999: 0.0, tokens: count, math.inf: count}, count=count)


def context(*, longest: int | None, prompt: float = 2_000, output: float = 1_000, count: float = 2000.0) -> Observation:
    return observation(
        engine(pool=KVPool(max_model_len=longest)),
        prompt_length=up_to(prompt, count=count),
        output_length=up_to(output, count=count),
    )


@pytest.mark.parametrize(
    ("seen", "oversized"),
    [
        pytest.param(context(longest=4_096), False, id="F4 p99 total 3,000 -> 4,096 is right"),
        pytest.param(context(longest=32_768), True, id="F4 not 32,768"),
        pytest.param(context(longest=7_500), True, id="half of it is needed, with the margin"),
        pytest.param(context(longest=7_490), False, id="more than half of it is needed"),
        pytest.param(context(longest=32_768, count=999), False, id="999 requests have no p99.9"),
        pytest.param(context(longest=32_768, count=1_000), True, id="1,000 requests have one"),
        pytest.param(context(longest=None), False, id="max-model-len is not known"),
        pytest.param(observation(engine(pool=KVPool(max_model_len=32_768))), False, id="lengths are not exported"),
    ],
)
def test_context(seen: Observation, oversized: bool) -> None:
    found = named(seen)
    assert found.primary is DiagnosisClass.HEALTHY, "it is never the bottleneck"
    assert (DiagnosisClass.CONTEXT_OVERSIZED in beside(found)) is oversized


# --- PreemptionThrash -------------------------------------------------------------------------------------------------


def evicting(*, preemptions: float | None = 20.0, kv: float | None = 0.9, **rest: Any) -> Observation:
    given: dict[str, Any] = {"running": 30, "waiting": 9, "finished": 100.0}
    return observation(engine(kv=kv, preemptions=preemptions, **(given | rest)))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(evicting(), DiagnosisClass.PREEMPTION_THRASH, id="one in five is evicted"),
        pytest.param(evicting(preemptions=1.01), DiagnosisClass.PREEMPTION_THRASH, id="F4 more than 1 %"),
        pytest.param(evicting(preemptions=1.0), DiagnosisClass.KV_CACHE_SATURATED, id="F4 1 % is the milder form"),
        pytest.param(evicting(waiting=0), DiagnosisClass.PREEMPTION_THRASH, id="a queue is not needed"),
        pytest.param(evicting(running=64), DiagnosisClass.PREEMPTION_THRASH, id="nor are free seats"),
        pytest.param(evicting(finished=0.0), DiagnosisClass.PREEMPTION_THRASH, id="evicting without finishing any"),
        pytest.param(evicting(kv=0.8), DiagnosisClass.PREEMPTION_THRASH, id="near full"),
        pytest.param(evicting(kv=0.79), DiagnosisClass.KV_CACHE_SATURATED, id="a burst that is over: not near full"),
        pytest.param(evicting(kv=None), DiagnosisClass.PREEMPTION_THRASH, id="usage is not exported, eviction tells"),
        pytest.param(evicting(preemptions=None), DiagnosisClass.KV_CACHE_SATURATED, id="preemptions are not exported"),
        pytest.param(evicting(finished=None), DiagnosisClass.KV_CACHE_SATURATED, id="finished is not exported"),
        pytest.param(
            observation(
                engine(running=30, waiting=9, kv=0.9, preemptions=20, finished=100),
                engine(pod="chat-1", running=64, waiting=30, kv=0.5),
            ),
            DiagnosisClass.OVERLOADED,
            id="one of two engines in trouble evicts: no single name",
        ),
        pytest.param(
            observation(
                engine(running=30, waiting=9, kv=0.9, preemptions=20, finished=100),
                engine(pod="chat-1", running=30, waiting=0, kv=0.5),
            ),
            DiagnosisClass.PREEMPTION_THRASH,
            id="the other one is fine",
        ),
    ],
)
def test_preemption(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_the_milder_form_contributes() -> None:
    assert beside(named(evicting())) == [DiagnosisClass.KV_CACHE_SATURATED]
    assert [named(evicting(kv=kv)).confidence for kv in (0.9, None)] == [Confidence.HIGH, Confidence.MEDIUM]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(evicting(preemptions=0.51, kv=0.5, waiting=0), DiagnosisClass.PREEMPTION_THRASH, id="still"),
        pytest.param(evicting(preemptions=0.5, kv=0.5, waiting=0), DiagnosisClass.HEALTHY, id="half a percent"),
        pytest.param(evicting(kv=0.49, waiting=0), DiagnosisClass.HEALTHY, id="the backlog has gone"),
    ],
)
def test_named_thrash_leaves_when_clearly_over(after: Observation, expected: DiagnosisClass) -> None:
    assert settled(evicting(), after) is expected


# --- Underutilized ----------------------------------------------------------------------------------------------------

FLAT = tuple(StepPoint(running=batch, itl=0.01 + 1e-6 * batch, tokens=1000.0) for batch in (2.0, 8.0, 64.0))
"""What these engines have shown of larger batches: they cost next to nothing."""
FAST: dict[str, Any] = {"ttft": latency(0.2), "tpot": latency(0.01), "itl": latency(0.01, count=22_400), "steps": FLAT}
"""22,400 intervals of 10 ms are the seconds of four sequences in two engines over 28 s."""


def idling(
    count: int = 2, *, expected: int | None = None, latencies: dict[str, Any] = FAST, **rest: Any
) -> Observation:
    given: dict[str, Any] = {"running": 4.0, "kv": 0.1, "prefill_seconds": 1.0}
    some = (engine(pod=f"chat-{number}", **(given | rest)) for number in range(count))
    return observation(*some, expected=expected, **latencies)


@pytest.mark.parametrize(("seats", "told"), [(64, False), (None, True)])
def test_a_number_of_slots_that_is_not_known_is_told_as_the_condition(seats: int | None, told: bool) -> None:
    """Eight slots of which five ran were taken for as many as it takes: no request was in time on one replica."""
    found = named(idling(running=5.0), seats=seats)
    assert found.primary is DiagnosisClass.UNDERUTILIZED
    assert ("max-num-seqs is not known: 11 sequences would run in each, which it has to allow" in found.message) is told


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(idling(), DiagnosisClass.UNDERUTILIZED, id="two replicas with the load of less than one"),
        pytest.param(idling(1), DiagnosisClass.HEALTHY, id="the only replica is needed"),
        pytest.param(idling(expected=3), DiagnosisClass.HEALTHY, id="the third may be the busy one"),
        pytest.param(idling(expected=2), DiagnosisClass.UNDERUTILIZED, id="everybody reports"),
        pytest.param(idling(waiting=[1] + [0] * 14), DiagnosisClass.HEALTHY, id="somebody waited"),
        pytest.param(idling(rejected=0.5), DiagnosisClass.UNCLEAR, id="somebody was turned away"),
        pytest.param(
            idling(
                running=32.0,
                latencies=FAST
                | {
                    "itl": latency(0.01, count=179_200),
                    "steps": tuple(StepPoint(running=b, itl=b / 3200, tokens=1000.0) for b in (8.0, 16.0, 32.0) * 3),
                },
            ),
            DiagnosisClass.HEALTHY,
            id="all of a step is the batch's: on one replica it would have no end",
        ),
        pytest.param(idling(stalled_for=WINDOW), DiagnosisClass.UNCLEAR, id="no token for a window: they may hang"),
        pytest.param(idling(kv=0.399), DiagnosisClass.UNDERUTILIZED, id="KV 40 % becomes 80 %"),
        pytest.param(idling(kv=0.41), DiagnosisClass.HEALTHY, id="KV 41 % becomes 82 %"),
        pytest.param(idling(3, kv=0.5), DiagnosisClass.UNDERUTILIZED, id="of three, 50 % becomes 75 %"),
        pytest.param(idling(kv=None), DiagnosisClass.HEALTHY, id="KV is not exported"),
        pytest.param(idling(running=25.5), DiagnosisClass.UNDERUTILIZED, id="40 % of the seats become 80 %"),
        pytest.param(idling(running=26.0), DiagnosisClass.HEALTHY, id="more than 80 % of the seats"),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.039)}),
            DiagnosisClass.UNDERUTILIZED,
            id="TPOT 39 ms stays 39 where larger batches were seen",
        ),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.041)}),
            DiagnosisClass.HEALTHY,
            id="TPOT 41 ms is near 50 already",
        ),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.02), "steps": ()}),
            DiagnosisClass.UNDERUTILIZED,
            id="unseen: TPOT 20 ms becomes 40 at most",
        ),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.021), "steps": ()}),
            DiagnosisClass.HEALTHY,
            id="unseen: TPOT 21 ms may become 42 of 50",
        ),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.03), "itl": latency(0.01, count=5_600), "steps": ()}),
            DiagnosisClass.UNDERUTILIZED,
            id="unseen, one sequence each by the time between tokens, four in the scrapes: TPOT 30 ms becomes 37",
        ),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.03), "steps": ()}),
            DiagnosisClass.HEALTHY,
            id="unseen, four sequences each: TPOT 30 ms may become 60",
        ),
        pytest.param(
            idling(scrapes=1, latencies=FAST | {"tpot": latency(0.03), "steps": ()}),
            DiagnosisClass.HEALTHY,
            id="a single scrape has no length: its four sequences count",
        ),
        pytest.param(
            idling(latencies=FAST | {"ttft": latency(0.85)}), DiagnosisClass.HEALTHY, id="TTFT 0.85 s becomes 1.7 of 2"
        ),
        pytest.param(
            idling(latencies=FAST | {"ttft": NOT_MEASURED}), DiagnosisClass.HEALTHY, id="TTFT is not measured"
        ),
        pytest.param(
            idling(prefill_seconds=0.25 * (WINDOW - 2)),
            DiagnosisClass.UNDERUTILIZED,
            id="a quarter of the time prefill",
        ),
        pytest.param(
            idling(prefill_seconds=0.26 * (WINDOW - 2)), DiagnosisClass.HEALTHY, id="more would be half of the time"
        ),
        pytest.param(
            observation(engine(running=4.0, kv=0.1), engine(running=4.0, kv=0.1), **FAST),
            DiagnosisClass.HEALTHY,
            id="two engines of one pod are one replica",
        ),
    ],
)
def test_underutilized(seen: Observation, expected: DiagnosisClass) -> None:
    found = named(seen)
    assert found.primary is expected, found.message


def test_an_unknown_max_num_seqs_is_not_counted() -> None:
    assert named(idling(running=30.0), seats=None).primary is DiagnosisClass.UNDERUTILIZED
    assert "1 of 2 replicas would carry the load" in named(idling()).message


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(idling(kv=0.43), DiagnosisClass.UNDERUTILIZED, id="KV 86 % of 80 % is noise"),
        pytest.param(idling(kv=0.45), DiagnosisClass.HEALTHY, id="KV 90 % is more"),
        pytest.param(
            idling(latencies=FAST | {"tpot": latency(0.043)}), DiagnosisClass.UNDERUTILIZED, id="TPOT 43 ms of 40"
        ),
        pytest.param(idling(latencies=FAST | {"tpot": latency(0.045)}), DiagnosisClass.HEALTHY, id="TPOT 45 ms"),
        pytest.param(idling(running=31.9), DiagnosisClass.UNDERUTILIZED, id="a burst takes the free slots"),
        pytest.param(idling(running=32.5), DiagnosisClass.HEALTHY, id="more than there are slots"),
    ],
)
def test_named_underutilized_stays_within_noise(after: Observation, expected: DiagnosisClass) -> None:
    assert settled(idling(), after) is expected
    assert named(after).primary is DiagnosisClass.HEALTHY, "it would not be named by this"


@pytest.mark.parametrize(
    ("first", "running", "expected"),
    [
        pytest.param(9.0, 6.5, DiagnosisClass.HEALTHY, id="13 of 16 that were too many"),
        pytest.param(9.0, 6.3, DiagnosisClass.UNDERUTILIZED, id="12.6 are below 80 % of them"),
        pytest.param(1.9, 30.0, DiagnosisClass.UNDERUTILIZED, id="16 came in time: nothing is known of a limit"),
    ],
)
def test_slots_that_are_not_known_are_bounded_by_what_was_too_many(
    first: float, running: float, expected: DiagnosisClass
) -> None:
    """After a scale-out nothing waits any more, and the number of slots is as small as it was."""
    steps = tuple(replace(point, time=NOW - 60.0 * index) for index, point in enumerate(FLAT[:2], start=1))
    full = StepPoint(running=16.0, itl=0.010016, tokens=1000.0, time=NOW - 300.0)
    late = FirstTokens(mean=first, requests=50.0, time=NOW - 300.0)
    seen = idling(running=running, latencies=FAST | {"steps": (*steps, full), "first_tokens": (late,)})
    found = named(seen, seats=None)
    assert found.primary is expected, found.message


def test_what_larger_batches_cost_is_surer_where_it_was_seen() -> None:
    assert named(idling()).confidence is Confidence.MEDIUM
    assert named(idling(latencies=FAST | {"steps": ()})).confidence is Confidence.LOW


def test_without_a_step_time_tokens_are_taken_to_come_as_much_slower_as_the_load_grows() -> None:
    untold = FAST | {"itl": NOT_MEASURED}
    assert named(idling(latencies=untold | {"tpot": latency(0.02)})).primary is DiagnosisClass.UNDERUTILIZED
    assert named(idling(latencies=untold | {"tpot": latency(0.021)})).primary is DiagnosisClass.HEALTHY
