"""The measurement of one window, and its rating."""

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOT_MEASURED, engine, latency, nobody, observation
from tests.change.worlds import NOW, TARGETS, seen

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.verdict import WindowVerdict, judge_window, measure

GOOD, BAD = WindowVerdict.GOOD, WindowVerdict.BAD
INCONCLUSIVE, NO_DATA = WindowVerdict.INCONCLUSIVE, WindowVerdict.NO_DATA


def window(ttft: float | None, tpot: float | None, tokens: float | None = 1000.0) -> Measurement:
    return Measurement(at=NOW, ttft_seconds=ttft, tpot_seconds=tpot, tokens_per_second=tokens)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    before: Measurement | None
    after: Measurement
    verdict: WindowVerdict
    target: ChangeTarget | None = ChangeTarget.TTFT


QUEUED = window(5.0, 0.020)
SLOW = window(0.5, 0.080)
CALM = window(0.5, 0.020)

CASES = (
    Case(id="the queue is gone", before=QUEUED, after=window(0.4, 0.03), verdict=GOOD),
    Case(id="clearly shorter, though not yet inside", before=QUEUED, after=window(4.0, 0.03), verdict=GOOD),
    Case(id="a tenth shorter is noise", before=QUEUED, after=window(4.5, 0.03), verdict=INCONCLUSIVE),
    Case(
        id="just inside an objective that was missed", before=window(2.05, 0.02), after=window(2.0, 0.02), verdict=GOOD
    ),
    Case(id="A/A: the same again is not good", before=QUEUED, after=QUEUED, verdict=INCONCLUSIVE),
    Case(id="A/A inside every objective is not good", before=CALM, after=CALM, verdict=INCONCLUSIVE),
    Case(id="GPUs are saved, and nothing is worse", before=CALM, after=CALM, verdict=GOOD, target=ChangeTarget.GPUS),
    Case(
        id="GPUs are saved at the cost of tokens",
        before=CALM,
        after=window(0.5, 0.06),
        verdict=BAD,
        target=ChangeTarget.GPUS,
    ),
    Case(id="longer than before and over the objective", before=QUEUED, after=window(6.0, 0.02), verdict=BAD),
    Case(id="a tenth longer is noise", before=QUEUED, after=window(5.5, 0.02), verdict=INCONCLUSIVE),
    Case(
        id="a shorter queue paid with tokens over their objective",
        before=QUEUED,
        after=window(0.4, 0.06),
        verdict=BAD,
    ),
    Case(
        id="slower tokens inside their objective cost nothing",
        before=QUEUED,
        after=window(0.4, 0.049),
        verdict=GOOD,
    ),
    Case(
        id="tokens were over their objective before, and are not worse now",
        before=window(5.0, 0.080),
        after=window(0.4, 0.082),
        verdict=GOOD,
    ),
    Case(
        id="fewer slots, faster tokens",
        before=SLOW,
        after=window(0.6, 0.040),
        target=ChangeTarget.TPOT,
        verdict=GOOD,
    ),
    Case(
        id="lowering max-num-seqs that pushes TTFT over its objective is bad",
        before=SLOW,
        after=window(9.0, 0.030),
        target=ChangeTarget.TPOT,
        verdict=BAD,
    ),
    Case(
        id="the wrong latency got better",
        before=SLOW,
        after=window(0.1, 0.080),
        target=ChangeTarget.TPOT,
        verdict=INCONCLUSIVE,
    ),
    Case(
        id="more tokens",
        before=CALM,
        after=window(0.5, 0.02, 1200),
        target=ChangeTarget.THROUGHPUT,
        verdict=GOOD,
    ),
    Case(
        id="a tenth more tokens is noise",
        before=CALM,
        after=window(0.5, 0.02, 1100),
        target=ChangeTarget.THROUGHPUT,
        verdict=INCONCLUSIVE,
    ),
    Case(
        id="tokens that were not counted are not zero",
        before=window(0.5, 0.02, None),
        after=CALM,
        target=ChangeTarget.THROUGHPUT,
        verdict=INCONCLUSIVE,
    ),
    Case(
        id="tokens that are not counted any more are not zero",
        before=CALM,
        after=window(0.5, 0.02, None),
        target=ChangeTarget.THROUGHPUT,
        verdict=INCONCLUSIVE,
    ),
    Case(
        id="an unset target is judged by tokens",
        before=CALM,
        after=window(0.5, 0.02, 1200),
        target=None,
        verdict=GOOD,
    ),
    Case(id="a TTFT that is missing is not zero", before=QUEUED, after=window(None, 0.03), verdict=NO_DATA),
    Case(id="a TPOT that is missing is not zero", before=QUEUED, after=window(0.4, None), verdict=NO_DATA),
    Case(id="nothing at all", before=QUEUED, after=window(None, None, None), verdict=NO_DATA),
    Case(id="no baseline", before=None, after=window(0.4, 0.03), verdict=INCONCLUSIVE),
    Case(id="no TTFT before", before=window(None, 0.02), after=window(0.4, 0.03), verdict=INCONCLUSIVE),
    Case(id="no TPOT before", before=window(5.0, None), after=window(0.4, 0.03), verdict=INCONCLUSIVE),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}: {case.verdict}")
