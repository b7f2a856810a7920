"""Verdicts in place, before against after: effects of the change are told apart from effects of the load."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import targets
from tests.change.worlds import NOW

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.comparison import LOOKS
from vllm_autotuner.change.verdict import Judgement

KEEP, REVERT, INCONCLUSIVE = Judgement.KEEP, Judgement.REVERT, Judgement.INCONCLUSIVE
TTFT, TPOT, THROUGHPUT = ChangeTarget.TTFT, ChangeTarget.TPOT, ChangeTarget.THROUGHPUT
TARGETS = targets(ttft=2.0, tpot=0.05)
WIGGLE = (1.0, 1.03, 0.97, 1.02, 0.98, 1.01, 0.99, 1.04, 0.96, 1.0)


def period(
    *,
    ttft: float | None = 0.5,
    tpot: float | None = 0.02,
    tokens: float | None = 1000.0,
    rate: float | None = 4.0,
    running: float | None = 20.0,
    waiting: float | None = 0.0,
    filling: float = 0.0,
    windows: int = 10,
    later: int = 0,
) -> tuple[Measurement, ...]:
    """Windows that wiggle. `filling`: requests that the queue grows by in each; `later`: windows since second 0."""
    return tuple(
        Measurement(
            at=NOW + timedelta(seconds=30 * (later + index)),
            ttft_seconds=None if ttft is None else ttft * WIGGLE[(index + later) % 10],
            tpot_seconds=None if tpot is None else tpot * WIGGLE[(index + later) % 10],
            tokens_per_second=tokens,
            requests_per_second=rate,
            running=running,
            waiting=None if waiting is None else waiting + filling * index,
        )
        for index in range(windows)
    )


def judged(
    before: Sequence[Measurement], after: Sequence[Measurement], *, target: ChangeTarget = TTFT, final: bool = True
) -> Judgement | None:
    return compare_periods(before, after, targets=TARGETS, target=target, final=final).judgement


def with_means(windows: Sequence[Measurement], *, tpot: float = 0.015) -> tuple[Measurement, ...]:
    return tuple(
        window.updated(ttft_mean_seconds=0.3, tpot_mean_seconds=tpot * (window.tpot_seconds or 0) / 0.02)
        for window in windows
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]
    judgement: Judgement
    target: ChangeTarget = TTFT


QUEUED = period(ttft=5.0, waiting=10)
BURSTS = tuple(
    one.updated(waiting=waiting)
    for one, waiting in zip(period(ttft=5.0), (6.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 10.0, 0.0, 2.0), strict=True)
)
"""Two requests wait on average, and none usually."""
CALM = period()
BUSY = period(ttft=1.5)
WITH_MEANS = with_means(QUEUED)


def busy_at_times(before: tuple[Measurement, ...], *, tpot: float, mean: float, rate: float) -> tuple[Measurement, ...]:
    """The queue is gone. Six of ten windows are busy, with this TPOT; the others have that of before, and `rate`."""
    busy = (True, True, False, True, True, False, True, False, True, False)
    return tuple(
        one.updated(
            at=one.at + timedelta(minutes=10),
            waiting=0.0,
            ttft_seconds=0.4,
            ttft_mean_seconds=0.2,
            tpot_seconds=tpot if late else one.tpot_seconds,
            tpot_mean_seconds=mean if late else one.tpot_mean_seconds,
            requests_per_second=4.0 if late else rate,
        )
        for one, late in zip(before, busy, strict=True)
    )


def late_at_times(windows: tuple[Measurement, ...], *, ttft: float, waiting: float) -> tuple[Measurement, ...]:
    """Three of ten windows have this TTFT and this queue."""
    return tuple(
        one.updated(ttft_seconds=ttft, waiting=waiting) if index in (2, 6, 8) else one
        for index, one in enumerate(windows)
    )


CASES = (
    Case(id="the queue is gone at the same load", before=QUEUED, after=period(later=20), judgement=KEEP),
    Case(
        id="the queue is gone, but so is half of the load",
        before=QUEUED,
        after=period(later=20, rate=2.0),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="the queue is gone although more requests are served",
        before=QUEUED,
        after=period(later=20, rate=6.0, tokens=1500),
        judgement=KEEP,
    ),
    Case(
        id="what was queued is served, and no more than half of it comes",
        before=period(ttft=5.0, waiting=100, rate=4.0, filling=0),
        after=period(later=20, rate=4.0, waiting=700, filling=-60),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a shorter queue behind as many tokens is less load",
        before=QUEUED,
        after=period(later=20, ttft=1.0, waiting=3),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a shorter queue behind more tokens is the change",
        before=QUEUED,
        after=period(later=20, ttft=1.0, waiting=3, tokens=1500, rate=6.0),
        judgement=KEEP,
    ),
    Case(
        id="a queue that is nearly as long explains nothing",
        before=QUEUED,
        after=period(later=20, ttft=1.0, waiting=9.5),
        judgement=KEEP,
    ),
    Case(
        id="it saves GPUs and ends a queue, with tokens only just in time",
        before=QUEUED,
        after=period(later=20, tpot=0.048),
        judgement=KEEP,
        target=ChangeTarget.GPUS,
    ),
    *(
        Case(
            id=f"it ends a queue, for {target.value}, and tokens are late in six of ten windows",
            before=WITH_MEANS,
            after=busy_at_times(WITH_MEANS, tpot=0.08, mean=0.033, rate=4.0),
            judgement=INCONCLUSIVE,
            target=target,
        )
        for target in (TTFT, ChangeTarget.GPUS)
    ),
    Case(
        id="it saves GPUs and ends a queue, and tokens are late wherever the load is that of before",
        before=WITH_MEANS,
        after=busy_at_times(WITH_MEANS, tpot=0.06, mean=0.033, rate=1.0),
        judgement=INCONCLUSIVE,
        target=ChangeTarget.GPUS,
    ),
    *(
        Case(
            id=f"the queue is gone, for {target.value}, but in three of ten windows, with tokens only just in time",
            before=QUEUED,
            after=late_at_times(period(later=20, tpot=0.048), ttft=3.5, waiting=2.0),
            judgement=KEEP,
            target=target,
        )
        for target in (TTFT, ChangeTarget.GPUS)
    ),
    Case(
        id="late as often as before, with tokens only just in time",
        before=late_at_times(period(), ttft=3.5, waiting=2.0),
        after=late_at_times(period(later=20, tpot=0.048), ttft=3.5, waiting=2.0),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a single window was late before, with tokens only just in time",
        before=period(ttft=2.6, windows=1),
        after=period(later=20, tpot=0.048),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="five windows were late before, with tokens only just in time",
        before=period(ttft=5.0, waiting=10, windows=5),
        after=period(later=20, tpot=0.048),
        judgement=KEEP,
    ),
    Case(
        id="it saves GPUs and improves nothing, with tokens only just in time",
        before=CALM,
        after=period(later=20, tpot=0.048),
        judgement=INCONCLUSIVE,
        target=ChangeTarget.GPUS,
    ),
    Case(id="slower at the same load", before=CALM, after=period(later=20, ttft=4.0), judgement=REVERT),
    Case(id="slower at half the load", before=CALM, after=period(later=20, ttft=4.0, rate=2.0), judgement=REVERT),
    Case(
        id="slower, but twice as many come",
        before=CALM,
        after=period(later=20, ttft=4.0, rate=8.0, tokens=2000),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="slower, and twice as many come as are served",
        before=CALM,
        after=period(later=20, ttft=4.0, waiting=0, filling=120),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a longer queue behind as many tokens is more load",
        before=QUEUED,
        after=period(later=20, ttft=9.0, waiting=30),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a queue that came in bursts and is longer behind as many tokens is more load",
        before=BURSTS,
        after=period(later=20, ttft=20.0, waiting=30),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a queue where none was is the change",
        before=CALM,
        after=period(later=20, ttft=20.0, waiting=30),
        judgement=REVERT,
    ),
    Case(
        id="a longer queue behind fewer tokens is the change",
        before=QUEUED,
        after=period(later=20, ttft=9.0, waiting=30, tokens=700, rate=2.8),
        judgement=REVERT,
    ),
    Case(
        id="slower tokens at the same load, queue or not",
        before=QUEUED,
        after=period(later=20, tpot=0.08, waiting=5),
        judgement=REVERT,
    ),
    Case(
        id="faster tokens at the same load",
        before=period(tpot=0.08),
        after=period(later=20, tpot=0.04),
        judgement=KEEP,
        target=TPOT,
    ),
    Case(
        id="faster tokens at a lighter load",
        before=period(tpot=0.08),
        after=period(later=20, tpot=0.04, rate=3.0),
        judgement=INCONCLUSIVE,
        target=TPOT,
    ),
    Case(
        id="more tokens, as the queue was served",
        before=QUEUED,
        after=period(later=20, tokens=1500, rate=6.0),
        judgement=KEEP,
        target=THROUGHPUT,
    ),
    Case(id="nothing changed", before=CALM, after=period(later=20), judgement=INCONCLUSIVE),
    Case(id="the load is unknown", before=QUEUED, after=period(later=20, rate=None), judgement=INCONCLUSIVE),
    Case(
        id="the load before was unknown",
        before=period(ttft=5.0, rate=None),
        after=period(later=20),
        judgement=INCONCLUSIVE,
    ),
    Case(id="nothing was measured before", before=(), after=period(later=20), judgement=INCONCLUSIVE),
    Case(id="nothing is measured after", before=CALM, after=period(later=20, ttft=None), judgement=INCONCLUSIVE),
    Case(
        id="one window before, all windows after on one side",
        before=period(ttft=5.0, rate=4.0, windows=1),
        after=period(later=20),
        judgement=KEEP,
    ),
    Case(
        id="by chance a few less of not many in a window: the same load",
        before=period(ttft=5.0, rate=1.2, windows=1),
        after=period(later=20, rate=1.03),
        judgement=KEEP,
    ),
    Case(
        id="the same part less of many is another load",
        before=period(ttft=5.0, rate=12.0, windows=1),
        after=period(later=20, rate=10.3),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="too few requests after",
        before=period(ttft=5.0, rate=0.1),
        after=period(later=20, rate=0.1),
        judgement=INCONCLUSIVE,
    ),
)


def test_windows_with_the_load_of_before_are_waited_for() -> None:
    """By chance every second window has less load than the median of before, and shows nothing of an improvement."""
    by_turns = tuple(
        one.updated(requests_per_second=4.0 if index % 2 else 3.0)
        for index, one in enumerate(period(later=20, ttft=0.4, rate=4.0, windows=16))
    )
    for shown in (10, 12, 15):
        assert judged(QUEUED, by_turns[:shown], final=False) is None
    assert judged(QUEUED, by_turns, final=False) is KEEP
    assert judged(QUEUED, by_turns[:10], final=True) is INCONCLUSIVE
    lighter = period(later=20, ttft=0.4, rate=2.0, windows=20)
    assert judged(QUEUED, lighter, final=False) is None
    worse = period(later=20, ttft=9.0, rate=2.0, windows=20, waiting=10, tokens=500)
    assert judged(QUEUED, worse[:10], final=False) is REVERT
    assert judged(QUEUED[:1], worse[:9], final=False) is None
    assert judged(QUEUED[:1], worse[:10], final=False) is REVERT
    late = (*lighter[:10], *worse[10:])
    assert judged(CALM, tuple(one.updated(waiting=0.0) for one in late), final=False) is REVERT


def test_more_windows_are_waited_for_where_six_bound_no_level() -> None:
    """A change for fewer GPUs, well inside the objectives, under less load: six comparable windows bound no level."""

    def found(count: int) -> Judgement | None:
        after = tuple(
            one.updated(requests_per_second=4.0 if index % 5 in (0, 2) else 3.0)
            for index, one in enumerate(period(later=20, ttft=0.8, tpot=0.03, windows=count))
        )
        return compare_periods(
            period(), after, targets=TARGETS, target=ChangeTarget.GPUS, final=False, gpus=(2, 1)
        ).judgement

    assert found(15) is None
    assert found(18) is KEEP


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}: {case.judgement}")
def test_ten_windows_after(case: Case) -> None:
    assert judged(case.before, case.after, target=case.target) is case.judgement


@pytest.mark.parametrize(
    ("before", "after", "early"),
    [
        pytest.param(QUEUED, period(later=20, windows=5), None, id="five windows are too few"),
        pytest.param(QUEUED, period(later=20, windows=8), KEEP, id="eight good windows"),
        pytest.param(BUSY, period(later=20, ttft=3.0, windows=6), REVERT, id="six bad windows"),
        pytest.param(BUSY, period(later=20, ttft=3.0, windows=7), None, id="no look at seven windows"),
        pytest.param(BUSY[:1], period(later=20, ttft=3.0, windows=8), None, id="one window before: only the last look"),
        pytest.param(CALM, period(later=20, ttft=9.0, windows=4), REVERT, id="gross, four times"),
        pytest.param(CALM, period(later=20, ttft=9.0, rate=9.0, windows=4), None, id="gross, at twice the load"),
        pytest.param(CALM, period(later=20, windows=10), INCONCLUSIVE, id="the last look is final"),
    ],
)
def test_how_long_it_takes(
    before: tuple[Measurement, ...], after: tuple[Measurement, ...], early: Judgement | None
) -> None:
    assert judged(before, after, final=False) is early


LEVEL = st.none() | st.floats(0.001, 100)
ANY = st.lists(
    st.builds(
        lambda ttft, tpot, rate, waiting: (ttft, tpot, rate, waiting),
        LEVEL, LEVEL, st.none() | st.floats(0, 50), st.none() | st.floats(0, 100),
    ),
    max_size=11,
)  # fmt: skip
Drawn = Sequence[tuple[float | None, float | None, float | None, float | None]]


def windows(drawn: Drawn, *, later: int = 0) -> tuple[Measurement, ...]:
    return tuple(
        period(ttft=ttft, tpot=tpot, rate=rate, waiting=waiting, windows=1, later=later + index)[0]
        for index, (ttft, tpot, rate, waiting) in enumerate(drawn)
    )


@given(ANY, ANY, st.sampled_from([*ChangeTarget]), st.booleans())
def test_whatever_was_measured_there_is_an_answer(
    before: Drawn, after: Drawn, target: ChangeTarget, final: bool
) -> None:
    found = compare_periods(windows(before), windows(after, later=20), targets=TARGETS, target=target, final=final)
    assert found.judgement is not None or not final
    if found.judgement is KEEP:
        assert found.windows >= LOOKS[0]
    assert found.text


@given(ANY, st.sampled_from([*ChangeTarget]))
def test_the_same_windows_again_are_no_effect(drawn: Drawn, target: ChangeTarget) -> None:
    again = [one.updated(at=one.at + timedelta(hours=1)) for one in windows(drawn)]
    assert judged(windows(drawn), again, target=target) is not KEEP


def test_half_of_the_gpus_with_fewer_tokens_in_all_do_not_end_lateness() -> None:
    """TTFT is better and still late, and a token costs fewer GPUs, but there are fewer tokens."""
    before, after = period(ttft=3.5), period(ttft=2.6, tpot=0.048, tokens=620.0, later=20)

    def found(target: ChangeTarget, tokens: float) -> Judgement | None:
        more = tuple(one.updated(tokens_per_second=tokens) for one in after)
        return compare_periods(before, more, targets=TARGETS, target=target, final=True, gpus=(2, 1)).judgement

    assert {found(target, 620.0) for target in (TTFT, ChangeTarget.GPUS)} == {INCONCLUSIVE}
    assert {found(target, 1200.0) for target in (TTFT, ChangeTarget.GPUS)} == {KEEP}


def test_the_means_before_and_after_must_agree() -> None:
    """What a quantile shows within its bucket, the mean has to show as well."""
    slow, slower = period(ttft=5.0, tpot=0.08, waiting=10), period(tpot=0.08, later=20)
    assert judged(slow, slower) is KEEP
    assert judged(with_means(slow), with_means(slower)) is KEEP
    assert judged(with_means(slow), with_means(slower, tpot=0.018)) is INCONCLUSIVE
    assert judged(with_means(slow), slower) is KEEP
    fine, broken = period(tpot=0.04), period(tpot=0.06, later=20)
    assert judged(with_means(fine), with_means(broken, tpot=0.01)) is INCONCLUSIVE
    assert judged(with_means(fine), with_means(broken)) is REVERT


def test_a_lost_scrape_takes_no_verdict_away() -> None:
    """One window without tokens and means leaves those of the others."""

    def lost(windows: Sequence[Measurement]) -> tuple[Measurement, ...]:
        third = windows[2].updated(tokens_per_second=None, ttft_mean_seconds=None, tpot_mean_seconds=None)
        return (*windows[:2], third, *windows[3:])

    slow, slower = (
        with_means(period(ttft=5.0, tpot=0.08, waiting=10)),
        with_means(period(tpot=0.08, later=20), tpot=0.018),
    )
    assert judged(lost(slow), slower) is judged(slow, lost(slower)) is INCONCLUSIVE
    calm, more = period(), period(tokens=1500, later=20)
    assert judged(calm, more, target=THROUGHPUT) is KEEP
    assert judged(lost(calm), lost(more), target=THROUGHPUT) is KEEP


def test_tokens_that_are_hardly_known_or_zero_prove_nothing() -> None:
    calm, more = period(), period(tokens=1500, later=20)
    once = tuple(one.updated(tokens_per_second=850.0 if index == 4 else None) for index, one in enumerate(calm))
    assert judged(once, period(later=20), target=THROUGHPUT) is INCONCLUSIVE
    still = tuple(one.updated(tokens_per_second=0.0) if index in (2, 5) else one for index, one in enumerate(more))
    assert judged(calm, more, target=THROUGHPUT) is KEEP
    assert judged(calm, still, target=THROUGHPUT) is INCONCLUSIVE


def test_that_a_shorter_queue_is_no_merit_is_told() -> None:
    found = compare_periods(QUEUED, period(later=20, ttft=1.0, waiting=3), targets=TARGETS, target=TTFT, final=True)
    assert "requests waited before and wait now" in found.text
