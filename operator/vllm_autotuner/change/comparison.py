"""Candidate against reference over the same windows: keep, revert, or no clear effect. With known error rates.

Apart from `verdict`, which judges before against after: here both arms see the same load at the same time, so each
window yields one ratio from which the load has gone, and only the ratios are judged.

Method. For each objective the ratios candidate / reference of all windows (as logarithms) get a Hodges-Lehmann centre
and a Wilcoxon interval (`signed_rank`). An objective is
  hurt    when the interval lies above 1, the centre more than `NOISE` above, and the candidate's level over the target;
  safe    when the interval ends below 1 + `NOISE`, or the candidate's level ends below the target by `INSIDE`;
  helped  when the interval lies on the better side of 1, and the centre by `NOISE`, or inside a target that the
          reference misses.
Keep: the target of the change is helped and every objective is safe. Revert: one is hurt. Else Inconclusive. It is
looked at after `LOOKS` windows only, and for the last time there or when time is up; a gross violation ends it at once.
Missing numbers are evidence in neither direction. How often this errs: docs/benchmarks.md, "Verdicts".
Must not: know how arms come about, read a clock, draw random numbers, or say anything of a single window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, TypeGuard

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.objective_effect import ObjectiveEffect, latency_effect, throughput_effect
from vllm_autotuner.change.signed_rank import interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Target, Targets

__all__ = ["FEWEST_REQUESTS", "LOOKS", "Comparison", "Pair", "compare"]

LOOKS: Final = (5, 7, 10)
"""Windows with data in both arms after which a verdict is sought; the last of them is final. Looking after every one
would find chance effects more often. Design, changes.md item 3: at least 5; 10 are the default analysis of 5 min."""
FEWEST_REQUESTS: Final = 50.0
"""Finished requests in each arm before a verdict. Kayenta's practice: 50 samples."""
FIRST_LEVEL: Final = 1 / 32
"""Chance by which a bound is missed at the first look: with five windows there is no rarer one than all on one side."""
LEVEL: Final = 1 / 64
"""The same at later looks. Our choice, by the error rates of `benchmarks/verdict.py`."""
GROSS: Final = 2.0
"""Times the reference, and over the target: a gross violation. Our choice, by the same error rates."""
GROSS_WINDOWS: Final = 3
"""The newest windows that must all be gross. One is chance, three in a row are harm."""


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


def compare(
    pairs: Sequence[Pair],
    *,
    targets: Targets,
    target: ChangeTarget | None,
    final: bool,
    gpus: tuple[int, int] = (1, 1),
) -> Comparison:
    """Judge the candidate by `pairs`, oldest first. Call it after each new window.

    `target`: what the change is meant to improve; None counts as throughput. `final`: no more windows will come, so
    the judgement is never None. `gpus`: of one replica of the reference and of the candidate; what takes more of them
    must help an objective that the reference misses (or tokens per GPU), what takes fewer must only be safe.
    """
    usable = [pair for pair in pairs if _complete(pair)]
    requests = (
        _requests([pair.candidate for pair in usable]),
        _requests([pair.reference for pair in usable]),
    )
    effects = _effects(usable, targets=targets, gpus=gpus) if usable else ()
    judgement, why = _judged(usable, effects, requests, targets=targets, target=target, final=final, gpus=gpus)
    return Comparison(
        judgement=judgement,
        effects=effects,
        windows=len(usable),
        candidate_requests=requests[0],
        reference_requests=requests[1],
        text=_told(why, effects, windows=len(usable), requests=requests),
    )


def _judged(
    usable: Sequence[Pair],
    effects: Sequence[ObjectiveEffect],
    requests: tuple[float | None, float | None],
    *,
    targets: Targets,
    target: ChangeTarget | None,
    final: bool,
    gpus: tuple[int, int],
) -> tuple[Judgement | None, str]:
    if gross := _gross(usable, targets=targets):
        return Judgement.REVERT, f"{gross} more than {GROSS:g} times that of the reference, and over its objective"
    waiting = Judgement.INCONCLUSIVE if final else None
    if len(usable) < LOOKS[0]:
        return waiting, f"{len(usable)} of {LOOKS[0]} windows with data"
    if any(count is None or count < FEWEST_REQUESTS for count in requests):
        return waiting, f"fewer than {FEWEST_REQUESTS:.0f} requests are known in each arm"
    if not final and len(usable) not in LOOKS and len(usable) < LOOKS[-1]:
        return None, "more windows are needed"
    if hurt := [effect.objective.value for effect in effects if effect.hurt]:
        return Judgement.REVERT, f"worse: {', '.join(hurt)}"
    wanted = target or ChangeTarget.THROUGHPUT
    helped = any(effect.helped for effect in effects if effect.objective is wanted)
    safe = all(effect.safe for effect in effects if effect.objective is not ChangeTarget.THROUGHPUT)
    if safe and (helped or gpus[1] < gpus[0]):
        return Judgement.KEEP, f"better: {wanted.value}" if helped else "as good on fewer GPUs"
    last = final or len(usable) >= LOOKS[-1]
    return Judgement.INCONCLUSIVE if last else None, "no clear effect"