def test_one_window(case: Case) -> None:
    assert judge_window(case.after, before=case.before, targets=TARGETS, target=case.target) is case.verdict


LATENCIES = st.floats(0.001, 100)
WINDOWS = st.builds(window, LATENCIES, LATENCIES, st.floats(0, 1e6))
GOALS = st.sampled_from([*ChangeTarget, None])
GAINS = st.sampled_from([ChangeTarget.TTFT, ChangeTarget.TPOT, ChangeTarget.THROUGHPUT, None])
"""What a window can show to be better."""


@given(WINDOWS)
def test_a_over_a_is_good_enough_where_gpus_are_saved(one: Measurement) -> None:
    assert judge_window(one, before=one, targets=TARGETS, target=ChangeTarget.GPUS) is GOOD


@given(WINDOWS, GAINS)
def test_a_over_a_is_never_good_and_never_bad(one: Measurement, target: ChangeTarget | None) -> None:
    assert judge_window(one, before=one, targets=TARGETS, target=target) is INCONCLUSIVE


@given(WINDOWS, WINDOWS, GOALS)
def test_no_window_that_breaks_an_objective_it_kept_before_is_good(
    before: Measurement, after: Measurement, target: ChangeTarget | None
) -> None:
    verdict = judge_window(after, before=before, targets=TARGETS, target=target)
    for old, new, limit in (
        (before.ttft_seconds, after.ttft_seconds, TARGETS.ttft.seconds),
        (before.tpot_seconds, after.tpot_seconds, TARGETS.tpot.seconds),
    ):
        assert old is not None
        assert new is not None
        if old <= limit and new > limit * 1.11:
            assert verdict is BAD


@given(st.tuples(st.none() | LATENCIES, st.none() | LATENCIES, st.none() | LATENCIES), WINDOWS, GOALS)
def test_what_is_missing_proves_nothing(
    levels: tuple[float | None, float | None, float | None], before: Measurement, target: ChangeTarget | None
) -> None:
    after = window(*levels)
    if after.ttft_seconds is None or after.tpot_seconds is None:
        assert judge_window(after, before=before, targets=TARGETS, target=target) is NO_DATA


def test_a_measurement_holds_what_a_verdict_needs() -> None:
    found = measure(seen(ttft=0.4, tpot=0.03, at=NOW + timedelta(minutes=1)), targets=TARGETS)
    assert found.at == NOW + timedelta(minutes=1)
    assert found.ttft_seconds == pytest.approx(0.4, rel=0.02)
    assert found.tpot_seconds == pytest.approx(0.03, rel=0.02)
    assert found.ttft_mean_seconds == pytest.approx(0.4, rel=0.02)
    assert found.tpot_mean_seconds == pytest.approx(0.03, rel=0.02)
    assert (found.running, found.waiting) == (39, 0)


def test_a_measurement_adds_up_all_engines() -> None:
    found = measure(observation(engine(pod="chat-0", waiting=2.0), engine(pod="chat-1")), targets=TARGETS)
    assert (found.running, found.waiting) == (78, 2)


def test_what_was_not_measured_is_absent() -> None:
    quiet = observation(engine(finished=None, generation_tokens=None), ttft=NOT_MEASURED)
    found = measure(replace(quiet, tpot=NOT_MEASURED, itl=NOT_MEASURED), targets=TARGETS)
    levels = (found.ttft_seconds, found.tpot_seconds, found.tokens_per_second, found.requests_per_second)
    assert levels == (None, None, None, None)
    nothing = measure(nobody(), targets=TARGETS)
    assert (nothing.running, nothing.waiting) == (None, None)


def test_a_histogram_without_observations_is_absent_too() -> None:
    """No traffic: 0/0 is not a fast engine."""
    empty = latency(0.4, count=0.0)
    found = measure(replace(seen(), ttft=empty, tpot=empty, itl=empty), targets=TARGETS)
    assert (found.ttft_seconds, found.tpot_seconds) == (None, None)
