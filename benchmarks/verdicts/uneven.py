"""A router that does not share out evenly: how often is a canary kept for the traffic that it did not get?

Every service is played with a candidate that is equal and with one whose TPOT is truly longer, at several shares of
the requests, and judged twice: as measured, and as if both arms had got the same (`blinded`), which is the verdict
without `change/arm_traffic`. Apart from `simulated`, because there every pod gets as much.
Must not: judge by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.verdicts.questions import TIGHTNESS, WINDOWS
from benchmarks.verdicts.rates import Rates, objectives, verdict_of
from benchmarks.verdicts.simulated import OBJECTIVES_A_CASE, centre_of
from benchmarks.verdicts.variants import Played
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.comparison import Pair

__all__ = ["SHARES", "blinded", "figures_of", "rates_at", "requests_ratio"]

SHARES: Final = (0.5, 0.7, 1.0, 1.5, 2.0)
"""Requests of the candidate over those of each other pod: from half to twice as many. 1 is the same router, even."""
TARGETS: Final = (ChangeTarget.TTFT, ChangeTarget.TPOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesAt:
    """Verdicts with and without the comparison of the traffic: of all candidates, and of those that break TPOT."""

    compared: tuple[Rates, Rates]
    blind: tuple[Rates, Rates]


def blinded(pair: Pair) -> Pair:
    """The same latencies, as if the candidate had got what the reference got.

    What runs is unknown then: requests that have come and not ended would tell the traffic as well.
    """
    theirs = pair.reference.updated(running=None)
    candidate = pair.candidate.updated(
        requests_per_second=theirs.requests_per_second,
        rejected_per_second=theirs.rejected_per_second,
        prompt_tokens_per_second=theirs.prompt_tokens_per_second,
        running=None,
    )
    return replace(pair, candidate=candidate, reference=theirs)


def rates_at(played: Sequence[Played], *, target: ChangeTarget, breaks: float, source: np.random.Generator) -> RatesAt:
    """Judge each service under several objectives. `breaks`: how many times as long TPOT truly is."""
    found = RatesAt(compared=(Rates(), Rates()), blind=(Rates(), Rates()))
    for one in played:
        centre = centre_of(one)
        if centre is None:
            continue
        pairs = one.pairs[:WINDOWS]
        for _ in range(OBJECTIVES_A_CASE):
            tight = np.exp(source.uniform(math.log(TIGHTNESS[0]), math.log(TIGHTNESS[1]), size=2)).tolist()
            targets = objectives(ttft=centre[0] * tight[0], tpot=centre[1] * tight[1])
            for (all_of_them, breaking), seen in (
                (found.compared, pairs),
                (found.blind, [blinded(pair) for pair in pairs]),
            ):
                verdict = verdict_of(seen, targets=targets, target=target)
                all_of_them.add(verdict, service=one.case.seed)
                if breaks > max(1.1, tight[1]):
                    breaking.add(verdict, service=one.case.seed)
    return found


def figures_of(
    same: Sequence[Played], slower: Sequence[Played], *, regression: float, source: np.random.Generator
) -> dict[str, Any]:
    """The rates at one share: equals by either target, and the worst of both for a TPOT that breaks its objective."""
    found: dict[str, Any] = {}
    for kind, played, breaks in (("equals", same, 1.0), ("slower", slower, 1 + regression)):
        found[kind] = {}
        for target in TARGETS:
            rates = rates_at(played, target=target, breaks=breaks, source=source)
            chosen = int(breaks > 1)
            found[kind][target.value.lower()] = {
                "compared": rates.compared[chosen].figures(),
                "blind": rates.blind[chosen].figures(),
            }
    return {**found, "requests": requests_ratio(same)}


def requests_ratio(played: Sequence[Played]) -> float | None:
    """Requests that the candidate finished over those of a pod of the reference, over all services."""
    counted = [
        (ours, theirs)
        for one in played
        for pair in one.pairs
        if (ours := pair.candidate.requests_per_second) is not None
        and (theirs := pair.reference.requests_per_second) is not None
    ]
    theirs = sum(each for _, each in counted)
    return round(sum(each for each, _ in counted) / theirs, 3) if theirs else None
