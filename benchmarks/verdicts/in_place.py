"""A change in place, where the load moves: windows before and after, and how often the verdict on them errs.

Apart from `arms` and `noise`: there is no pair whose noise could be fitted, so every figure is of services as played.
Must not: judge by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.verdicts.arms import SETTLED_AFTER, WARM_UP, Bed
from benchmarks.verdicts.drawing import Case
from benchmarks.verdicts.questions import TIGHTNESS, WINDOWS
from benchmarks.verdicts.rates import Rates, Verdict, objectives
from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.change.windows import is_complete
from vllm_autotuner.diagnosis.objectives import Targets

__all__ = ["BASELINES", "PlayedInPlace", "play_in_place", "rates_in_place"]

BASELINES: Final = (1, 3, 10)
"""Windows before the change: after a restart of the operator, soon after the trouble began, and at best."""
DRAINS_WITHIN: Final = 60.0
"""Seconds that the old pods have to answer what they had begun."""
OBJECTIVES_A_CASE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedInPlace:
    """One service before and after."""

    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]


def play_in_place(case: Case, *, steps: float, seed: int) -> PlayedInPlace:
    """Serve, put new pods in the place of all old ones, and go on serving after the warm-up."""
    bed = Bed(case, seed=seed)
    old = [bed.start() for _ in range(case.replicas)]
    bed.fleet.advance(SETTLED_AFTER)
    before = bed.windows(WINDOWS, arms=(old,))
    new = [bed.start(steps) for _ in old]
    for pod in old:
        bed.fleet.terminate(pod, grace=DRAINS_WITHIN)
    bed.serve(WARM_UP, scraping=new)
    after = bed.windows(WINDOWS, arms=(new,))
    return PlayedInPlace(before=tuple(one for (one,) in before), after=tuple(one for (one,) in after))


def rates_in_place(
    played: Sequence[PlayedInPlace], *, target: ChangeTarget, baseline: int, ttft: float = 1.0, breaks: float = 1.0,
    source: np.random.Generator,
) -> tuple[Rates, Rates]:  # fmt: skip
    """All verdicts, and those on candidates whose TPOT, `breaks` times as long, is truly over its objective.

    `ttft`: times the TTFT played after the change.
    """
    found, breaking = Rates(), Rates()
    for one in played:
        before = [window for window in one.before[-baseline:] if is_complete(window)]
        after = [_with_ttft(window, times=ttft) for window in one.after]
        usual = [(window.ttft_seconds, window.tpot_seconds) for window in one.before if is_complete(window)]
        if not usual:
            continue
        centre = [median(level for level in column if level is not None) for column in zip(*usual, strict=True)]
        for _ in range(OBJECTIVES_A_CASE):
            tight = np.exp(source.uniform(math.log(TIGHTNESS[0]), math.log(TIGHTNESS[1]), size=2)).tolist()
            targets = objectives(ttft=centre[0] * tight[0], tpot=centre[1] * tight[1])
            verdict = _verdict(before, after, targets=targets, target=target)
            found.add(verdict)
            if breaks > max(1.1, tight[1]):
                breaking.add(verdict)
    return found, breaking


def _verdict(
    before: Sequence[Measurement], after: Sequence[Measurement], *, targets: Targets, target: ChangeTarget
) -> Verdict:
    for count in range(1, len(after) + 1):
        last = count == len(after)
        found = compare_periods(before, after[:count], targets=targets, target=target, final=last)
        if found.judgement is not None:
            return Verdict(judgement=found.judgement, windows=count)
    return Verdict(judgement=Judgement.INCONCLUSIVE, windows=len(after))


def _with_ttft(window: Measurement, *, times: float) -> Measurement:
    ttft = window.ttft_seconds
    return window.model_copy(update={"ttft_seconds": None if ttft is None else ttft * times})
