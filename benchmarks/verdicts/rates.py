"""How often which verdict falls, by the true effect. Must not: know how arms were drawn or played."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_autotuner.api.spec import Profile
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.comparison import Pair, compare
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
    """A count of verdicts."""

    judgements: Counter[Judgement] = field(default_factory=Counter)
    windows: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count one more."""
        self.judgements[verdict.judgement] += 1
        self.windows += verdict.windows

    @property
    def total(self) -> int:
        """Verdicts."""
        return self.judgements.total()

    def rate(self, judgement: Judgement) -> float:
        """The part of them that fell so; 0 without any."""
        return self.judgements[judgement] / self.total if self.total else 0.0

    def at_most(self, judgement: Judgement) -> float:
        """The upper end of the rate's 95 % interval (Wilson, one-sided 97.5 %); 1 without any."""
        if not self.total:
            return 1.0
        z, n, rate = 1.96, self.total, self.rate(judgement)
        spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        return (rate + z * z / (2 * n) + spread) / (1 + z * z / n)

    def figures(self) -> dict[str, float]:
        """For JSON."""
        found = {judgement.value.lower(): round(self.rate(judgement), 5) for judgement in Judgement}
        return {**found, "windows": round(self.windows / max(1, self.total), 2), "trials": self.total}


def objectives(*, ttft: float, tpot: float) -> Targets:
    """p95 objectives in seconds."""
    return Targets(
        profile=Profile.LATENCY,
        ttft=Target(quantile=0.95, seconds=ttft),
        tpot=Target(quantile=0.95, seconds=tpot),
    )


def verdict_of(pairs: Sequence[Pair], *, targets: Targets, target: ChangeTarget) -> Verdict:
    """Look after each window as the operator does, until a judgement falls; the last window is final."""
    for count in range(1, len(pairs) + 1):
        found = compare(pairs[:count], targets=targets, target=target, final=count == len(pairs))
        if found.judgement is not None:
            return Verdict(judgement=found.judgement, windows=count)
    return Verdict(judgement=Judgement.INCONCLUSIVE, windows=len(pairs))
