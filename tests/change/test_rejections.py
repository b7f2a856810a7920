"""A candidate that rejects requests has better latencies: neither a canary nor a change in place is kept for that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.builders import engine, observation
from tests.change.test_before_after import period
from tests.change.test_comparison import TARGETS, variants

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.comparison import Comparison, Pair, compare
from vllm_autotuner.change.rejections import rejected_share
from vllm_autotuner.change.verdict import Judgement, measure, measure_per_pod

KEEP, REVERT, INCONCLUSIVE = Judgement.KEEP, Judgement.REVERT, Judgement.INCONCLUSIVE
BETTER = ((0.4, 0.02), (5.0, 0.02))
"""The queue is gone: TTFT 5 s before, 0.4 s with the candidate. 2 requests/s are served by both."""
Rates = Sequence[float | None]


def turning_away(windows: Sequence[Measurement], rates: Rates) -> list[Measurement]:
    return [one.updated(rejected_per_second=rate) for one, rate in zip(windows, rates, strict=True)]


def judged(ours: Rates, theirs: Rates, *, served: float | None = 2.0, final: bool = True) -> Comparison:
    pairs = variants(*BETTER, windows=len(ours), requests=(served, 2.0))
    if served == 0:
        pairs = [
            replace(pair, candidate=pair.candidate.updated(ttft_seconds=None, tpot_seconds=None)) for pair in pairs
        ]
    candidates = turning_away([pair.candidate for pair in pairs], ours)
    references = turning_away([pair.reference for pair in pairs], theirs)
    paired = [Pair(candidate=one, reference=other) for one, other in zip(candidates, references, strict=True)]
    return compare(paired, targets=TARGETS, target=ChangeTarget.TTFT, final=final)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    ours: Rates
    theirs: Rates
    judgement: Judgement
    served: float | None = 2.0


NONE = [0.0] * 10
CASES = (
    Case(id="no rejections", ours=NONE, theirs=NONE, judgement=KEEP),
    Case(id="unknown", ours=[None] * 10, theirs=[None] * 10, judgement=KEEP),
    Case(id="one side does not tell", ours=[0.5] * 10, theirs=[None] * 10, judgement=KEEP),
    Case(id="one in twenty, in every window", ours=[0.1] * 10, theirs=NONE, judgement=REVERT),
    Case(id="one in five hundred is as good", ours=[0.004] * 10, theirs=NONE, judgement=KEEP),
    Case(id="as many as before", ours=[0.1] * 10, theirs=[0.1] * 10, judgement=KEEP),
    Case(id="fewer than before", ours=[0.02] * 10, theirs=[0.5] * 10, judgement=KEEP),
    Case(id="twice as many as before", ours=[0.4] * 10, theirs=[0.2] * 10, judgement=REVERT),
    Case(id="now and then a crowd: not shown, but not kept", ours=[0, 0, 1, 0, 0, 0, 1, 0, 0, 0], theirs=NONE,
         judgement=INCONCLUSIVE),
    Case(id="everybody is turned away: no latency, yet harm", ours=[2.0] * 10, theirs=NONE, served=0.0,
         judgement=REVERT),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}: {case.judgement}")
def test_a_canary(case: Case) -> None:
    assert judged(case.ours, case.theirs, served=case.served).judgement is case.judgement


@pytest.mark.parametrize(
    ("ours", "judgement"),
    [
        pytest.param([1.0] * 3, None, id="a third of the requests, three windows"),
        pytest.param([1.0] * 4, REVERT, id="a third of the requests, four windows"),
        pytest.param([0.1] * 4, None, id="one in twenty is shown by the looks"),
        pytest.param([1.0, 0.0, 1.0, 1.0], None, id="not in each of the newest"),
    ],
)
def test_what_turns_away_grossly_more_ends_at_once(ours: Rates, judgement: Judgement | None) -> None:
    assert judged(ours, [0.0] * len(ours), final=False).judgement is judgement


def test_it_says_so() -> None:
    found = judged([0.1] * 10, [0.01] * 10)
    assert found.text.startswith("rejects more requests; ")
    assert "rejected requests 0.5% -> 4.8%" in found.text
    assert "turned away" not in judged(NONE, NONE).text


WAITED = period(ttft=5.0, waiting=10)
SHORT = period(later=20)


@pytest.mark.parametrize(
    ("before", "after", "judgement"),
    [
        pytest.param(turning_away(WAITED, NONE), turning_away(SHORT, NONE), KEEP, id="no rejections"),
        pytest.param(
            turning_away(WAITED, NONE), turning_away(period(later=20, rate=3.6), [0.4] * 10), REVERT, id="one in ten"
        ),
        pytest.param(
            turning_away(WAITED, NONE),
            turning_away(period(later=20, rate=4.0), [4.0] * 10),
            INCONCLUSIVE,
            id="half of them, but twice as many come",
        ),
        pytest.param(
            turning_away(WAITED, [0.4] * 10), turning_away(SHORT, [0.4] * 10), KEEP, id="as many as before"
        ),
        pytest.param(
            turning_away(WAITED, NONE),
            turning_away(period(later=20, ttft=None, tpot=None, rate=0.0), [4.0] * 10),
            REVERT,
            id="everybody is turned away",
        ),
        pytest.param(
            turning_away(WAITED[:1], NONE[:1]), turning_away(SHORT, NONE), KEEP, id="one window before"
        ),
    ],
)  # fmt: skip
def test_in_place(before: list[Measurement], after: list[Measurement], judgement: Judgement) -> None:
    found = compare_periods(before, after, targets=TARGETS, target=ChangeTarget.TTFT, final=True)
    assert found.judgement is judgement, found.text


RATE = st.none() | st.floats(0, 5)


@given(st.lists(st.tuples(RATE, RATE), min_size=6, max_size=10), st.integers(0, 9), st.floats(0.01, 5))
def test_turning_more_away_is_never_judged_better(
    rates: list[tuple[float | None, float | None]], place: int, more: float
) -> None:
    better = {REVERT: 0, INCONCLUSIVE: 1, KEEP: 2}
    ours, theirs = [one for one, _ in rates], [other for _, other in rates]
    worse = [rate if rate is None or index != place else rate + more for index, rate in enumerate(ours)]
    found, then = judged(ours, theirs).judgement, judged(worse, theirs).judgement
    assert found is not None
    assert then is not None
    # A reference that rejects many got more requests; more rejections of the candidate make that equal.
    assume("no comparison" not in judged(ours, theirs).text)
    assert better[then] <= better[found]


def test_what_a_window_tells_of_it() -> None:
    asked = observation(engine(pod="chat-0", rejected=15.0), engine(pod="chat-1", rejected=0.0))
    found, each = measure(asked, targets=TARGETS), measure_per_pod(asked, targets=TARGETS)
    assert found.rejected_per_second is not None
    assert each.rejected_per_second == pytest.approx(found.rejected_per_second / 2)
    assert rejected_share([found]) == pytest.approx(15 / 135, rel=1e-4)
    assert measure(observation(engine()), targets=TARGETS).rejected_per_second is None


def test_a_pod_of_two_engine_cores_counts_once() -> None:
    """Its server counts for both, and stands with the first of them."""
    first, second = engine(rejected=15.0), engine()
    second = replace(second, key=replace(second.key, engine="1"))
    assert observation(first, second).rejected_per_second == observation(first).rejected_per_second
