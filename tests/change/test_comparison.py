"""Verdicts on paired windows: tables of cases, and properties that hold for any measurement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import targets
from tests.change.worlds import NOW

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.comparison import FEWEST_REQUESTS, LOOKS, Comparison, Pair, compare
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Targets

KEEP, REVERT, INCONCLUSIVE = Judgement.KEEP, Judgement.REVERT, Judgement.INCONCLUSIVE
TTFT, TPOT, THROUGHPUT = ChangeTarget.TTFT, ChangeTarget.TPOT, ChangeTarget.THROUGHPUT
GPUS = ChangeTarget.GPUS
TARGETS = targets(ttft=2.0, tpot=0.05)
WIGGLE = (1.0, 1.03, 0.97, 1.02, 0.98, 1.01, 0.99, 1.04, 0.96, 1.0)
"""How windows differ from each other, in turn."""

Level = float | None


def window(
    index: int, *, ttft: Level = 0.5, tpot: Level = 0.02, tokens: Level = 1000.0, requests: Level = 2.0
) -> Measurement:
    return Measurement(
        at=NOW + timedelta(seconds=30 * index),
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        tokens_per_second=tokens,
        requests_per_second=requests,
    )


def variants(
    candidate: tuple[Level, Level],
    reference: tuple[Level, Level],
    *,
    windows: int = 10,
    tokens: tuple[Level, Level] = (1000.0, 1000.0),
    requests: tuple[Level, Level] = (2.0, 2.0),
) -> list[Pair]:
    """(TTFT, TPOT) of both sides; the reference wiggles, the candidate wiggles the other way round."""

    def wiggled(levels: tuple[Level, Level], by: float) -> tuple[Level, Level]:
        ttft, tpot = (None if level is None else level * by for level in levels)
        return ttft, tpot

    pairs = []
    for index in range(windows):
        ours = wiggled(candidate, WIGGLE[-1 - index % 10])
        theirs = wiggled(reference, WIGGLE[index % 10])
        pairs.append(
            Pair(
                candidate=window(index, ttft=ours[0], tpot=ours[1], tokens=tokens[0], requests=requests[0]),
                reference=window(index, ttft=theirs[0], tpot=theirs[1], tokens=tokens[1], requests=requests[1]),
            )
        )
    return pairs


def judged(
    pairs: Sequence[Pair], *, target: ChangeTarget | None = TTFT, final: bool = False, limits: Targets = TARGETS
) -> Judgement | None:
    return compare(pairs, targets=limits, target=target, final=final).judgement


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    candidate: tuple[float, float]
    reference: tuple[float, float]
    judgement: Judgement
    target: ChangeTarget | None = TTFT
    tokens: tuple[Level, Level] = (1000.0, 1000.0)


CASES = (
    Case(id="the queue is gone", candidate=(0.4, 0.03), reference=(5.0, 0.02), judgement=KEEP),
    Case(id="clearly shorter, though not inside", candidate=(3.5, 0.03), reference=(5.0, 0.02), judgement=KEEP),
    Case(id="just inside a target that was missed", candidate=(1.9, 0.03), reference=(2.08, 0.03), judgement=KEEP),
    Case(id="A/A inside", candidate=(0.5, 0.02), reference=(0.5, 0.02), judgement=INCONCLUSIVE),
    Case(id="A/A outside", candidate=(5.0, 0.08), reference=(5.0, 0.08), judgement=INCONCLUSIVE),
    Case(id="a little better is noise", candidate=(4.7, 0.02), reference=(5.0, 0.02), judgement=INCONCLUSIVE),
    Case(id="worse and over the objective", candidate=(7.0, 0.02), reference=(5.0, 0.02), judgement=REVERT),
    Case(id="a little worse is noise", candidate=(5.3, 0.02), reference=(5.0, 0.02), judgement=INCONCLUSIVE),
    Case(
        id="worse inside the objective does no harm",
        candidate=(0.9, 0.02),
        reference=(0.5, 0.02),
        judgement=INCONCLUSIVE,
    ),
    Case(id="slower tokens, well inside", candidate=(0.4, 0.045), reference=(5.0, 0.02), judgement=KEEP),
    Case(
        id="slower tokens, barely inside, are not safe",
        candidate=(0.4, 0.0495),
        reference=(5.0, 0.02),
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="a shorter queue paid with tokens over their objective",
        candidate=(0.4, 0.06),
        reference=(5.0, 0.04),
        judgement=REVERT,
    ),
    Case(id="tokens were over before and are not worse", candidate=(0.4, 0.081), reference=(5.0, 0.08), judgement=KEEP),
    Case(id="saving GPUs: as good", candidate=(0.5, 0.02), reference=(0.5, 0.02), target=GPUS, judgement=KEEP),
    Case(
        id="saving GPUs: slower, well inside", candidate=(0.9, 0.03), reference=(0.5, 0.02), target=GPUS, judgement=KEEP
    ),
    Case(
        id="saving GPUs: barely inside is not safe",
        candidate=(0.5, 0.0495),
        reference=(0.5, 0.02),
        target=GPUS,
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="saving GPUs: tokens over their objective",
        candidate=(0.5, 0.06),
        reference=(0.5, 0.02),
        target=GPUS,
        judgement=REVERT,
    ),
    Case(id="saving GPUs: a queue", candidate=(9.0, 0.02), reference=(0.5, 0.02), target=GPUS, judgement=REVERT),
    Case(id="fewer slots, faster tokens", candidate=(0.6, 0.04), reference=(0.5, 0.08), target=TPOT, judgement=KEEP),
    Case(
        id="faster tokens paid with a queue",
        candidate=(9.0, 0.03),
        reference=(0.5, 0.08),
        target=TPOT,
        judgement=REVERT,
    ),
    Case(
        id="the wrong latency got better",
        candidate=(0.1, 0.08),
        reference=(0.5, 0.08),
        target=TPOT,
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="more tokens",
        candidate=(0.5, 0.02),
        reference=(0.5, 0.02),
        tokens=(1200, 1000),
        target=THROUGHPUT,
        judgement=KEEP,
    ),
    Case(
        id="no target is judged by tokens",
        candidate=(0.5, 0.02),
        reference=(0.5, 0.02),
        tokens=(1200, 1000),
        target=None,
        judgement=KEEP,
    ),
    Case(
        id="a few more tokens are noise",
        candidate=(0.5, 0.02),
        reference=(0.5, 0.02),
        tokens=(1050, 1000),
        target=THROUGHPUT,
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="tokens are unknown",
        candidate=(0.5, 0.02),
        reference=(0.5, 0.02),
        tokens=(None, 1000),
        target=THROUGHPUT,
        judgement=INCONCLUSIVE,
    ),
    Case(
        id="more tokens do not buy a missed objective",
        candidate=(0.5, 0.06),
        reference=(0.5, 0.04),
        tokens=(2000, 1000),
        target=THROUGHPUT,
        judgement=REVERT,
    ),
)


@pytest.mark.fault("T21")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}: {case.judgement}")
def test_ten_windows(case: Case) -> None:
    assert judged(variants(case.candidate, case.reference, tokens=case.tokens), target=case.target) is case.judgement


def with_means(pairs: Sequence[Pair], *, ttft: Level = 1.0, tpot: Level = 1.0) -> list[Pair]:
    """Both sides with means; `ttft` and `tpot`: of the candidate, times those of the reference."""

    def known(one: Measurement, times: tuple[Level, Level]) -> Measurement:
        means = [None if by is None else level * by for level, by in zip((0.3, 0.015), times, strict=True)]
        return one.updated(ttft_mean_seconds=means[0], tpot_mean_seconds=means[1])

    return [
        replace(pair, candidate=known(pair.candidate, (ttft, tpot)), reference=known(pair.reference, (1.0, 1.0)))
        for pair in pairs
    ]


SHORTER_QUEUE = variants((0.4, 0.081), (5.0, 0.08))
NOISY_TTFT = [
    replace(pair, candidate=pair.candidate.updated(ttft_seconds=2.4 * factor))
    for pair, factor in zip(
        variants((2.4, 0.04), (2.4, 0.08)), (0.8, 1.4, 0.9, 1.3, 0.7, 1.35, 0.85, 1.15, 0.75, 1.05), strict=True
    )
]
"""Tokens come faster; TTFT is as long on average, but its p95 differs by a quarter from window to window."""


MEANS = (
    pytest.param(SHORTER_QUEUE, TTFT, KEEP, id="as good by the quantile, the mean is unknown"),
    pytest.param(with_means(SHORTER_QUEUE), TTFT, KEEP, id="as good by both"),
    pytest.param(
        with_means(SHORTER_QUEUE, tpot=1.2), TTFT, INCONCLUSIVE, id="within a bucket a quantile hides slower tokens"
    ),
    pytest.param(with_means(SHORTER_QUEUE, tpot=None), TTFT, KEEP, id="one arm has no mean"),
    pytest.param(NOISY_TTFT, TPOT, INCONCLUSIVE, id="a noisy p95 alone does not show that it is as good"),
    pytest.param(with_means(NOISY_TTFT), TPOT, KEEP, id="with a mean that is as good it does"),
    pytest.param(with_means(NOISY_TTFT, ttft=1.3), TPOT, INCONCLUSIVE, id="with one that is worse it does not"),
    pytest.param(
        with_means(variants((0.4, 0.06), (5.0, 0.04)), ttft=0.1, tpot=1.5),
        TTFT,
        REVERT,
        id="worse by both is worse",
    ),
    pytest.param(
        with_means(variants((0.4, 0.06), (5.0, 0.04)), ttft=0.1),
        TTFT,
        INCONCLUSIVE,
        id="worse by the quantile only is not blamed, and not kept",
    ),
    pytest.param(
        with_means(variants((0.4, 0.047), (5.0, 0.044)), ttft=0.1, tpot=1.2),
        TTFT,
        INCONCLUSIVE,
        id="inside as measured, but not by what the mean grew by",
    ),
    pytest.param(with_means(variants((0.4, 0.04), (5.0, 0.035)), ttft=0.1, tpot=1.2), TTFT, KEEP, id="inside by both"),
    pytest.param(
        with_means(variants((0.4, 0.0485), (5.0, 0.042)), ttft=0.1, tpot=1.15),
        TTFT,
        KEEP,
        id="barely inside by both: TTFT was missed and is met",
    ),
    pytest.param(
        with_means(variants((1.2, 0.0485), (1.9, 0.042)), ttft=0.5, tpot=1.15),
        TTFT,
        INCONCLUSIVE,
        id="barely inside, and TTFT was met before",
    ),
    pytest.param(
        with_means(variants((2.1, 0.0485), (5.0, 0.042)), ttft=0.5, tpot=1.15),
        TTFT,
        INCONCLUSIVE,
        id="barely inside, and TTFT is still missed",
    ),
    pytest.param(
        with_means(variants((2.1, 0.0485), (5.0, 0.042), tokens=(1400.0, 1000.0)), ttft=0.5, tpot=1.15),
        TTFT,
        KEEP,
        id="barely inside, TTFT is still missed, and more tokens are generated",
    ),
    pytest.param(
        with_means(variants((2.1, 0.0485), (5.0, 0.042), tokens=(1400.0, 1000.0)), ttft=0.5, tpot=1.2),
        TTFT,
        INCONCLUSIVE,
        id="more tokens, and over by what the mean grew by",
    ),
    pytest.param(
        with_means(variants((0.2, 0.0485), (0.4, 0.042), tokens=(1400.0, 1000.0)), ttft=0.5, tpot=1.15),
        TTFT,
        INCONCLUSIVE,
        id="more tokens, and TTFT was never missed",
    ),
    pytest.param(
        with_means(variants((1.6, 0.0485), (1.0, 0.042), tokens=(1400.0, 1000.0)), ttft=1.6, tpot=1.15),
        ChangeTarget.THROUGHPUT,
        INCONCLUSIVE,
        id="more tokens, which were the target, for slower ones",
    ),
    pytest.param(
        with_means(variants((0.4, 0.0485), (5.0, 0.042)), ttft=0.1, tpot=1.2),
        TTFT,
        INCONCLUSIVE,
        id="barely inside, and over by what the mean grew by",
    ),
    pytest.param(
        with_means(variants((0.4, 0.042), (0.4, 0.0535)), ttft=0.1, tpot=0.8),
        TPOT,
        KEEP,
        id="tokens were late and are not",
    ),
)


@pytest.mark.parametrize(("pairs", "target", "judgement"), MEANS)
def test_means_that_are_known(pairs: list[Pair], target: ChangeTarget, judgement: Judgement) -> None:
    assert judged(pairs, target=target, final=True) is judgement


def test_too_few_means_to_bound_them_are_as_if_there_were_none() -> None:
    """Of six windows each is needed for an interval at the level of the first look."""
    known = with_means(SHORTER_QUEUE)[:6]
    assert judged(with_a_lost_scrape(known), final=True) is judged(SHORTER_QUEUE[:6], final=True) is KEEP


def test_a_window_without_a_single_token_is_not_unknown() -> None:
    """25 % more tokens in seven windows and none in three are fewer on the whole."""
    pairs = variants((0.5, 0.02), (0.5, 0.02), tokens=(1250.0, 1000.0))
    assert judged(pairs, target=THROUGHPUT) is KEEP
    still = [replace(pair, candidate=pair.candidate.updated(tokens_per_second=0.0)) for pair in pairs[2:5]]
    assert judged([*pairs[:2], *still, *pairs[5:]], target=THROUGHPUT) is INCONCLUSIVE


def with_a_lost_scrape(pairs: Sequence[Pair]) -> list[Pair]:
    """The third window of the candidate has neither tokens nor means."""
    third = pairs[2].candidate.updated(tokens_per_second=None, ttft_mean_seconds=None, tpot_mean_seconds=None)
    return [*pairs[:2], replace(pairs[2], candidate=third), *pairs[3:]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_lost_scrape_changes_no_verdict_by_tokens(case: Case) -> None:
    pairs = with_a_lost_scrape(variants(case.candidate, case.reference, tokens=case.tokens))
    assert judged(pairs, target=case.target) is case.judgement


@pytest.mark.parametrize(("pairs", "target", "judgement"), MEANS)
def test_a_lost_scrape_changes_no_verdict_by_means(
    pairs: list[Pair], target: ChangeTarget, judgement: Judgement
) -> None:
    assert judged(with_a_lost_scrape(pairs), target=target, final=True) is judgement


def queued(pairs: Sequence[Pair], *, ours: float = 20.0, theirs: float = 10.0) -> list[Pair]:
    """With so many requests waiting in the candidate and in the reference."""
    return [
        Pair(
            candidate=pair.candidate.updated(waiting=ours),
            reference=pair.reference.updated(waiting=theirs),
        )
        for pair in pairs
    ]


LONGER = ((9.0, 0.02), (5.0, 0.02))
MUCH_LONGER = ((20.0, 0.02), (5.0, 0.02))
FEWER_TOKENS = (800.0, 1000.0)


@pytest.mark.parametrize(
    ("pairs", "judgement"),
    [
        pytest.param(
            queued(variants(*LONGER)), INCONCLUSIVE, id="both queue and serve as many tokens: one queue is longer"
        ),
        pytest.param(queued(variants(*MUCH_LONGER)), INCONCLUSIVE, id="that may be four times as long"),
        pytest.param(queued(variants(*LONGER, tokens=FEWER_TOKENS)), REVERT, id="fewer tokens: it serves less"),
        pytest.param(queued(variants(*MUCH_LONGER, tokens=FEWER_TOKENS)), REVERT, id="and grossly so"),
        pytest.param(queued(variants(*LONGER, tokens=(None, 1000.0))), REVERT, id="the tokens are unknown"),
        pytest.param(queued(variants(*LONGER), theirs=0.0), REVERT, id="only the candidate queues"),
        pytest.param(variants(*LONGER), REVERT, id="the queue is unknown"),
        pytest.param(queued(variants((1.0, 0.08), (5.0, 0.02))), REVERT, id="slower tokens are no queue"),
    ],
)
def test_a_longer_queue_at_as_many_tokens_is_not_the_candidates_fault(pairs: list[Pair], judgement: Judgement) -> None:
    assert judged(pairs) is judgement


SHORTER = ((3.0, 0.02), (9.0, 0.02))
CURED = ((0.4, 0.02), (9.0, 0.02))
MORE_TOKENS = (1200.0, 1000.0)


@pytest.mark.parametrize(
    ("pairs", "judgement"),
    [
        pytest.param(
            queued(variants(*SHORTER), ours=10.0, theirs=30.0), INCONCLUSIVE, id="both queue: one queue is shorter"
        ),
        pytest.param(queued(variants(*CURED), ours=1.0, theirs=30.0), INCONCLUSIVE, id="also where it is nearly gone"),
        pytest.param(queued(variants(*CURED), ours=0.0, theirs=30.0), KEEP, id="no queue is left"),
        pytest.param(queued(variants(*SHORTER, tokens=MORE_TOKENS), ours=10.0, theirs=30.0), KEEP, id="more tokens"),
        pytest.param(
            queued(variants(*SHORTER, tokens=(None, 1000.0)), ours=10.0, theirs=30.0),
            INCONCLUSIVE,
            id="the tokens are unknown",
        ),
        pytest.param(queued(variants(*SHORTER), ours=28.0, theirs=30.0), KEEP, id="the queues are as long"),
        pytest.param(variants(*SHORTER), KEEP, id="the queue is unknown"),
    ],
)
def test_a_shorter_queue_at_as_many_tokens_is_no_merit(pairs: list[Pair], judgement: Judgement) -> None:
    found = compare(pairs, targets=TARGETS, target=TTFT, final=True)
    assert found.judgement is judgement
    assert ("requests wait on both sides" in found.text) is (judgement is INCONCLUSIVE)


@pytest.mark.parametrize(
    ("ours", "windows", "judgement"),
    [
        pytest.param([71, 0, 0, 0, 0, 0, 0, 0, 0, 0], 9, KEEP, id="what a pod begins with drains once"),
        pytest.param([71, 20, 0, 0, 0, 0, 0, 0, 0, 0], 8, KEEP, id="in two windows"),
        pytest.param([71, 20, 0, 0, 10, 18, 0, 13, 6, 0], 8, INCONCLUSIVE, id="another comes"),
        pytest.param([0, 0, 10, 18, 0, 13, 6, 0, 0, 5], 10, INCONCLUSIVE, id="it comes and goes"),
        pytest.param([71, 60, 50, 40, 30, 20, 10, 5, 3, 2], 10, INCONCLUSIVE, id="it has not drained yet"),
        pytest.param([71, 60, 50, 40, 30, 20, 10, 5, 3, 0], 10, INCONCLUSIVE, id="it has only just drained"),
        pytest.param([39, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10, INCONCLUSIVE, id="no more than waits elsewhere"),
        pytest.param([None, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10, KEEP, id="nobody knows what it began with"),
    ],
)
def test_windows_count_from_when_a_canary_has_drained_what_it_began_with(
    ours: list[int | None], windows: int, judgement: Judgement
) -> None:
    """A router that sees an empty pod sends it what waits elsewhere: with more slots in a larger, slower batch."""
    pairs = [
        Pair(candidate=pair.candidate.updated(waiting=waiting), reference=pair.reference.updated(waiting=40.0))
        for pair, waiting in zip(variants(*CURED), ours, strict=True)
    ]
    found = compare(pairs, targets=TARGETS, target=TTFT, final=True)
    assert (found.windows, found.judgement) == (windows, judgement)


def test_a_shorter_queue_does_no_harm_to_a_change_for_tpot() -> None:
    pairs = queued(variants((3.0, 0.02), (9.0, 0.04)), ours=10.0, theirs=30.0)
    assert judged(pairs, target=TPOT, final=True) is KEEP


GOOD = ((0.4, 0.03), (5.0, 0.02))
UNCLEAR = ((0.5, 0.02), (0.5, 0.02))
HARM = ((2.5, 0.02), (1.5, 0.02))
SILENT = Pair(candidate=window(99, ttft=None), reference=window(99))
UNCOUNTED = Pair(candidate=window(-1), reference=window(-1, requests=None))
"""One scrape was lost: latencies are known, and no rate."""


@pytest.mark.parametrize(
    ("pairs", "early", "at_last"),
    [
        pytest.param([], None, INCONCLUSIVE, id="nothing measured"),
        pytest.param(variants(*GOOD, windows=5), None, INCONCLUSIVE, id="five good windows are too few"),
        pytest.param(variants(*GOOD, windows=6), None, KEEP, id="six good windows are enough when time is up"),
        pytest.param(variants(*GOOD, windows=8), KEEP, KEEP, id="eight good windows"),
        pytest.param(variants(*HARM, windows=6), REVERT, REVERT, id="six bad windows"),
        pytest.param(variants(*GOOD, windows=9), None, KEEP, id="no look at nine windows, unless it is the end"),
        pytest.param(variants(*UNCLEAR, windows=6), None, INCONCLUSIVE, id="no clear effect yet"),
        pytest.param(variants(*UNCLEAR, windows=10), INCONCLUSIVE, INCONCLUSIVE, id="the last look is final"),
        pytest.param([*variants(*GOOD, windows=5), SILENT], None, INCONCLUSIVE, id="a silent window is none"),
        pytest.param([SILENT, *variants(*GOOD, windows=8)], KEEP, KEEP, id="and takes nothing away"),
        pytest.param(variants(*GOOD, requests=(0.15, 2.0)), None, INCONCLUSIVE, id="45 requests in the candidate"),
        pytest.param(variants(*GOOD, requests=(2.0, 0.15)), None, INCONCLUSIVE, id="45 requests in the reference"),
        pytest.param(variants(*GOOD, requests=(None, 2.0)), None, INCONCLUSIVE, id="unknown how many requests"),
        pytest.param([UNCOUNTED, *variants(*GOOD, windows=9)], KEEP, KEEP, id="unknown in one window"),
        pytest.param(
            [UNCOUNTED, *variants(*GOOD, windows=9, requests=(2.0, 0.15))],
            None,
            INCONCLUSIVE,
            id="and few in the others",
        ),
        pytest.param(variants((None, None), (5.0, 0.02)), None, INCONCLUSIVE, id="a silent candidate is not blamed"),
        pytest.param(variants((6.0, 0.02), (1.0, 0.02), windows=4), REVERT, REVERT, id="gross, four times"),
        pytest.param(
            variants((6.0, 0.02), (1.0, 0.02), windows=3), None, INCONCLUSIVE, id="gross, but only three times"
        ),
        pytest.param(variants((1.9, 0.02), (0.1, 0.02), windows=4), None, INCONCLUSIVE, id="many times, yet inside"),
    ],
)
def test_how_long_it_takes(pairs: list[Pair], early: Judgement | None, at_last: Judgement) -> None:
    assert judged(pairs) is early
    assert judged(pairs, final=True) is at_last


def test_more_gpus_must_help_where_an_objective_is_missed() -> None:
    faster = variants((0.5, 0.01), (0.5, 0.02))
    needed = variants((0.5, 0.03), (0.5, 0.08))
    for pairs, judgement in ((faster, INCONCLUSIVE), (needed, KEEP)):
        assert compare(pairs, targets=TARGETS, target=TPOT, final=True, gpus=(1, 2)).judgement is judgement
    doubled = variants(*UNCLEAR, tokens=(1900, 1000))
    assert compare(doubled, targets=TARGETS, target=THROUGHPUT, final=True, gpus=(1, 2)).judgement is INCONCLUSIVE


def test_fewer_gpus_must_only_be_safe() -> None:
    found = compare(variants(*UNCLEAR), targets=TARGETS, target=TPOT, final=True, gpus=(2, 1))
    assert found.judgement is KEEP
    assert "fewer GPUs" in found.text


@pytest.mark.parametrize(
    ("pairs", "target", "kept"),
    [
        pytest.param(variants((0.4, 0.02), (0.4, 0.02)), TTFT, True, id="the queue is gone on both sides"),
        pytest.param(variants((4.0, 0.02), (4.0, 0.02)), TTFT, False, id="both still queue: it did not help"),
        pytest.param(variants((0.4, 0.026), (0.4, 0.02)), TTFT, False, id="tokens take longer, inside their objective"),
        pytest.param(variants((3.0, 0.02), (0.4, 0.02)), TTFT, False, id="the candidate alone queues"),
        pytest.param(variants((0.4, 0.02), (0.4, 0.02)), TPOT, False, id="not meant against a queue"),
    ],
)
def test_where_the_trial_takes_the_queue_away_as_good_is_enough(
    pairs: list[Pair], target: ChangeTarget, kept: bool
) -> None:
    missed = frozenset({TTFT})
    found = compare(pairs, targets=TARGETS, target=target, final=True, missed_before=missed)
    assert (found.judgement is KEEP) is kept
    assert compare(pairs, targets=TARGETS, target=target, final=True).judgement is not KEEP
    with_more_gpus = compare(pairs, targets=TARGETS, target=target, final=True, missed_before=missed, gpus=(1, 2))
    assert with_more_gpus.judgement is not KEEP


@pytest.mark.parametrize(
    ("candidate", "judgement", "of_none_missed"),
    [
        pytest.param((0.4, 0.026), KEEP, INCONCLUSIVE, id="slower tokens, inside their objective: it holds more"),
        pytest.param((0.4, 0.06), REVERT, REVERT, id="beyond it"),
        pytest.param((3.0, 0.02), REVERT, REVERT, id="it alone queues"),
    ],
)
def test_where_the_trial_takes_the_queue_away_a_larger_cache_must_only_be_safe(
    candidate: tuple[float, float], judgement: Judgement, of_none_missed: Judgement
) -> None:
    pairs = variants(candidate, (0.4, 0.02))
    for missed, expected in ((frozenset({TTFT}), judgement), (frozenset[ChangeTarget](), of_none_missed)):
        found = compare(pairs, targets=TARGETS, target=TTFT, final=True, missed_before=missed, larger_cache=True)
        assert found.judgement is expected


@pytest.mark.parametrize(
    ("slow", "missed", "windows", "judgement"),
    [
        pytest.param(1, {TTFT}, 9, KEEP, id="what had waited is served in the first window"),
        pytest.param(4, {TTFT}, 6, KEEP, id="in four"),
        pytest.param(5, {TTFT}, 10, INCONCLUSIVE, id="in half of the time"),
        pytest.param(2, set(), 10, INCONCLUSIVE, id="nothing was late before the trial"),
    ],
)
def test_windows_count_from_when_both_sides_have_served_what_waited_before(
    slow: int, missed: set[ChangeTarget], windows: int, judgement: Judgement
) -> None:
    """More slots serve it in a larger batch, and a window may have first tokens that waited and no queue any more."""
    backlog, later = variants((3.0, 0.03), (9.0, 0.02), windows=slow), variants(*UNCLEAR)[slow:]
    pairs = [*queued(backlog, ours=0.0, theirs=0.0), *queued(later, ours=0.0, theirs=0.0)]
    found = compare(pairs, targets=TARGETS, target=TTFT, final=True, missed_before=frozenset(missed))
    assert (found.windows, found.judgement) == (windows, judgement)
    assert compare(pairs, targets=TARGETS, target=GPUS, final=True, missed_before=frozenset(missed)).windows == windows


@pytest.mark.parametrize("target", [TTFT, GPUS])
def test_a_queue_that_the_extra_pods_have_served_is_not_what_the_candidate_cures(target: ChangeTarget) -> None:
    """TTFT is nearly the same as soon as it is served, and the candidate's tokens are only just in time."""
    backlog, later = variants((0.4, 0.048), (30.0, 0.02), windows=4), variants((0.36, 0.048), (0.4, 0.02))[4:]
    pairs = [*queued(backlog, ours=0.0, theirs=12.0), *queued(later, ours=0.0, theirs=0.0)]
    found = compare(pairs, targets=TARGETS, target=target, final=True, missed_before=frozenset({TTFT}))
    assert found.judgement is INCONCLUSIVE


