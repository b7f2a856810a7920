"""What would have been recommended when, how stable it was, and how accurate its predictions were.

The same evaluation as in the operator, one moment after the other; nothing is changed, so the history is that of the
configuration that ran. Must not: print, open a source, or count a prediction as tested without a load that tested it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.cli.evaluate.evaluation import Evaluation, ServiceReport
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.step_time import StepTime, fit_step_time
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["History", "Standing", "replay"]

SAME: Final = 0.2
"""A value that moved by less than this share is still the same recommendation: as in the operator's status."""
NEAR: Final = 0.15
"""A later window tests a predicted batch when its own is within this share of it. Our choice: on a measured line the
latency then differs by less than that."""


@dataclass(slots=True)
class Standing:
    """One recommendation, from when to when it stood (Unix seconds)."""

    since: float
    until: float
    named: DiagnosisClass
    proposal: Proposal
    model: StepTime | None
    """The step-time fit of its first moment, to be tested by what came later."""
    looks: int = 1
    misses: list[float] = field(default_factory=list)
    """Relative errors of that fit on later windows near the recommended batch."""

    @property
    def error(self) -> float | None:
        """The median miss of its prediction (0..1); None where no later load came near."""
        return median(self.misses) if self.misses else None


@dataclass(slots=True)
class History:
    """One service over all moments."""

    service: ServiceName
    standing: list[Standing] = field(default_factory=list)
    looks: int = 0
    """Moments at which the service was there."""
    silent: int = 0
    """Of these, moments without a recommendation."""
    classes: dict[DiagnosisClass, int] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """How often another recommendation stood than before, its disappearance not counted."""
        return max(0, len(self.standing) - 1)

    @property
    def steadiness(self) -> float | None:
        """Share of the looks with a recommendation that the longest one held; None without any."""
        recommended = self.looks - self.silent
        return max(each.looks for each in self.standing) / recommended if recommended else None

    def see(self, report: ServiceReport, *, at: float) -> None:
        """Count one moment, not before the last one."""
        self.looks += 1
        named = report.diagnosis.primary
        self.classes[named] = self.classes.get(named, 0) + 1
        for each in self.standing:
            each.misses += _misses(each, report.observation.steps)
        proposal = report.plan.proposal
        if proposal is None:
            self.silent += 1
            return
        last = self.standing[-1] if self.standing else None
        if last is not None and _same(last.proposal, proposal):
            last.until, last.looks = at, last.looks + 1
            return
        model = fit_step_time(report.observation.steps)
        self.standing.append(
            Standing(
                since=at,
                until=at,
                named=named,
                proposal=proposal,
                model=model if isinstance(model, StepTime) else None,
            )
        )


async def replay(
    evaluation: Evaluation, *, ticks: Sequence[float], shown: frozenset[float], looked: Callable[[], None]
) -> dict[ServiceName, History]:
    """Evaluate every tick, and take note of those that are shown. Raises CommandError when the source fails.

    `looked`: called after each tick.
    """
    found: dict[ServiceName, History] = {}
    for at in ticks:
        await evaluation.look(at)
        if at in shown:
            for report in evaluation.reports():
                found.setdefault(report.service, History(report.service)).see(report, at=at)
        looked()
    return found


def _same(one: Proposal, other: Proposal) -> bool:
    if (one.knob, one.current) != (other.knob, other.current):
        return False
    if isinstance(one.value, str) or isinstance(other.value, str):
        return one.value == other.value
    return abs(one.value - other.value) <= SAME * one.value


def _misses(standing: Standing, steps: Sequence[StepPoint]) -> list[float]:
    """How far off the fit was where the load came near the recommended batch size. Only max-num-seqs sets one."""
    model, proposal = standing.model, standing.proposal
    if model is None or proposal.knob is not Knob.MAX_NUM_SEQS:
        return []
    near = [each for each in steps if abs(each.running - proposal.count) <= NEAR * proposal.count and each.itl > 0]
    return [abs(model.predict(each.running) / each.itl - 1) for each in near[-1:]]