def _complete(pair: Pair) -> bool:
    """Whether both arms tell both latencies. A latency of 0 is no latency."""
    latencies = (
        pair.candidate.ttft_seconds,
        pair.candidate.tpot_seconds,
        pair.reference.ttft_seconds,
        pair.reference.tpot_seconds,
    )
    return all(_known(latency) for latency in latencies)


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 < value < math.inf


def _requests(windows: Sequence[Measurement]) -> float | None:
    """Finished requests; windows are as long as the smallest step between their ends."""
    rates = [rate for window in windows if (rate := window.requests_per_second) is not None and math.isfinite(rate)]
    ends = sorted(window.at for window in windows)
    steps = [(later - earlier).total_seconds() for earlier, later in pairwise(ends)]
    length = min((step for step in steps if step > 0), default=None)
    return None if length is None or len(rates) < len(windows) else sum(rates) * length


def _effects(usable: Sequence[Pair], *, targets: Targets, gpus: tuple[int, int]) -> tuple[ObjectiveEffect, ...]:
    level = FIRST_LEVEL if len(usable) < LOOKS[1] else LEVEL
    ttft = [(pair.candidate.ttft_seconds, pair.reference.ttft_seconds) for pair in usable]
    tpot = [(pair.candidate.tpot_seconds, pair.reference.tpot_seconds) for pair in usable]
    tokens = [(pair.candidate.tokens_per_second, pair.reference.tokens_per_second) for pair in usable]
    found = [
        _latency(ChangeTarget.TTFT, _positive(ttft), target=targets.ttft, level=level, dearer=gpus[1] > gpus[0]),
        _latency(ChangeTarget.TPOT, _positive(tpot), target=targets.tpot, level=level, dearer=gpus[1] > gpus[0]),
    ]
    if len(counted := _positive(tokens)) == len(usable):
        found.append(_throughput(counted, level=level, dearer=gpus[1] / gpus[0]))
    return tuple(found)


def _positive(values: Sequence[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(one, other) for one, other in values if _known(one) and _known(other)]


def _latency(
    objective: ChangeTarget, values: Sequence[tuple[float, float]], *, target: Target, level: float, dearer: bool
) -> ObjectiveEffect:
    return latency_effect(
        objective,
        ratio=interval([math.log(one / other) for one, other in values], level=level),
        ours=interval([math.log(one / target.seconds) for one, _ in values], level=level),
        theirs=interval([math.log(other / target.seconds) for _, other in values], level=level),
        target=target,
        dearer=dearer,
    )


def _throughput(values: Sequence[tuple[float, float]], *, level: float, dearer: float) -> ObjectiveEffect:
    return throughput_effect(
        ratio=interval([math.log(one / other) for one, other in values], level=level),
        ours=median(one for one, _ in values),
        theirs=median(other for _, other in values),
        dearer=dearer,
    )


def _gross(usable: Sequence[Pair], *, targets: Targets) -> str:
    """The latency that was grossly violated in all of the newest windows; empty when none was."""
    newest = usable[-GROSS_WINDOWS:]
    if len(newest) < GROSS_WINDOWS:
        return ""
    ttft = [(pair.candidate.ttft_seconds, pair.reference.ttft_seconds) for pair in newest]
    tpot = [(pair.candidate.tpot_seconds, pair.reference.tpot_seconds) for pair in newest]
    for name, values, target in (("TTFT", ttft, targets.ttft), ("TPOT", tpot, targets.tpot)):
        if all(one > GROSS * other and one > target.seconds for one, other in _positive(values)):
            return name
    return ""


def _told(
    why: str, effects: Sequence[ObjectiveEffect], *, windows: int, requests: tuple[float | None, float | None]
) -> str:
    counts = " and ".join("unknown" if count is None else f"{count:.0f}" for count in requests)
    return "; ".join([why, *(effect.told() for effect in effects), f"{windows} windows, {counts} requests"])