@pytest.mark.parametrize(("target", "gpus"), [(TTFT, (1, 1)), (TPOT, (1, 1)), (ChangeTarget.GPUS, (2, 1))])
def test_what_only_the_candidate_is_slow_with_counts(target: ChangeTarget, gpus: tuple[int, int]) -> None:
    """The reference has served what waited from the first window on: nothing else explains the candidate's."""
    slow, later = variants((2.5, 0.08), (0.5, 0.02), windows=4), variants(*UNCLEAR)[4:]
    pairs = queued([*slow, *later], ours=0.0, theirs=0.0)
    found = compare(pairs, targets=TARGETS, target=target, final=True, missed_before=frozenset({TTFT}), gpus=gpus)
    assert found.windows == 10
    assert found.judgement is not KEEP


@pytest.mark.parametrize(
    ("candidate", "reference", "missed_before", "judgement"),
    [
        pytest.param(0.028, 0.042, {TPOT}, KEEP, id="two thirds, and the extra pods put the reference in time"),
        pytest.param(0.028, 0.042, set(), INCONCLUSIVE, id="nothing was missed: GPUs for nothing"),
        pytest.param(0.028, 0.042, {TTFT}, INCONCLUSIVE, id="another objective was missed"),
        pytest.param(0.042, 0.042, {TPOT}, INCONCLUSIVE, id="as slow as before: as good is not enough"),
        pytest.param(0.040, 0.042, {TPOT}, INCONCLUSIVE, id="a little better is noise"),
        pytest.param(0.054, 0.042, {TPOT}, REVERT, id="worse"),
    ],
)
def test_more_gpus_help_what_was_missed_before_the_trial_took_load(
    candidate: float, reference: float, missed_before: set[ChangeTarget], judgement: Judgement
) -> None:
    pairs = variants((0.4, candidate), (0.4, reference))
    missed = frozenset(missed_before)
    found = compare(pairs, targets=TARGETS, target=TPOT, final=True, missed_before=missed, gpus=(1, 2))
    assert found.judgement is judgement


