"""Verdicts on arms as they were played, without fitted noise in between: the check on everything that is drawn from it.

Must not: play, or draw noise.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.verdicts.questions import TIGHTNESS, WINDOWS
from benchmarks.verdicts.rates import Rates, objectives, verdict_of
from benchmarks.verdicts.variants import Played, with_ttft
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.comparison import Pair
from vllm_autotuner.change.measured_window import is_complete

__all__ = ["OBJECTIVES_A_CASE", "centre_of", "effect_on_tpot", "rates_of"]

OBJECTIVES_A_CASE: Final = 20
"""Pairs of objectives that each played case is judged under. They share its noise: cases are what counts."""


def rates_of(
    played: Sequence[Played], *, target: ChangeTarget, ttft: float = 1.0, source: np.random.Generator
) -> tuple[Rates, Rates]:
    """All verdicts, and those where the candidate's TPOT truly breaks its objective. `ttft`: times the TTFT played."""
    found, breaking = Rates(), Rates()
    for one in played:
        pairs = [_with_ttft(pair, times=ttft) for pair in one.pairs[:WINDOWS]]
        centre = centre_of(one)
        if centre is None:
            continue
        for _ in range(OBJECTIVES_A_CASE):
            tight = np.exp(source.uniform(math.log(TIGHTNESS[0]), math.log(TIGHTNESS[1]), size=2)).tolist()
            targets = objectives(ttft=centre[0] * tight[0], tpot=centre[1] * tight[1])
            verdict = verdict_of(pairs, targets=targets, target=target)
            found.add(verdict, service=one.case.seed)
            if (effect := effect_on_tpot(one)) is not None and effect > max(1.1, tight[1]):
                breaking.add(verdict, service=one.case.seed)
    return found, breaking


def effect_on_tpot(played: Played) -> float | None:
    """Candidate over reference, mean of all windows; None without any."""
    ratios = [
        math.log(pair.candidate.tpot_seconds / pair.reference.tpot_seconds)
        for pair in played.pairs
        if pair.candidate.tpot_seconds and pair.reference.tpot_seconds
    ]
    return math.exp(sum(ratios) / len(ratios)) if ratios else None


def centre_of(played: Played) -> tuple[float, float] | None:
    """The usual TTFT and TPOT of the reference, in seconds; None without a window."""
    windows = [pair.reference for pair in played.pairs if is_complete(pair.reference)]
    if not windows:
        return None
    ttft = np.median([window.ttft_seconds or np.nan for window in windows])
    return float(ttft), float(np.median([window.tpot_seconds or np.nan for window in windows]))


def _with_ttft(pair: Pair, *, times: float) -> Pair:
    return replace(pair, candidate=with_ttft(pair.candidate, times=times))
