"""Candidate against reference over the same windows: keep, revert, or no clear effect. With known error rates.

Apart from `before_after`, which has no pairs: here both arms see the same load at the same time, so each window yields
one ratio from which the load has gone, and only the ratios are judged.

Method. For each objective the ratios candidate / reference of all windows (as logarithms) get a Hodges-Lehmann centre
and a Wilcoxon interval (`signed_rank`); `objective_effect` says when that means hurt, safe or helped.
Keep: the target of the change is helped and both latencies are safe, or cured and both inside. Revert: one is hurt.
Else Inconclusive. It is looked at after `LOOKS` windows only, and for the last time there or when time is up; a gross
violation ends it at once. Missing numbers are evidence in neither direction. How often this errs: docs/benchmarks.md,
"Verdicts".
Must not: know how arms come about, read a clock, draw random numbers, or say anything of a single window.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.measured_window import (
    LATENCIES,
    is_complete,
    is_queue,
    level_of,
    mean_of,
    requests_in,
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
from vllm_autotuner.change.rejections import Rejections, rejected_share, rejections, turns_away
from vllm_autotuner.change.signed_rank import Interval, interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["FEWEST_REQUESTS", "LIKELY", "LOOKS", "Comparison", "Pair", "compare", "comparison", "level_at", "when_due"]

LOOKS: Final = (6, 8, 10)
"""Windows with data in both arms after which a verdict is sought; the last of them is final. Looking after every one
would find chance effects more often. Design, changes.md item 3: at least 5; with 5 no bound is missed more seldom than
once in 32, which rejected too many equals. 10 are the default analysis of 5 min."""
KEEP_FROM: Final = 8
"""Windows before a Keep, unless time is up. The first look may only stop what hurts: waiting costs nothing. Our choice,
by the rates of `benchmarks/verdict.py`."""
FEWEST_REQUESTS: Final = 50.0
"""Finished requests in each arm before a verdict. Kayenta's practice: 50 samples."""
FIRST_LEVEL: Final = 1 / 64
"""Chance by which a bound is missed at the first look: with six windows there is no rarer one than all on one side."""
LEVEL: Final = 1 / 128
"""The same at later looks. Our choice, by the error rates of `benchmarks/verdict.py`: 1/64 finds a fifth more of the
true improvements, but promoted too many that harm."""
LIKELY: Final = 1 / 20
"""The same for a quantile that is to be as good as the reference, where the mean is as good at `LEVEL`: harm shows in
the mean, which is exact and of all requests, while a quantile lies somewhere in its bucket and is of the slowest few.
Our choice, by the same rates."""
GROSS: Final = {ChangeTarget.TTFT: 3.0, ChangeTarget.TPOT: 2.0}
"""Times the reference, and over the target: a gross violation. Our choice, by the same rates: of identical pods that
queue one doubles now and then."""
GROSS_WINDOWS: Final = 4
"""The newest windows that must all be gross. Of identical pods that queue one is by chance three times as slow in three
windows in a row: half of all equals that were rejected were rejected so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same window of both arms."""

    candidate: Measurement
    reference: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What all windows so far say."""

    judgement: Judgement | None
    """None: more windows are needed."""
    effects: tuple[ObjectiveEffect, ...]
    """TTFT, TPOT and, where both arms tell it, throughput; empty without a window with data."""
    windows: int
    """Windows with data in both arms."""
    candidate_requests: float | None
    """Finished in those windows; None when unknown."""
    reference_requests: float | None
    text: str
    """For people, in one line."""
    relieved: bool = False
    """Too few windows could show anything good, and only because their load was lighter than before."""


def compare(
    pairs: Sequence[Pair],
    *,
    targets: Targets,
    target: ChangeTarget | None,
    final: bool,
    gpus: tuple[int, int] = (1, 1),
    queued: bool = False,
) -> Comparison:
    """Judge the candidate by `pairs`, oldest first. Call it after each new window.

    `target`: what the change is meant to improve; None counts as throughput. `final`: no more windows will come, so
    the judgement is never None. `gpus`: of one replica of the reference and of the candidate; what takes more of them
    must help an objective that the reference misses (or tokens per GPU), what takes fewer must only be safe. `queued`:
    before the change the objective of TTFT was missed.
    """
    question = Question(
        targets=targets, target=target or ChangeTarget.THROUGHPUT, final=final, gpus=gpus, queued=queued
    )
    usable = [pair for pair in pairs if is_complete(pair.candidate) and is_complete(pair.reference)]
    ours, theirs = [pair.candidate for pair in usable], [pair.reference for pair in usable]
    length = window_length(ours)
    requests = requests_in(ours, length=length), requests_in(theirs, length=length)
    effects = _effects(usable, question=question) if usable else ()
    turned_away = _turned_away(pairs, level=level_at(len(usable)))
    if _turns_away(pairs):
        judgement: Judgement | None = Judgement.REVERT
        why = "it turns requests away"
    else:
        judgement, why = _judged(usable, effects, turned_away, requests, question=question)
    return comparison(judgement, why, effects=effects, turned_away=turned_away, windows=len(usable), requests=requests)


def comparison(
    judgement: Judgement | None,
    why: str,
    *,
    effects: tuple[ObjectiveEffect, ...],
    turned_away: Rejections | None,
    windows: int,
    requests: tuple[float | None, float | None],
) -> Comparison:
    """Put it together, with the text for people. `requests`: of the candidate and of the reference."""
    told = [*(effect.told() for effect in effects), "" if turned_away is None else turned_away.told()]
    counts = " and ".join("unknown" if count is None else f"{count:.0f}" for count in requests)
    return Comparison(
        judgement=judgement,
        effects=effects,
        windows=windows,
        candidate_requests=requests[0],
        reference_requests=requests[1],
        text="; ".join(part for part in (why, *told, f"{windows} windows, {counts} requests") if part),
    )


def _judged(
    usable: Sequence[Pair],
    effects: Sequence[ObjectiveEffect],
    turned_away: Rejections | None,
    requests: tuple[float | None, float | None],
    *,
    question: Question,
) -> tuple[Judgement | None, str]:
    if gross := _gross(usable, targets=question.targets):
        return Judgement.REVERT, f"{gross.value} over its objective and {GROSS[gross]:g} times that of the reference"
    waiting = Judgement.INCONCLUSIVE if question.final else None
    if len(usable) < LOOKS[0]:
        return waiting, f"{len(usable)} of {LOOKS[0]} windows with data"
    if any(count is None or count < FEWEST_REQUESTS for count in requests):
        return waiting, f"fewer than {FEWEST_REQUESTS:.0f} requests are known in each arm"
    last = question.final or len(usable) >= LOOKS[-1]
    if not last and len(usable) not in LOOKS:
        return None, "more windows are needed"
    judgement, why = concluded(effects, turned_away=turned_away, question=question)
    return when_due(judgement, windows=len(usable), last=last), why


def when_due(judgement: Judgement, *, windows: int, last: bool) -> Judgement | None:
    """The judgement of a look, or None while it is too early for it."""
    early = judgement is Judgement.INCONCLUSIVE or (judgement is Judgement.KEEP and windows < KEEP_FROM)
    return None if early and not last else judgement


def level_at(windows: int) -> float:
    """The chance to miss a bound in a look at so many windows."""
    return FIRST_LEVEL if windows < LOOKS[1] else LEVEL


def _turned_away(pairs: Sequence[Pair], *, level: float) -> Rejections | None:
    """Of all windows: who turns everybody away has no latency."""
    shares = [(rejected_share([pair.candidate]), rejected_share([pair.reference])) for pair in pairs]
    apart = [ours - theirs for ours, theirs in shares if ours is not None and theirs is not None]
    if not apart:
        return None
    ours, theirs = [pair.candidate for pair in pairs], [pair.reference for pair in pairs]
    return rejections(ours, theirs, apart=interval(apart, level=level))


def _turns_away(pairs: Sequence[Pair]) -> bool:
    newest = [pair.candidate for pair in pairs[-GROSS_WINDOWS:]]
    usual = [rejected_share([pair.reference]) for pair in pairs[-GROSS_WINDOWS:]]
    length = window_length([pair.candidate for pair in pairs])
    return len(newest) == GROSS_WINDOWS and turns_away(newest, usual, length=length)


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
            theirs=bounds(theirs / limit for _, theirs in levels),
            question=question,
        )
        effects.append(replace(effect, hurt=effect.hurt and not _is_queue_alone(objective, usable)))
    if len(tokens := _levels(usable, ChangeTarget.THROUGHPUT)) == len(usable):
        effect = throughput_effect(
            ratio=bounds(ours / theirs for ours, theirs in tokens),
            ours=median(ours for ours, _ in tokens),
            theirs=median(theirs for _, theirs in tokens),
            question=question,
        )
        effects.append(effect)
    return tuple(effects)


def _mean(pairs: Sequence[Pair], objective: ChangeTarget, *, level: float) -> Interval | None:
    """Of the ratios of the means; None unless every window has them in both arms."""
    means = [(mean_of(pair.candidate, objective), mean_of(pair.reference, objective)) for pair in pairs]
    known = [math.log(ours / theirs) for ours, theirs in means if ours is not None and theirs is not None]
    return interval(known, level=level) if len(known) == len(pairs) else None


def _is_queue_alone(objective: ChangeTarget, pairs: Sequence[Pair]) -> bool:
    """Whether a longer TTFT is the queue's doing: requests wait in both arms, and the candidate serves as many tokens.

    Of two equal pods that queue, one has the longer queue for many minutes.
    """
    tokens = _levels(pairs, ChangeTarget.THROUGHPUT)
    if objective is not ChangeTarget.TTFT or len(tokens) < len(pairs):
        return False
    as_many = median(ours / theirs for ours, theirs in tokens) >= 1 - NOISE
    return as_many and is_queue([pair.candidate for pair in pairs]) and is_queue([pair.reference for pair in pairs])


def _levels(pairs: Sequence[Pair], objective: ChangeTarget) -> list[tuple[float, float]]:
    """Candidate and reference in each window in which both are known."""
    found = ((level_of(pair.candidate, objective), level_of(pair.reference, objective)) for pair in pairs)
    return [(ours, theirs) for ours, theirs in found if ours is not None and theirs is not None]


def _gross(usable: Sequence[Pair], *, targets: Targets) -> ChangeTarget | None:
    """The latency that was grossly violated in all of the newest windows; None when none was."""
    if len(usable) < GROSS_WINDOWS:
        return None
    for objective in LATENCIES:
        limit, newest = target_of(objective, targets).seconds, _levels(usable[-GROSS_WINDOWS:], objective)
        gross = all(ours > GROSS[objective] * theirs and ours > limit for ours, theirs in newest)
        if gross and not _is_queue_alone(objective, usable):
            return objective
    return None