def test_it_says_what_it_saw() -> None:
    found = compare(variants((0.4, 0.03), (5.0, 0.02), requests=(2.5, 3.0)), targets=TARGETS, target=TTFT, final=False)
    assert (found.windows, found.candidate_requests, found.reference_requests) == (10, 750.0, 900.0)
    ttft, tpot, tokens = found.effects
    assert (ttft.objective, tpot.objective, tokens.objective) == (TTFT, TPOT, THROUGHPUT)
    assert ttft.ratio == pytest.approx(0.08, rel=0.02)
    assert ttft.low < ttft.ratio < ttft.high < 0.1
    assert ttft.candidate == pytest.approx(0.4, rel=0.02)
    assert ttft.reference == pytest.approx(5.0, rel=0.02)
    assert (ttft.merits.helped, ttft.hurt, tpot.merits.safe, tpot.hurt) == (True, False, True, False)
    assert found.text.startswith("TTFT improved; TTFT 5.0 s -> 400 ms (-92%, ")
    assert found.text.endswith("10 windows, 750 vs 900 requests")


# --- what must hold whatever was measured ---------------------------------------------------------------------------

LATENCIES = st.floats(0.001, 100)
RATES = st.none() | st.floats(0, 50)
WINDOWS = st.tuples(st.none() | LATENCIES, st.none() | LATENCIES, RATES, RATES)
KNOWN = st.tuples(LATENCIES, LATENCIES, st.floats(1, 1e5), st.just(5.0))
GOALS = st.sampled_from([*ChangeTarget, None])
GAINS = st.sampled_from([TTFT, TPOT, THROUGHPUT, None])
"""What a window can show to be better."""


