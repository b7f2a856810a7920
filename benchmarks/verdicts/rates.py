"""How often which verdict falls, by the true effect; intervals know that verdicts on one service resemble each other.

Must not: know how arms were drawn or played.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.intervals import wilson_interval
from vllm_autotuner.api.spec import Profile
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.comparison import GROSS_WINDOWS, Pair, compare
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Target, Targets

__all__ = ["Rates", "Verdict", "objectives", "verdict_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement, and after how many windows it fell."""

    judgement: Judgement
    windows: int


@dataclass(slots=True)
class Rates:
    """A count of verdicts, by service."""

    services: dict[int, Counter[Judgement]] = field(default_factory=dict)
    """By the seed of the service that they are about."""
    windows: int = 0

    def add(self, verdict: Verdict, *, service: int) -> None:
        """Count one more."""
        self.services.setdefault(service, Counter())[verdict.judgement] += 1
        self.windows += verdict.windows

    @property
    def total(self) -> int:
        """Verdicts."""
        return sum(counted.total() for counted in self.services.values())

    def count(self, judgement: Judgement) -> int:
        """How many fell so."""
        return sum(counted[judgement] for counted in self.services.values())

    def rate(self, judgement: Judgement) -> float:
        """The part of them that fell so; 0 without any."""
        return self.count(judgement) / self.total if self.total else 0.0

    def with_any(self, judgement: Judgement) -> int:
        """Services of which at least one verdict fell so."""
        return sum(1 for counted in self.services.values() if counted[judgement])

    def independent(self, judgement: Judgement) -> float:
        """As many independent verdicts would know the rate as well: those on one service resemble each other.

        The design effect (Kish): the variance of the rate between services over that of as many independent verdicts.
        At most all verdicts, at least one a service; that few where no service differs from another, as nothing then
        tells how much they resemble each other.
        """
        rate, total, clusters = self.rate(judgement), self.total, len(self.services)
        apart = [counted[judgement] - rate * counted.total() for counted in self.services.values()]
        between = clusters / max(1, clusters - 1) * math.fsum(each * each for each in apart) / max(1, total) ** 2
        return max(clusters, min(total, rate * (1 - rate) / between)) if between else clusters

    def at_most(self, judgement: Judgement) -> float:
        """The upper end of the rate's 95 % interval, clustered by service (Wilson, one-sided 97.5 %); 1 without any."""
        if not self.total:
            return 1.0
        return wilson_interval(self.rate(judgement), of=self.independent(judgement))[1]

    def figures(self) -> dict[str, float]:
        """For JSON."""
        found: dict[str, float] = {}
        for judgement in Judgement:
            found[judgement.value.lower()] = round(self.rate(judgement), 5)
        found["keep_95_pct_below"] = round(self.at_most(Judgement.KEEP), 5)
        found["keep_services"] = self.with_any(Judgement.KEEP)
        found["services"] = len(self.services)
        return {**found, "windows": round(self.windows / max(1, self.total), 2), "trials": self.total}


def objectives(*, ttft: float, tpot: float) -> Targets:
    """p95 objectives in seconds."""
    return Targets(
        profile=Profile.LATENCY,
        ttft=Target(quantile=0.95, seconds=ttft),
        tpot=Target(quantile=0.95, seconds=tpot),
    )


def verdict_of(
    pairs: Sequence[Pair],
    *,
    targets: Targets,
    target: ChangeTarget,
    gpus: int = 1,
    missed_before: frozenset[ChangeTarget] = frozenset(),
) -> Verdict:
    """Look after each window as the operator does, until a judgement falls; the last window is final.

    Before `GROSS_WINDOWS` none falls.
    """
    for count in range(min(GROSS_WINDOWS, len(pairs)), len(pairs) + 1):
        found = compare(
            pairs[:count],
            targets=targets,
            target=target,
            final=count == len(pairs),
            gpus=(1, gpus),
            missed_before=missed_before,
        )
        if found.judgement is not None:
            return Verdict(judgement=found.judgement, windows=count)
    return Verdict(judgement=Judgement.INCONCLUSIVE, windows=len(pairs))
