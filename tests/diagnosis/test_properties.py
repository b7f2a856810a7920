"""What must hold for every observation, not only for those that somebody thought of."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import SCRAPES, engine, latency, named, observation

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Threshold
from vllm_autotuner.diagnosis.rules import RULES
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import EngineWindow, Moment, Observation

FEW = settings(max_examples=40)
"""An observation is a big value: building it takes longer than judging it."""

LIMITS = frozenset(
    {
        DiagnosisClass.PREEMPTION_THRASH,
        DiagnosisClass.KV_CACHE_SATURATED,
        DiagnosisClass.CONCURRENCY_CAPPED,
        DiagnosisClass.OVERLOADED,
        DiagnosisClass.PAST_TPOT_KNEE,
    }
)
COUNTS = LIMITS - {DiagnosisClass.PAST_TPOT_KNEE, DiagnosisClass.PREEMPTION_THRASH}


def windows(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """Two levels in one window, in any proportion: every share of scrapes occurs."""
    return st.builds(
        lambda one, other, count: [one] * count + [other] * (SCRAPES - count), values, values, st.integers(0, SCRAPES)
    )


levels = windows(st.integers(0, 80).map(float))
usages = windows(st.floats(0, 1)) | st.none()


@st.composite
def engines(draw: st.DrawFn, pod: str = "chat-0") -> EngineWindow:
    return engine(
        pod=pod,
        running=draw(levels),
        waiting=draw(levels | st.just(0.0)),
        deferred=draw(levels | st.none()),
        kv=draw(usages),
        preemptions=draw(st.none() | st.integers(0, 200).map(float)),
        finished=draw(st.none() | st.integers(0, 500).map(float)),
        stalled_for=draw(st.none() | st.floats(0, 300)),
    )


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    count = draw(st.integers(1, 3))
    seconds = st.floats(0.001, 100)
    return observation(
        *(draw(engines(f"chat-{number}")) for number in range(count)),
        ttft=latency(draw(seconds)),
        tpot=latency(draw(seconds) / 100),
        itl=latency(draw(seconds) / 100, count=2000),
    )


def slower(distribution: Distribution, factor: float) -> Distribution:
    return replace(
        distribution,
        buckets={edge * factor: count for edge, count in distribution.buckets.items()},
        total=(distribution.total or 0.0) * factor,
    )


def with_waiting(seen: Observation, more: float) -> Observation:
    def fuller(moment: Moment) -> Moment:
        return replace(moment, waiting=moment.waiting + more)

    return replace(
        seen,
        engines=tuple(replace(one, moments=tuple(map(fuller, one.moments))) for one in seen.engines),
    )


@FEW
@given(observations(), st.sampled_from([None, 4, 64]))
def test_everything_gets_a_name_a_sentence_and_finite_evidence(seen: Observation, seats: int | None) -> None:
    found = named(seen, seats=seats)
    assert found.message.rstrip(").").strip()
    assert "nan" not in found.message
    for one in found.evidence:
        assert one.unit
        assert one.value is None or one.value == one.value
        assert one.value is not None or one.note, "what is not known says why"


@FEW
@given(observations(), st.integers(1, 1000))
def test_more_waiting_never_turns_a_limit_into_health(seen: Observation, more: int) -> None:
    if named(seen).primary in LIMITS:
        assert named(with_waiting(seen, float(more))).primary not in (DiagnosisClass.HEALTHY, DiagnosisClass.IDLE)


@FEW
@given(observations(), st.integers(1, 1000))
def test_a_queue_in_every_scrape_is_never_healthy(seen: Observation, more: int) -> None:
    assert named(with_waiting(seen, float(more))).primary not in (DiagnosisClass.HEALTHY, DiagnosisClass.IDLE)


@FEW
@given(observations())
def test_a_metric_that_goes_missing_never_turns_a_limit_into_health(seen: Observation) -> None:
    hidden = replace(seen, engines=tuple(replace(one, preemptions=None, finished=None) for one in seen.engines))
    if named(seen).primary in COUNTS:
        assert named(hidden).primary not in (DiagnosisClass.HEALTHY, DiagnosisClass.IDLE, DiagnosisClass.UNDERUTILIZED)


@FEW
@given(observations())
def test_a_silent_engine_never_changes_the_verdict(seen: Observation) -> None:
    alone, beside = named(seen), named(replace(seen, silent=("chat-9",)))
    # One replica fewer is only an idea while everybody reports.
    same = {
        DiagnosisClass.HEALTHY if found.primary is DiagnosisClass.UNDERUTILIZED else found.primary
        for found in (alone, beside)
    }
    assert len(same) == 1
    assert (beside.confidence is Confidence.HIGH) <= (alone.confidence is Confidence.HIGH)


@FEW
@given(observations(), st.floats(0.01, 100))
def test_faster_or_slower_machines_do_not_change_classes_about_counts(seen: Observation, factor: float) -> None:
    """TPOT stays: it decides between ConcurrencyCapped and PastTPOTKnee, and is not a count."""
    scaled = replace(seen, ttft=slower(seen.ttft, factor))
    before, after = named(seen).primary, named(scaled).primary
    if before in COUNTS or after in COUNTS:
        assert before is after


@FEW
@given(observations(), st.permutations(range(3)))
def test_the_order_of_engines_does_not_matter(seen: Observation, order: list[int]) -> None:
    shuffled: list[Any] = [seen.engines[index] for index in order if index < len(seen.engines)]
    assert named(replace(seen, engines=tuple(shuffled))).primary is named(seen).primary


@FEW
@given(observations())
def test_a_hang_is_never_answered_with_more_capacity(seen: Observation) -> None:
    def stopped(one: EngineWindow) -> EngineWindow:
        """No token is counted, and no gauge set."""
        moments = tuple(replace(moment, kv=one.moments[0].kv) for moment in one.moments)
        return replace(one, stalled_for=500.0, moments=moments)

    frozen = replace(seen, engines=tuple(map(stopped, with_waiting(seen, 1.0).engines)))
    assert named(frozen).primary is DiagnosisClass.WEDGED


def test_every_class_but_unclear_has_one_rule() -> None:
    ruled = [rule.diagnosis for rule in RULES]
    assert len(ruled) == len(set(ruled))
    assert set(DiagnosisClass) - set(ruled) == {DiagnosisClass.UNCLEAR}


def test_every_threshold_says_its_unit_its_reason_and_where_it_comes_from() -> None:
    found = [
        (type(rule).__name__, name, value)
        for rule in RULES
        for name in getattr(rule, "__dataclass_fields__", {})
        if isinstance(value := getattr(rule, name), Threshold)
    ]
    assert found
    for rule, name, threshold in found:
        assert all((threshold.unit, threshold.reason, threshold.source)), f"{rule}.{name}"