def paired(drawn: Sequence[tuple[tuple[Level, ...], tuple[Level, ...]]]) -> list[Pair]:
    def one(index: int, values: tuple[Level, ...]) -> Measurement:
        return window(index, ttft=values[0], tpot=values[1], tokens=values[2], requests=values[3])

    return [Pair(candidate=one(index, a), reference=one(index, b)) for index, (a, b) in enumerate(drawn)]


ANY = st.lists(st.tuples(WINDOWS, WINDOWS), max_size=14).map(paired)
COMPLETE = st.lists(st.tuples(KNOWN, KNOWN), min_size=6, max_size=14).map(paired)


@st.composite
def steady(draw: st.DrawFn) -> list[Pair]:
    """An effect and some noise: what verdicts other than Inconclusive come from."""
    effect = {name: draw(st.floats(0.3, 2.0)) for name in ("ttft", "tpot", "tokens")}
    base = (draw(st.floats(0.2, 10.0)), draw(st.floats(0.005, 0.2)))
    noise = st.floats(0.9, 1.1)
    count = draw(st.integers(6, 12))
    drawn: list[tuple[tuple[Level, ...], tuple[Level, ...]]] = []
    for _ in range(count):
        ours = (base[0] * effect["ttft"] * draw(noise), base[1] * effect["tpot"] * draw(noise))
        theirs = (base[0] * draw(noise), base[1] * draw(noise))
        drawn.append(((*ours, 1000 * effect["tokens"] * draw(noise), 5.0), (*theirs, 1000 * draw(noise), 5.0)))
    return paired(drawn)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    return [Pair(candidate=pair.reference, reference=pair.candidate) for pair in pairs]


