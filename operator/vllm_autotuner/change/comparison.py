"""The verdict on a canary: candidate against reference (baseline) over the same windows, with known error rates.

Separate from `before_after`, which has no pairs: here both sides see the same load at the same time, so each window
yields one ratio that is independent of the load, and only the ratios are judged.

Method. For each objective the ratios candidate / reference of all windows (as logarithms) get a Hodges-Lehmann centre
and a Wilcoxon interval (`signed_rank`); `objective_effect` says when that means hurt, safe or helped.
Windows count from when what waited at the beginning has been served (`_since_it_drained`).
`objective_effect.concluded` says when the effects mean Keep or Revert; else Inconclusive. Verdicts are only sought
after `LOOKS` windows and when time is up; a gross violation ends the analysis at once. Missing numbers are evidence in
neither direction. Error rates: docs/benchmarks.md, "Verdicts".
Must not: depend on how the pods were created, read a clock, draw random numbers, or judge a single window.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.arm_traffic import ArmTraffic, arm_traffic
from vllm_autotuner.change.measured_window import (
    LATENCIES,
    is_complete,
    is_queue,
    level_of,
    mean_of,
    mean_queue,
    most_tell,
    requests_in,
    stood_still,
    window_length,
)
from vllm_autotuner.change.objective_effect import (
    ObjectiveEffect,
    Question,
    concluded,
    latency_effect,
    target_of,
    throughput_effect,
)
from vllm_autotuner.change.rejections import Rejections, rejected_share, rejections, rejects_grossly
from vllm_autotuner.change.shorter_queue import is_shorter_queue_alone, without_luck
from vllm_autotuner.change.signed_rank import Interval, interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["FEWEST_REQUESTS", "LIKELY", "LOOKS", "Comparison", "Pair", "compare", "comparison", "level_at", "when_due"]

LOOKS: Final = (6, 8, 10)
"""Windows with data on both sides after which a verdict is sought; the last one is final. Looking after every window
would find chance effects more often. Design, changes.md item 3: at least 5; with 5 each bound is missed at least once
in 32, which rejected too many equal candidates. 10 windows are the default analysis of 5 min."""
KEEP_FROM: Final = 8
"""Windows before a Keep, unless time is up. The first look may only stop a regression: waiting costs nothing. Our
choice, by the rates of `benchmarks/verdict.py`."""
FEWEST_REQUESTS: Final = 50.0
"""Finished requests on each side before a verdict. Kayenta's practice: 50 samples."""
FIRST_LEVEL: Final = 1 / 64
"""Probability of missing a bound at the first look: the smallest level that six windows allow (all on one side)."""
LEVEL: Final = 1 / 128
"""The same at later looks. Our choice, by the error rates of `benchmarks/verdict.py`: 1/64 finds a fifth more of the
true improvements, but promoted too many harmful candidates."""
LIKELY: Final = 1 / 20
"""The same for a quantile that must be as good as the reference, if the mean is as good at `LEVEL`: harm shows in the
mean, which is exact and covers all requests, while a quantile is only known to its bucket and covers the slowest few.
Also for a missed objective of the reference that the candidate ends at `LEVEL`: five windows can show it, and before a
change there are few. Our choice, by the same rates."""
GROSS: Final = {ChangeTarget.TTFT: 3.0, ChangeTarget.TPOT: 2.0}
"""Multiple of the reference which, above the target, is a gross violation. Our choice, by the same rates: of two
identical pods with queues, one is twice as slow now and then."""
GROSS_WINDOWS: Final = 4
"""Newest windows that must all be gross. Of identical pods with queues, one is by chance three times as slow in three
windows in a row: with 3, that caused half of all rejections of equal candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same window of the candidate and of the reference."""

    candidate: Measurement
    reference: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of all windows so far."""

    judgement: Judgement | None
    """None: more windows are needed."""
    effects: tuple[ObjectiveEffect, ...]
    """TTFT, TPOT and, if both sides report it, throughput; empty without a window with data."""
    windows: int
    """Windows with data on both sides."""
    candidate_requests: float | None
    """Finished in those windows; None when unknown."""
    reference_requests: float | None
    text: str
    """The reason with its numbers, in one line."""
    relieved: bool = False
    """Too few windows can show an improvement, and only because their load was lighter than before."""


def compare(
    pairs: Sequence[Pair],
    *,
    targets: Targets,
    target: ChangeTarget | None,
    final: bool,
    gpus: tuple[int, int] = (1, 1),
    missed_before: frozenset[ChangeTarget] = frozenset(),
    larger_cache: bool = False,
) -> Comparison:
    """Judge the candidate by `pairs`, oldest first. Call it after each new window.

    `target`: what the change is meant to improve; None counts as throughput. `final`: no more windows will come, so
    the judgement is never None. `gpus`: of one replica of the reference and of the candidate; a candidate with more
    must help an objective that the reference misses or that is in `missed_before` (or tokens per GPU), one with fewer
    must only be safe, or cure a latency. `missed_before`: the objectives that were missed before the change.
    `larger_cache`: it is for a larger KV cache, and exports one.
    """
    question = Question(
        targets=targets,
        target=target or ChangeTarget.THROUGHPUT,
        final=final,
        gpus=gpus,
        missed_before=missed_before,
        larger_cache=larger_cache,
    )
    usable = _since_it_drained(
        [pair for pair in pairs if is_complete(pair.candidate) and is_complete(pair.reference)], question=question
    )
    ours, theirs = [pair.candidate for pair in usable], [pair.reference for pair in usable]
    length = window_length(ours)
    requests = requests_in(ours, length=length), requests_in(theirs, length=length)
    effects = _effects(usable, question=question) if usable else ()
    rejected = _rejections(pairs, level=level_at(len(usable)))
    if _rejects_grossly(pairs):
        judgement: Judgement | None = Judgement.REVERT
        why = "rejects far more requests"
    else:
        judgement, why = _judged(usable, effects, rejected, requests, question=question)
    if judgement is Judgement.INCONCLUSIVE and len(usable) < LOOKS[0] and (traffic := _traffic(pairs)).fewer:
        why = f"{why}: {traffic.told()}"
    return comparison(judgement, why, effects=effects, rejected=rejected, windows=len(usable), requests=requests)


def comparison(
    judgement: Judgement | None,
    why: str,
    *,
    effects: tuple[ObjectiveEffect, ...],
    rejected: Rejections | None,
    windows: int,
    requests: tuple[float | None, float | None],
) -> Comparison:
    """Build the result with its text. `requests`: of the candidate and of the reference."""
    told = [*(effect.told() for effect in effects), "" if rejected is None else rejected.told()]
    counts = " vs ".join("unknown" if count is None else f"{count:.0f}" for count in requests)
    return Comparison(
        judgement=judgement,
        effects=effects,
        windows=windows,
        candidate_requests=requests[0],
        reference_requests=requests[1],
        text="; ".join(part for part in (why, *told, f"{windows} windows, {counts} requests") if part),
    )


def _since_it_drained(pairs: list[Pair], *, question: Question) -> list[Pair]:
    """Without the windows in which the trial serves what waited when it began: with more slots in a slower batch.

    Where its extra pods have put a missed TTFT in time, until the reference has served it: of its windows the candidate
    has no say. Else, as a router sends an empty pod what waits, until a candidate has that began with a longer queue
    than waits at the reference. All windows where it takes half of them.
    """
    limit = question.targets.ttft.seconds
    served = [_has_drained(pair.reference, limit=limit) for pair in pairs]
    missed = question.aims_at(ChangeTarget.TTFT) and ChangeTarget.TTFT in question.missed_before
    if missed and served[:1] == [False] and served[-1]:
        left = pairs[max(number for number, done in enumerate(served) if not done) + 1 :]
    elif pairs and (pairs[0].candidate.waiting or 0.0) > mean_queue([pair.reference for pair in pairs]):
        drained = (number for number, pair in enumerate(pairs) if _has_drained(pair.candidate))
        left = pairs[next(drained, len(pairs)) :]
    else:
        left = pairs
    return left if 2 * len(left) > len(pairs) else pairs


def _has_drained(window: Measurement, *, limit: float = math.inf) -> bool:
    """Whether nothing waits, and no first token of the window comes from what did."""
    first = level_of(window, ChangeTarget.TTFT)
    return window.waiting is not None and window.waiting < 1 and first is not None and first <= limit


def _judged(
    usable: Sequence[Pair],
    effects: Sequence[ObjectiveEffect],
    rejected: Rejections | None,
    requests: tuple[float | None, float | None],
    *,
    question: Question,
) -> tuple[Judgement | None, str]:
    if gross := _gross(usable, targets=question.targets):
        if (traffic := _traffic(usable)).more:  # ends at once all the same, but the value is not to blame
            return Judgement.INCONCLUSIVE, f"no comparison: {traffic.told()}"
        return Judgement.REVERT, f"{gross.value} misses its objective and is over {GROSS[gross]:g}x the baseline"
    waiting = Judgement.INCONCLUSIVE if question.final else None
    if len(usable) < LOOKS[0]:
        return waiting, f"{len(usable)} of {LOOKS[0]} windows with data"
    if any(count is None or count < FEWEST_REQUESTS for count in requests):
        return waiting, f"fewer than {FEWEST_REQUESTS:.0f} requests measured on the candidate or the baseline"
    last = question.final or len(usable) >= LOOKS[-1]
    if not last and len(usable) not in LOOKS:
        return None, "more windows are needed"
    judgement, why = concluded(effects, rejected=rejected, question=question)
    if judgement is Judgement.INCONCLUSIVE and _is_shorter_queue_alone(question.target, usable):
        why = "requests wait on both sides, and fewer on the candidate explain its TTFT: it generates no more tokens"
    traffic = _traffic(usable)
    # Less than its share flatters, more burdens; only latencies depend on it.
    flattered = judgement is Judgement.KEEP and traffic.fewer
    if flattered or (traffic.more and any(effect.hurt for effect in effects)):
        judgement, why = Judgement.INCONCLUSIVE, f"no comparison: {traffic.told()}"
    return when_due(judgement, windows=len(usable), last=last), why


def _traffic(pairs: Sequence[Pair]) -> ArmTraffic:
    ours, theirs = [pair.candidate for pair in pairs], [pair.reference for pair in pairs]
    return arm_traffic(ours, theirs, length=window_length(ours))


def when_due(judgement: Judgement, *, windows: int, last: bool) -> Judgement | None:
    """The judgement, or None while it is too early for it."""
    early = judgement is Judgement.INCONCLUSIVE or (judgement is Judgement.KEEP and windows < KEEP_FROM)
    return None if early and not last else judgement


def level_at(windows: int) -> float:
    """The probability of missing a bound with so many windows."""
    return FIRST_LEVEL if windows < LOOKS[1] else LEVEL


def _rejections(pairs: Sequence[Pair], *, level: float) -> Rejections | None:
    """From all windows, with or without latencies: if all requests are rejected, there is no latency."""
    shares = [(rejected_share([pair.candidate]), rejected_share([pair.reference])) for pair in pairs]
    apart = [ours - theirs for ours, theirs in shares if ours is not None and theirs is not None]
    if not apart:
        return None
    ours, theirs = [pair.candidate for pair in pairs], [pair.reference for pair in pairs]
    return rejections(ours, theirs, apart=interval(apart, level=level))


def _rejects_grossly(pairs: Sequence[Pair]) -> bool:
    newest = [pair.candidate for pair in pairs[-GROSS_WINDOWS:]]
    usual = [rejected_share([pair.reference]) for pair in pairs[-GROSS_WINDOWS:]]
    length = window_length([pair.candidate for pair in pairs])
    return len(newest) == GROSS_WINDOWS and rejects_grossly(newest, usual, length=length)


def _effects(usable: Sequence[Pair], *, question: Question) -> tuple[ObjectiveEffect, ...]:
    level = level_at(len(usable))

    def bounds(values: Iterable[float], level: float = level) -> Interval:
        return interval([math.log(value) for value in values], level=level)

    effects = []
    for objective in LATENCIES:
        limit, levels = target_of(objective, question.targets).seconds, _levels(usable, objective)
        effect = latency_effect(
            objective,
            ratio=bounds(ours / theirs for ours, theirs in levels),
            likely=bounds((ours / theirs for ours, theirs in levels), LIKELY).high,
            mean=_mean(usable, objective, level=level),
            ours=bounds(ours / limit for ours, _ in levels),
            theirs=bounds((theirs / limit for _, theirs in levels), LIKELY),
            question=question,
        )
        hurt = effect.hurt and not _is_longer_queue_alone(objective, usable)
        merits = without_luck(effect.merits) if _is_shorter_queue_alone(objective, usable) else effect.merits
        effects.append(replace(effect, hurt=hurt, merits=merits))
    if tokens := _tokens(usable):
        effect = throughput_effect(
            ratio=bounds(ours / theirs for ours, theirs in tokens),
            ours=median(ours for ours, _ in tokens),
            theirs=median(theirs for _, theirs in tokens),
            question=question,
        )
        effects.append(effect)
    return tuple(effects)


def _mean(pairs: Sequence[Pair], objective: ChangeTarget, *, level: float) -> Interval | None:
    """The interval of the ratios of the means; None unless enough windows have them on both sides to bound it."""
    means = [(mean_of(pair.candidate, objective), mean_of(pair.reference, objective)) for pair in pairs]
    known = [math.log(ours / theirs) for ours, theirs in means if ours is not None and theirs is not None]
    found = interval(known, level=level) if most_tell(known, pairs) else None
    return found if found is None or math.isfinite(found.high) else None


def _is_longer_queue_alone(objective: ChangeTarget, pairs: Sequence[Pair]) -> bool:
    """Whether a queue explains the longer TTFT: requests wait on both sides, and the candidate serves as many tokens.

    Of two equal pods with queues, one has the longer queue for many minutes.
    """
    served = _tokens_served(pairs)
    if objective is not ChangeTarget.TTFT or served is None or served < 1 - NOISE:
        return False
    return is_queue([pair.candidate for pair in pairs]) and is_queue([pair.reference for pair in pairs])


def _is_shorter_queue_alone(objective: ChangeTarget, pairs: Sequence[Pair]) -> bool:
    ours, theirs = [pair.candidate for pair in pairs], [pair.reference for pair in pairs]
    return is_shorter_queue_alone(objective, ours, theirs, served=_tokens_served(pairs))


def _tokens_served(pairs: Sequence[Pair]) -> float | None:
    """Tokens per second of the candidate over those of the reference; None if not known."""
    tokens = _tokens(pairs)
    return median(ours / theirs for ours, theirs in tokens) if tokens else None


def _tokens(pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Tokens per second of both sides; empty unless most windows have them, and none in which a side made none."""
    known = _levels(pairs, ChangeTarget.THROUGHPUT)
    still = any(stood_still((pair.candidate, pair.reference)) for pair in pairs)
    return known if most_tell(known, pairs) and not still else []


def _levels(pairs: Sequence[Pair], objective: ChangeTarget) -> list[tuple[float, float]]:
    """Candidate and reference of each window in which both are known."""
    found = ((level_of(pair.candidate, objective), level_of(pair.reference, objective)) for pair in pairs)
    return [(ours, theirs) for ours, theirs in found if ours is not None and theirs is not None]


def _gross(usable: Sequence[Pair], *, targets: Targets) -> ChangeTarget | None:
    """The latency that was grossly violated in all of the newest windows; None if none was."""
    if len(usable) < GROSS_WINDOWS:
        return None
    for objective in LATENCIES:
        limit, newest = target_of(objective, targets).seconds, _levels(usable[-GROSS_WINDOWS:], objective)
        gross = all(ours > GROSS[objective] * theirs and ours > limit for ours, theirs in newest)
        if gross and not _is_longer_queue_alone(objective, usable):
            return objective
    return None
