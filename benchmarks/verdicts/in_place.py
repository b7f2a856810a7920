"""A change in place, where the load moves: windows before and after, and how often verdict and bake err on them.

Apart from `variants` and `noise`: there is no pair whose noise could be fitted, so every figure is of services as
played. Must not: judge by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.verdicts.drawing import Case
from benchmarks.verdicts.questions import TIGHTNESS, WINDOWS
from benchmarks.verdicts.rates import Rates, Verdict, objectives
from benchmarks.verdicts.variants import SETTLED_AFTER, WARM_UP, Bed, with_ttft
from vllm_autotuner.api.status import ANALYSIS_LENGTH, ChangeTarget, Measurement
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.comparison import LOOKS
from vllm_autotuner.change.measured_window import is_complete
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Targets

__all__ = ["BAKED", "BASELINES", "PlayedInPlace", "alarms_in_bake", "play_in_place", "rates_in_place"]

BASELINES: Final = (1, 3, 10)
"""Windows before the change: after a restart of the operator, soon after the trouble began, and at best."""
DRAINS_WITHIN: Final = 60.0
"""Seconds that the old pods have to answer what they had begun."""
OBJECTIVES_A_CASE: Final = 20
BAKED: Final = 30
"""Windows of a bake: its default of 30 minutes, in windows of 60 s as Prometheus scrapes every 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedInPlace:
    """One service before and after."""

    seed: int
    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]
    baked: tuple[Measurement, ...] = ()
    """What came after those that the verdict was found by."""


def play_in_place(case: Case, *, steps: float, seed: int, baked: int = BAKED) -> PlayedInPlace:
    """Serve, put new pods in the place of all old ones, and go on serving after the warm-up and through the bake."""
    bed = Bed(case, seed=seed)
    old = [bed.start() for _ in range(case.replicas)]
    bed.fleet.advance(SETTLED_AFTER)
    before = bed.windows(WINDOWS, variants=(old,))
    new = [bed.start(steps) for _ in old]
    for pod in old:
        bed.fleet.terminate(pod, grace=DRAINS_WITHIN)
    bed.serve(WARM_UP, scraping=new)
    after = [one for (one,) in bed.windows(ANALYSIS_LENGTH + baked, variants=(new,))]
    return PlayedInPlace(
        seed=seed,
        before=tuple(one for (one,) in before),
        after=tuple(after[:ANALYSIS_LENGTH]),
        baked=tuple(after[ANALYSIS_LENGTH:]),
    )


def rates_in_place(
    played: Sequence[PlayedInPlace], *, target: ChangeTarget, baseline: int, ttft: float = 1.0, breaks: float = 1.0,
    source: np.random.Generator,
) -> tuple[Rates, Rates]:  # fmt: skip
    """All verdicts, and those on candidates that truly miss an objective: of TPOT, `breaks` times as long, or of TTFT.

    `ttft`: times the TTFT played after the change.
    """
    found, breaking = Rates(), Rates()
    for one in played:
        before = [window for window in one.before[-baseline:] if is_complete(window)]
        after = [with_ttft(window, times=ttft) for window in one.after]
        for targets, (tight_ttft, tight_tpot) in _objectives(one, source):
            verdict = _verdict(before, after, targets=targets, target=target)
            found.add(verdict, service=one.seed)
            if breaks > max(1.1, tight_tpot) or ttft > max(1.1, tight_ttft):
                breaking.add(verdict, service=one.seed)
    return found, breaking


def alarms_in_bake(
    played: Sequence[PlayedInPlace], *, target: ChangeTarget, breaks: float = 1.0, source: np.random.Generator
) -> tuple[Rates, Rates]:
    """What a whole bake says after ten windows before: Revert is an alarm, all else counts as Inconclusive.

    All, and those on candidates whose TPOT, `breaks` times as long, is truly over its objective.
    """
    found, breaking = Rates(), Rates()
    for one in played:
        before = [window for window in one.before if is_complete(window)]
        for targets, (_, tight) in _objectives(one, source):
            verdict = _alarm(before, one.baked, targets=targets, target=target)
            found.add(verdict, service=one.seed)
            if breaks > max(1.1, tight):
                breaking.add(verdict, service=one.seed)
    return found, breaking


def _objectives(one: PlayedInPlace, source: np.random.Generator) -> list[tuple[Targets, tuple[float, float]]]:
    """Objectives for a service by what it did before, and how tight both are (TTFT, TPOT); none without windows."""
    usual = [(window.ttft_seconds, window.tpot_seconds) for window in one.before if is_complete(window)]
    if not usual:
        return []
    centre = [median(level for level in column if level is not None) for column in zip(*usual, strict=True)]
    tight = np.exp(source.uniform(math.log(TIGHTNESS[0]), math.log(TIGHTNESS[1]), size=(OBJECTIVES_A_CASE, 2))).tolist()
    return [(objectives(ttft=centre[0] * ttft, tpot=centre[1] * tpot), (ttft, tpot)) for ttft, tpot in tight]


def _alarm(
    before: Sequence[Measurement], baked: Sequence[Measurement], *, targets: Targets, target: ChangeTarget
) -> Verdict:
    """Look after each window as the operator does: once the last look is over, the next windows begin anew."""
    for count in range(1, len(baked) + 1):
        newest = baked[(count - 1) // LOOKS[-1] * LOOKS[-1] : count]
        found = compare_periods(before, newest, targets=targets, target=target, final=False)
        if found.judgement is Judgement.REVERT:
            return Verdict(judgement=Judgement.REVERT, windows=count)
    return Verdict(judgement=Judgement.INCONCLUSIVE, windows=len(baked))


def _verdict(
    before: Sequence[Measurement], after: Sequence[Measurement], *, targets: Targets, target: ChangeTarget
) -> Verdict:
    for count in range(1, len(after) + 1):
        last = count == len(after)
        found = compare_periods(before, after[:count], targets=targets, target=target, final=last)
        if found.judgement is not None:
            return Verdict(judgement=found.judgement, windows=count)
    return Verdict(judgement=Judgement.INCONCLUSIVE, windows=len(after))