def whole(pairs: Sequence[Pair], target: ChangeTarget | None, *, final: bool = True) -> Comparison:
    return compare(pairs, targets=TARGETS, target=target, final=final)


@given(ANY, GOALS)
def test_time_up_means_a_judgement_and_never_a_keep_without_evidence(
    pairs: list[Pair], target: ChangeTarget | None
) -> None:
    found = whole(pairs, target)
    assert found.judgement is not None
    if found.judgement is KEEP:
        assert found.windows >= LOOKS[0]
        assert found.candidate_requests is not None
        assert found.candidate_requests >= FEWEST_REQUESTS


@given(ANY, GOALS)
def test_windows_without_data_change_nothing(pairs: list[Pair], target: ChangeTarget | None) -> None:
    kept = [pair for pair in pairs if whole([pair], target).windows == 1]
    for final in (False, True):
        assert whole(pairs, target, final=final).judgement is whole(kept, target, final=final).judgement


@pytest.mark.parametrize("nothing", [None, 0.0, math.nan, math.inf])
def test_a_number_that_is_none_is_no_evidence(nothing: float | None) -> None:
    for broken in (window(9, ttft=nothing), window(9, tpot=nothing)):
        pairs = [*variants(*GOOD, windows=5), Pair(candidate=broken, reference=window(9))]
        assert whole(pairs, TTFT).windows == 5
        assert whole(swapped(pairs), TTFT).windows == 5
    uncounted = [replace(pair, candidate=pair.candidate.updated(tokens_per_second=nothing))
                 for pair in variants(*UNCLEAR)]  # fmt: skip
    assert whole(uncounted, THROUGHPUT).judgement is INCONCLUSIVE


@given(steady() | COMPLETE, GAINS)
def test_swapped_arms_have_mirrored_effects_and_are_never_both_kept(
    pairs: list[Pair], target: ChangeTarget | None
) -> None:
    one, other = whole(pairs, target), whole(swapped(pairs), target)
    for ours, theirs in zip(one.effects, other.effects, strict=True):
        assert ours.ratio == pytest.approx(1 / theirs.ratio)
        assert ours.low == pytest.approx(1 / theirs.high)
        assert ours.high == pytest.approx(1 / theirs.low)
        assert not (ours.hurt and theirs.hurt)
        assert not (ours.merits.helped and theirs.merits.helped)
    assert (one.judgement, other.judgement) != (KEEP, KEEP)


@given(COMPLETE)
def test_an_arm_against_itself_does_no_harm_where_gpus_are_saved(pairs: list[Pair]) -> None:
    same = [Pair(candidate=pair.reference, reference=pair.reference) for pair in pairs]
    assert whole(same, GPUS).judgement is not REVERT


@given(COMPLETE, GAINS)
def test_an_arm_against_itself_is_no_effect(pairs: list[Pair], target: ChangeTarget | None) -> None:
    same = [Pair(candidate=pair.reference, reference=pair.reference) for pair in pairs]
    assert whole(same, target).judgement is INCONCLUSIVE


@given(steady() | COMPLETE, GOALS, st.sampled_from([0.25, 4.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(pairs: list[Pair], target: ChangeTarget | None, unit: float) -> None:
    """By powers of two, which round nothing."""

    def scaled(one: Measurement) -> Measurement:
        assert one.ttft_seconds is not None
        assert one.tpot_seconds is not None
        return one.updated(ttft_seconds=one.ttft_seconds * unit, tpot_seconds=one.tpot_seconds * unit)

    other = [Pair(candidate=scaled(pair.candidate), reference=scaled(pair.reference)) for pair in pairs]
    limits = targets(ttft=TARGETS.ttft.seconds * unit, tpot=TARGETS.tpot.seconds * unit)
    assert judged(other, target=target, final=True, limits=limits) is whole(pairs, target).judgement


ORDER = (REVERT, INCONCLUSIVE, KEEP)


@given(steady() | COMPLETE, GOALS, st.data())
def test_a_better_candidate_is_never_judged_worse(
    pairs: list[Pair], target: ChangeTarget | None, data: st.DataObject
) -> None:
    """Any windows of it better by any amount: the others say the same as before."""

    def better(one: Measurement) -> Measurement:
        less = {
            name: getattr(one, name) * data.draw(st.just(1.0) | st.floats(0.01, 1))
            for name in ("ttft_seconds", "tpot_seconds")
        }
        more = {"tokens_per_second": (one.tokens_per_second or 0) * data.draw(st.just(1.0) | st.floats(1, 100))}
        return one.updated(**{**less, **more})

    improved = [replace(pair, candidate=better(pair.candidate)) for pair in pairs]
    before, after = whole(pairs, target).judgement, whole(improved, target).judgement
    assert before is not None
    assert after is not None
    assert ORDER.index(after) >= ORDER.index(before)


@given(steady() | COMPLETE, GOALS, st.integers(2, 3))
def test_more_of_the_same_evidence_never_turns_keep_into_revert(
    pairs: list[Pair], target: ChangeTarget | None, times: int
) -> None:
    if whole(pairs, target).judgement is KEEP:
        more = [
            Pair(
                candidate=pair.candidate.updated(at=at),
                reference=pair.reference.updated(at=at),
            )
            for index, pair in enumerate(pairs * times)
            for at in (NOW + timedelta(seconds=30 * index),)
        ]
        assert whole(more, target).judgement is not REVERT
